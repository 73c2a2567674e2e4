"""``gpusharectl version``: this command's version, and what runs in the cluster.

As data its shape is a promise, as inspect's. null: not known; an empty list: no pod::

    v            1
    gpusharectl  this command's version
    kubernetes   the API server's version
    components   {name: [{image, pods, nodes: [name]}]}
    nodes        [{name, kubelet, extender, device-plugin}], by name: those that share
                 cards, and the control plane's. extender and device-plugin are
                 [{image, version, id}]: the version if the image's tag is one, and the
                 id that kubelet reports
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from gpushare import __version__
from gpushare.kube import facts, names, words
from gpushare.kube.cluster import Json
from gpushare.kube.errors import Forbidden
from gpusharectl.access import Access, access_options, reached
from gpusharectl.output import data_option, fit_to_show, print_data
from gpusharectl.state.read import is_demo

_VERSION = 1
_CONTAINERS = {
    "extender": (facts.EXTENDER, facts.SECOND_SCHEDULER),
    "device-plugin": (facts.DEVICE_PLUGIN,),
    "exporter": (facts.EXPORTER,),
    "webhook": (facts.WEBHOOK,),
}
"""The container of each component, and the names of the pods' components."""
_ON_NODES = ("extender", "device-plugin")
"""The components that are shown for each node."""
_MOST_NODES = 3
"""Of more nodes with another kubelet the screen says how many there are."""
_CODES = (
    "Exit codes: 0 it was shown; 1 the cluster could not be read, or not all of it, so "
    "that this is n/a; 2 wrong command line."
)


@dataclass(slots=True)
class _ClusterParts:
    """What the cluster answered; None: it did not, or has no pods."""

    kubernetes: str | None = None
    pods: Sequence[Json] | None = None
    nodes: Sequence[Json] | None = None

    def ask(self, access: Access) -> None:
        objects = access.objects
        self.kubernetes = objects.version()
        try:
            if not is_demo(objects):
                self.pods = objects.list(
                    "v1", "Pod", namespace=facts.SYSTEM, label_selector=facts.OURS
                )
        except Forbidden:
            # Many users may read nodes, but not what is in kube-system.
            self.nodes = objects.list("v1", "Node")
            raise
        self.nodes = objects.list("v1", "Node")


@click.command(epilog=_CODES)
@data_option
@access_options
def version(output: str | None, kubeconfig: str | None, context: str | None) -> None:
    """Show this command's version, and those of the cluster and its nodes.

    n/a: not known; -: no pod there. The components of a demo are processes of this
    command.
    """
    parts_read, error = _ClusterParts(), None
    try:
        with reached(kubeconfig, context) as access:
            parts_read.ask(access)
    except click.ClickException as caught:
        error = caught
    data = _data(parts_read)
    if output:
        print_data(data, output)
    else:
        for line in _lines(data):
            click.echo(fit_to_show(line))
    if error is not None:
        raise error


def _data(parts_read: _ClusterParts) -> dict[str, Any]:
    pods, nodes = parts_read.pods, parts_read.nodes
    return {
        "v": _VERSION,
        "gpusharectl": __version__,
        "kubernetes": parts_read.kubernetes,
        "components": dict.fromkeys(_CONTAINERS) if pods is None else list_images(pods),
        "nodes": None if nodes is None else list_nodes(nodes, pods),
    }


def list_images(pods: Iterable[Json]) -> Mapping[str, list[dict[str, Any]]]:
    """Return the images of each component, that of most pods first."""
    nodes_of: dict[str, dict[str, list[str]]] = {name: {} for name in _CONTAINERS}
    for name, pod, image, _ in _running(pods):
        nodes_of[name].setdefault(image, []).append(facts.node_of(pod))
    return {
        name: [
            {"image": image, "pods": len(on), "nodes": sorted(filter(None, on))}
            for image, on in sorted(images.items(), key=lambda item: -len(item[1]))
        ]
        for name, images in nodes_of.items()
    }


def list_nodes(
    nodes: Iterable[Json], pods: Sequence[Json] | None
) -> list[dict[str, Any]]:
    """Return what each node runs.

    Of nodes without cards only those of the control plane are shown, and those that
    have an extender or a device plugin. ``pods`` is None if they are not known.
    """
    images_on: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for component, pod, image, image_id in _running(pods or ()):
        on_node = images_on.setdefault(facts.node_of(pod), {})
        run = {"image": image, "version": parse_version(image), "id": image_id}
        on_node.setdefault(component, []).append(run)
    rows = []
    for node in sorted(nodes, key=facts.name_of):
        name = facts.name_of(node)
        on_node = images_on.get(name, {})
        if not _is_shown(node) and not on_node.keys() & set(_ON_NODES):
            continue
        info = (node.get("status") or {}).get("nodeInfo") or {}
        row: dict[str, Any] = {"name": name, "kubelet": info.get("kubeletVersion")}
        for component in _ON_NODES:
            row[component] = None if pods is None else on_node.get(component, [])
        rows.append(row)
    return rows


