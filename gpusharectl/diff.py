"""What would change, as diffs: objects by the API server's own dry run, and labels."""

import difflib
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import yaml

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.cluster_facts import NodeView

_BOOKKEEPING = (
    "managedFields",
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "generation",
)
_NOT_SHOWN = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.daemonset.template.generation",
)
_SECRET = "Secret"  # noqa: S105


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One object before and after; None where there is none."""

    ref: Ref
    before: Json | None
    after: Json | None

    def diff(self) -> str:
        """Show the change as ``diff -u`` does; a new object whole, no secret ever."""
        if self.ref.kind == _SECRET:
            return f"{self.ref}: its contents are not shown\n"
        old, new = _lines(self.before), _lines(self.after)
        fromfile = str(self.ref) if self.before else "(none)"
        tofile = str(self.ref) if self.after else "(none)"
        return "".join(difflib.unified_diff(old, new, fromfile, tofile))


def object_changes(
    objects: Objects, manifests: Iterable[Json]
) -> tuple[ObjectChange, ...]:
    """Ask the API server what applying would change; what stays is left out.

    It judges each object as it would in earnest: rights, quotas, admission. So what it
    would refuse is a ``ClusterError`` here, before anything is touched.
    """
    found = []
    for body in manifests:
        ref = Ref.of(body)
        before = objects.get(ref)
        after = tidy(objects.apply(body, dry_run=True))
        old = None if before is None else tidy(before)
        if old != after:
            found.append(ObjectChange(ref, old, after))
    return tuple(found)


def tidy(body: Json) -> Json:
    """Leave out what the API server keeps for itself: statuses, versions, managers."""
    found = deepcopy(body)
    found.pop("status", None)
    metadata = found["metadata"]
    for key in _BOOKKEEPING:
        metadata.pop(key, None)
    annotations = metadata.get("annotations") or {}
    for key in _NOT_SHOWN:
        annotations.pop(key, None)
    if not annotations:
        metadata.pop("annotations", None)
    return found


def to_label(nodes: Sequence[NodeView], chosen: Sequence[str]) -> tuple[str, ...]:
    """Give the chosen nodes that lack our label."""
    return tuple(
        node.name for node in nodes if node.name in chosen and not node.labelled
    )


def label_diff(name: str, *, on: bool) -> str:
    """Show a label set or taken away, in the manner of a diff."""
    sign = "+" if on else "-"
    return f'{sign} Node {name}: label {names.GPU_NODE_LABEL}: "true"\n'


def _lines(body: Json | None) -> list[str]:
    if body is None:
        return []
    text = yaml.safe_dump(body, sort_keys=True, allow_unicode=True)
    return text.splitlines(keepends=True)
