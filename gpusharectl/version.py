"""``gpusharectl version``: this command's version, and what runs in the cluster.

As data its shape is a promise, as inspect's. null: not known; an empty list: no pod::

    v            1
    gpusharectl  this command's version
    kubernetes   the API server's version
    components   {name: [{image, pods, nodes: [name]}]}
"""

from collections.abc import Iterable, Mapping
from typing import Any

import click

from gpushare import __version__
from gpushare.kube import facts, words
from gpushare.kube.cluster import Json
from gpusharectl.access import access_options, reached
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
_CODES = (
    "Exit codes: 0 it was shown; 1 the cluster could not be read, so that only this "
    "command's version is known; 2 wrong command line."
)


@click.command(epilog=_CODES)
@click.option(
    "-o", "--output", type=click.Choice(["json", "yaml"]), help="Print it as data."
)
@access_options
def version(output: str | None, kubeconfig: str | None, context: str | None) -> None:
    """Show this command's version and the images that run in the cluster.

    n/a: not known. The components of a demo are processes of this command.
    """
    kubernetes, found, error = None, None, None
    try:
        with reached(kubeconfig, context) as access:
            kubernetes = access.objects.version()
            if not is_demo(access.objects):
                found = access.objects.list(
                    "v1", "Pod", namespace=facts.SYSTEM, label_selector=facts.OURS
                )
    except click.ClickException as caught:
        error = caught
    components = dict.fromkeys(_CONTAINERS) if found is None else components_of(found)
    if output:
        data = {"v": _VERSION, "gpusharectl": __version__, "kubernetes": kubernetes}
        give({**data, "components": components}, output)
    else:
        told = {"gpusharectl": __version__, "Kubernetes": kubernetes or words.NOT_KNOWN}
        told |= {name: _told(images) for name, images in components.items()}
        width = max(map(len, told))
        for name, text in told.items():
            click.echo(f"{name:{width}}  {fit_to_show(text)}")
    if error is not None:
        raise error


def components_of(pods: Iterable[Json]) -> Mapping[str, list[dict[str, Any]]]:
    """Return the images of each component, that of most pods first."""
    nodes: dict[str, dict[str, list[str]]] = {name: {} for name in _CONTAINERS}
    for pod in pods:
        if facts.is_terminal(pod):
            continue
        for container in pod["spec"]["containers"]:
            name = str(container.get("name"))
            if facts.label(pod, facts.PART_NAME) in _CONTAINERS.get(name, ()):
                image = str(container.get("image"))
                nodes[name].setdefault(image, []).append(facts.node_of(pod))
    return {
        name: [
            {"image": image, "pods": len(on), "nodes": sorted(filter(None, on))}
            for image, on in sorted(images.items(), key=lambda one: -len(one[1]))
        ]
        for name, images in nodes.items()
    }


def _told(images: list[dict[str, Any]] | None) -> str:
    if images is None:
        return words.NOT_KNOWN
    each = (f"{one['image']}, {words.counted(one['pods'], 'pod')}" for one in images)
    return "; ".join(each) or "no pod"