def _is_shown(node: Json) -> bool:
    if facts.is_labelled(node) or facts.is_control_plane(node):
        return True
    return bool(facts.annotation(node, names.CARDS))


def _running(pods: Iterable[Json]) -> Iterator[tuple[str, Json, str, str | None]]:
    """Yield each container of a component: its name, pod, image and image's id."""
    for pod in pods:
        if facts.is_terminal(pod):
            continue
        statuses = (pod.get("status") or {}).get("containerStatuses") or ()
        ids = {str(s.get("name")): s.get("imageID") or None for s in statuses}
        for container in pod["spec"]["containers"]:
            name = str(container.get("name"))
            if facts.label(pod, facts.PART_NAME) in _CONTAINERS.get(name, ()):
                yield name, pod, str(container.get("image")), ids.get(name)


def parse_version(image: str) -> str | None:
    """Return the version that the tag of an image is; None for another tag.

    >>> parse_version("host:5000/gpushare:v0.1.0"), parse_version("gpushare:latest")
    ('0.1.0', None)
    """
    tag = re.search(r":v?(\d+\.\d+\.\d+[\w.-]*)(@.*)?$", image)
    return tag[1] if tag else None


def compare_versions(data: Mapping[str, Any]) -> str:
    """Say in a sentence which parts differ; empty if none does and one is not known."""
    of_images, of_kubelets = [], []
    for component, images in data["components"].items():
        versions = {parse_version(row["image"]) or row["image"] for row in images or ()}
        of_images += [f"{component} {v}" for v in sorted(versions - {__version__})]
    if kubernetes := data["kubernetes"]:
        same = (kubernetes, None)
        nodes = data["nodes"] or ()
        of_kubelets = [n["name"] for n in nodes if n["kubelet"] not in same]
    differing = []
    if of_images:
        differing.append(f"not of this command's version: {', '.join(of_images)}")
    if of_kubelets:
        on_nodes = words.listed(of_kubelets, _MOST_NODES)
        differing.append(f"not of the API server's version: kubelet on {on_nodes}")
    if differing:
        text = "; ".join(differing)
        return f"{text[0].upper()}{text[1:]}."
    kubelets = (
        [None] if data["nodes"] is None else [n["kubelet"] for n in data["nodes"]]
    )
    unknown = None in (*kubelets, *data["components"].values())
    return "" if unknown else "One version everywhere."


def _lines(data: Json) -> Iterator[str]:
    components = data["components"].items()
    parts = {
        "gpusharectl": __version__,
        "Kubernetes": data["kubernetes"] or words.NOT_KNOWN,
        **{name: _images(images) for name, images in components},
    }
    width = max(map(len, parts))
    yield from (f"{name:{width}}  {text}" for name, text in parts.items())
    if data["nodes"] is None:
        yield f"{'nodes':{width}}  {words.NOT_KNOWN}"
    elif data["nodes"]:
        yield ""
        yield from _table(data["nodes"])
    if sentence := compare_versions(data):
        yield ""
        yield sentence


def _table(nodes: Iterable[Json]) -> Iterator[str]:
    rows = [["NODE", "KUBELET", *(name.upper() for name in _ON_NODES)]]
    for node in nodes:
        row = [node["name"], node["kubelet"] or words.NOT_KNOWN]
        for name in _ON_NODES:
            images = dict.fromkeys(_short(run["image"]) for run in node[name] or ())
            known = ", ".join(images) or "-"
            row.append(words.NOT_KNOWN if node[name] is None else known)
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _short(image: str) -> str:
    """Return an image as a column has room for it: the lines above have it in full.

    >>> _short("host:5000/team/gpushare:0.1.0@sha256:0123456789abcdef")
    'gpushare:0.1.0@01234567…'
    """
    name, _, digest = image.rpartition("/")[2].partition("@sha256:")
    return f"{name}@{digest[:8]}…" if digest else name


def _images(images: list[dict[str, Any]] | None) -> str:
    if images is None:
        return words.NOT_KNOWN
    rows = (f"{row['image']}, {words.counted(row['pods'], 'pod')}" for row in images)
    return "; ".join(rows) or "no pod"
