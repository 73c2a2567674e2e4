"""Which pods hold parts of cards now. Pure, but for one list of pods."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpushare.kube.cluster import Json
from gpushare.kube.codec import is_ours, pod_record
from gpushare.kube.fields import Malformed
from gpushare.kube.objects import Objects

_TERMINAL = ("Succeeded", "Failed")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod on a node that holds a part of a card, or has asked for one there."""

    namespace: str
    name: str
    node: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} on {self.node}"


def holders(objects: Objects) -> tuple[Holder, ...]:
    """Read which pods hold cards, sorted by node and name."""
    return holding(objects.list("v1", "Pod"))


def holding(pods: Iterable[Json]) -> tuple[Holder, ...]:
    """Find the pods that are bound, have not ended, and ask for a part of a card."""
    found = [
        Holder(pod["metadata"]["namespace"], pod["metadata"]["name"], _node(pod))
        for pod in pods
        if _node(pod) and not _ended(pod) and _asks(pod)
    ]
    return tuple(sorted(found, key=lambda one: (one.node, one.namespace, one.name)))


def listed(found: Sequence[Holder]) -> str:
    """Write them down, one a line; of very many the first."""
    lines = [f"  {one}" for one in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  and {len(found) - _SHOWN} more")
    return "\n".join(lines)


def _asks(pod: Json) -> bool:
    """Tell whether a pod asks for cards; one that cannot be read counts as asking."""
    if not is_ours(pod):
        return False
    try:
        return pod_record(pod).asks
    except Malformed:
        return True


def _node(pod: Json) -> str:
    return str(pod["spec"].get("nodeName") or "")


def _ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in _TERMINAL
