"""``gpusharectl version``: this command's version, and what runs in the cluster.

As data its shape is a promise, as inspect's. null: not known; an empty list: no pod::

    v            1
    gpusharectl  this command's version
    kubernetes   the API server's version
    components   {name: [{image, pods, nodes: [name]}]}
    nodes        [{name, kubelet, extender, device-plugin, differences: [sentence]}],
                 by name: those that share cards, and the control plane's. extender and
                 device-plugin are [{image, version, id}]: the version if the image's
                 tag is one, and the id that kubelet reports
    differences  [sentence]: those that are not of one node
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import click

from gpushare import __version__
from gpushare.kube import facts, names, words
from gpushare.kube.cluster import Json
from gpushare.kube.errors import Forbidden
from gpusharectl.access import Access, access_options, reached
from gpusharectl.output import fit_to_show, give
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
_SUPPORTED = 3
"""How many minor versions kubelet may be older than the API server.

The source is Kubernetes' version skew policy, which forbids a newer kubelet.
"""
_NAMED = 3
"""Of more nodes with one difference the screen says how many there are."""
_CODES = (
    "Exit codes: 0 it was shown; 1 the cluster could not be read, or not all of it, so "
    "that this is n/a; 2 wrong command line."
)


@dataclass(slots=True)
class _Answers:
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
@click.option(
    "-o", "--output", type=click.Choice(["json", "yaml"]), help="Print it as data."
)
@access_options
def version(output: str | None, kubeconfig: str | None, context: str | None) -> None:
    """Show this command's version, and those of the cluster and its nodes.

    n/a: not known; -: no pod there. The components of a demo are processes of this
    command.
    """
    answers, error = _Answers(), None
    try:
        with reached(kubeconfig, context) as access:
            answers.ask(access)
    except click.ClickException as caught:
        error = caught
    data = _data(answers)
    if output:
        give(data, output)
    else:
        for line in _lines(data):
            click.echo(fit_to_show(line))
    if error is not None:
        raise error


def _data(answers: _Answers) -> dict[str, Any]:
    pods, kubernetes = answers.pods, answers.kubernetes
    components = dict.fromkeys(_CONTAINERS) if pods is None else components_of(pods)
    nodes = None
    if answers.nodes is not None:
        nodes = nodes_of(answers.nodes, pods, kubernetes)
    return {
        "v": _VERSION,
        "gpusharectl": __version__,
        "kubernetes": kubernetes,
        "components": components,
        "nodes": nodes,
        "differences": None if pods is None else list(between(components)),
    }


def components_of(pods: Iterable[Json]) -> Mapping[str, list[dict[str, Any]]]:
    """Return the images of each component, that of most pods first."""
    nodes: dict[str, dict[str, list[str]]] = {name: {} for name in _CONTAINERS}
    for name, pod, image, _ in _running(pods):
        nodes[name].setdefault(image, []).append(facts.node_of(pod))
    return {
        name: [
            {"image": image, "pods": len(on), "nodes": sorted(filter(None, on))}
            for image, on in sorted(images.items(), key=lambda one: -len(one[1]))
        ]
        for name, images in nodes.items()
    }


def nodes_of(
    nodes: Iterable[Json], pods: Sequence[Json] | None, kubernetes: str | None
) -> list[dict[str, Any]]:
    """Return what each node runs, and in which it differs from the others.

    Of nodes without cards only those of the control plane are shown, and those that
    have an extender or a device plugin. ``pods`` is None if they are not known.
    """
    there: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for component, pod, image, image_id in _running(pods or ()):
        on = there.setdefault(facts.node_of(pod), {})
        one = {"image": image, "version": version_in(image), "id": image_id}
        on.setdefault(component, []).append(one)
    rows = []
    for node in sorted(nodes, key=facts.name_of):
        name = facts.name_of(node)
        if not _is_shown(node) and not there.get(name, {}).keys() & set(_ON_NODES):
            continue
        info = (node.get("status") or {}).get("nodeInfo") or {}
        row: dict[str, Any] = {"name": name, "kubelet": info.get("kubeletVersion")}
        for component in _ON_NODES:
            found = there.get(name, {}).get(component, [])
            row[component] = None if pods is None else found
        rows.append(row)
    for row in rows:
        skew = kubelet_differs(row["kubelet"], kubernetes)
        row["differences"] = [skew] if skew else []
    for component in _ON_NODES:
        for row, text in _from_others(component, rows):
            if text not in row["differences"]:
                row["differences"].append(text)
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
        told = (pod.get("status") or {}).get("containerStatuses") or ()
        ids = {str(one.get("name")): one.get("imageID") or None for one in told}
        for container in pod["spec"]["containers"]:
            name = str(container.get("name"))
            if facts.label(pod, facts.PART_NAME) in _CONTAINERS.get(name, ()):
                yield name, pod, str(container.get("image")), ids.get(name)


def version_in(image: str) -> str | None:
    """Return the version that the tag of an image is; None for another tag.

    >>> version_in("host:5000/gpushare:v0.1.0"), version_in("gpushare:latest")
    ('0.1.0', None)
    """
    found = re.search(r":v?(\d+\.\d+\.\d+[\w.-]*)(@.*)?$", image)
    return found[1] if found else None


def kubelet_differs(kubelet: str | None, kubernetes: str | None) -> str:
    """Return how kubelet's version differs from the API server's; mostly empty.

    >>> kubelet_differs("v1.35.4", "v1.36.3")
    'kubelet v1.35.4 is 1 minor version older than the API server'
    """
    if kubelet is None or kubernetes is None or kubelet == kubernetes:
        return ""
    said = f"kubelet {kubelet} is "
    both = [re.match(r"v1\.(\d+)\.\d+", one) for one in (kubelet, kubernetes)]
    if both[0] is None or both[1] is None:
        return f"{said}not the version of the API server"
    older = int(both[1][1]) - int(both[0][1])
    if older < 0:
        return f"{said}newer than the API server, which Kubernetes does not support"
    if not older:
        return f"{said}another patch or build than the API server"
    said += f"{words.counted(older, 'minor version')} older than the API server"
    return f"{said}; Kubernetes supports {_SUPPORTED}" if older > _SUPPORTED else said


def _from_others(component: str, rows: Iterable[Json]) -> Iterator[tuple[Json, str]]:
    """Yield each node whose image is not the usual one, and how it differs."""
    having = [row for row in rows if row[component]]
    images = Counter(
        image for row in having for image in {one["image"] for one in row[component]}
    )
    ids: dict[tuple[str, str], Counter[str]] = {}
    for row in having:
        for key, image_id in {_build(one) for one in row[component] if one["id"]}:
            ids.setdefault(key, Counter())[image_id] += 1
    for row in having:
        for one in row[component]:
            image, count = images.most_common(1)[0]
            said = f"{component} {one['image']}"
            if one["image"] != image:
                yield row, f"{said}; on {_of(count, having)} it is {image}"
            if not one["id"]:
                continue
            key, image_id = _build(one)
            usual, count = ids[key].most_common(1)[0]
            if image_id != usual:
                where = _of(count, having)
                yield row, f"{said} is another build of this name than on {where}"


def _build(one: Json) -> tuple[tuple[str, str], str]:
    """Return the id of an image, after what it may be compared with.

    kubelet names an image that was pulled in another way than one that was imported.
    """
    return (one["image"], one["id"].partition("sha256:")[0]), one["id"]


def _of(count: int, all_of: Sized) -> str:
    return f"{count} of {words.counted(len(all_of), 'node')}"


def between(components: Mapping[str, list[dict[str, Any]] | None]) -> Iterator[str]:
    """Yield how components differ from each other, and from this command."""
    usual = {name: found[0]["image"] for name, found in components.items() if found}
    if len(set(usual.values())) > 1:
        each = ", ".join(f"{name} {image}" for name, image in usual.items())
        yield f"components have different images: {each}"
    for name, found in components.items():
        told = {version_in(one["image"]) for one in found or ()}
        for other in sorted(filter(None, told - {__version__})):
            yield f"{name} {other} is not the version of this command, {__version__}"


def _lines(data: Json) -> Iterator[str]:
    """Yield the lines of the screen."""
    told = {
        "gpusharectl": __version__,
        "Kubernetes": data["kubernetes"] or words.NOT_KNOWN,
        **{name: _told(images) for name, images in data["components"].items()},
    }
    width = max(map(len, told))
    yield from (f"{name:{width}}  {text}" for name, text in told.items())
    nodes = data["nodes"]
    if nodes is None:
        yield f"{'nodes':{width}}  {words.NOT_KNOWN}"
    elif nodes:
        yield ""
        yield from _table(nodes)
    differences = [*(data["differences"] or ()), *_grouped(nodes or ())]
    if differences:
        yield ""
        yield "Differences"
        yield from (f"  {text}" for text in differences)


def _table(nodes: Iterable[Json]) -> Iterator[str]:
    rows = [["NODE", "KUBELET", *(name.upper() for name in _ON_NODES)]]
    for node in nodes:
        row = [node["name"], node["kubelet"] or words.NOT_KNOWN]
        for name in _ON_NODES:
            images = dict.fromkeys(_short(one["image"]) for one in node[name] or ())
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


def _grouped(nodes: Iterable[Json]) -> Iterator[str]:
    """Yield each difference once, after the nodes that have it."""
    on: dict[str, list[str]] = {}
    for node in nodes:
        for text in node["differences"]:
            on.setdefault(text, []).append(node["name"])
    for text, having in on.items():
        named = ", ".join(having[:_NAMED])
        more = len(having) - _NAMED
        yield f"{named}{f' and {more} more' if more > 0 else ''}: {text}"


def _told(images: list[dict[str, Any]] | None) -> str:
    if images is None:
        return words.NOT_KNOWN
    each = (f"{one['image']}, {words.counted(one['pods'], 'pod')}" for one in images)
    return "; ".join(each) or "no pod"
