"""What kubelet goes on counting when the device plugin is gone, taken from a node."""

from collections.abc import Iterable

from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.nodeview import NodeView
from gpusharectl.install.progress import Screen, Waiting
from gpusharectl.install.survey import read_nodes
from gpusharectl.install.watching import Patience

KUBELET_FORGETS_AFTER_S = 300.0
"""So long it keeps the capacity of a plugin that is gone; then it says 0 for ever."""
_SPARE_S = 60.0


def counted(nodes: Iterable[NodeView]) -> tuple[str, ...]:
    """Give the nodes whose status still names our resources."""
    return tuple(node.name for node in nodes if node.known)


def take_out(objects: Objects, screen: Screen, patience: Patience) -> dict[str, str]:
    """Wait for the zeros and take them out; give the nodes that keep theirs."""
    left = patience.until(
        lambda: _swept(objects), screen, KUBELET_FORGETS_AFTER_S + _SPARE_S
    )
    return {one.who: one.what for one in left}


def _swept(objects: Objects) -> list[Waiting]:
    """Take out what is 0 by now; give who still counts."""
    found = []
    for node in read_nodes(objects):
        if node.known and node.leftover == node.known:
            _forget(objects, node)
        elif node.known and node.ready:
            what = "its kubelet to count none, 5 min after the plugin's end"
            found.append(Waiting(node.name, what))
    return found


def _forget(objects: Objects, node: NodeView) -> None:
    """Take the resources out, unless kubelet counts some again just now."""
    steps: list[dict[str, object]] = []
    for resource in node.leftover:
        key = resource.replace("~", "~0").replace("/", "~1")
        steps.append({"op": "test", "path": f"/status/capacity/{key}", "value": "0"})
        steps.append({"op": "remove", "path": f"/status/capacity/{key}"})
        if resource in node.allocatable:
            steps.append({"op": "remove", "path": f"/status/allocatable/{key}"})
    objects.json_patch(Ref("v1", "Node", node.name), steps, subresource="status")
