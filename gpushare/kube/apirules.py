"""What the API server lets a write change, and what it makes of it. Pure.

The sources are Kubernetes 1.36: ``pkg/registry/core/pod/strategy.go`` (status, graceful
deletion) and ``pkg/registry/core/pod/storage/storage.go`` (binding).
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Conflict, Invalid
from gpushare.kube.fields import Reader
from gpushare.kube.shapes import (
    SHAPES,
    check,
    containers,
    named,
    timestamp,
    with_requests,
)

DEFAULT_GRACE_S = 30
_TERMINAL = ("Succeeded", "Failed")
_KEPT = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "resourceVersion",
)
"""Metadata that no write of a user's changes."""


def updated(kind: Kind, before: Json, after: Json, subresource: str) -> Json:
    """Let through of a write what it may change; ``Invalid`` where that is nothing.

    A write to ``status`` changes nothing else, and other writes leave it alone.
    """
    check(kind, after)
    _check_same_thing(before["metadata"], after["metadata"])
    if subresource == "status":
        return {**before, "status": after.get("status") or {}}
    kept = {key: before["metadata"].get(key) for key in _KEPT}
    metadata = {key: value for key, value in kept.items() if value is not None}
    given = {k: v for k, v in after["metadata"].items() if k not in _KEPT}
    result = {**named(kind, after), "metadata": given | metadata}
    if SHAPES[kind].status_apart:
        result.pop("status", None)
        result |= {"status": before["status"]} if "status" in before else {}
    if kind is Kind.PODS:
        result["spec"] = with_requests(after["spec"])
        if _fixed(before["spec"]) != _fixed(result["spec"]):
            message = "a pod's node, containers and resources may not be changed"
            raise Invalid(f"spec: {message}")
    return result


def precondition(thing: Json, uid: str, version: str = "") -> None:
    """Raise ``Conflict`` unless this is the object, and the version, that was meant."""
    metadata = thing["metadata"]
    for what, wanted, found in (
        ("UID", uid, metadata["uid"]),
        ("ResourceVersion", version, metadata["resourceVersion"]),
    ):
        if wanted and wanted != found:
            raise Conflict(
                f"Precondition failed: {what} in precondition: {wanted}, "
                f"{what} in object meta: {found}"
            )


def dying(pod: Json, grace_period_s: int | None, moment: datetime) -> Json | None:
    """Give the pod as it waits for its end, or None when it goes at once.

    ``grace_period_s`` None is the pod's own wish. A pod that waits already can only be
    told to hurry.
    """
    grace = _grace(pod) if grace_period_s is None else max(0, grace_period_s)
    terminal = pod.get("status", {}).get("phase") in _TERMINAL
    if not grace or terminal or not pod["spec"].get("nodeName"):
        return None
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata:
        waits = metadata.get("deletionGracePeriodSeconds", grace)
        if grace_period_s is None or grace >= waits:
            return pod
    ends = {
        "deletionTimestamp": timestamp(moment + timedelta(seconds=grace)),
        "deletionGracePeriodSeconds": grace,
    }
    return {**pod, "metadata": metadata | ends}


def bound(
    pod: Json, node: str, annotations: Mapping[str, str], moment: datetime
) -> Json:
    """Give the pod bound to a node, annotations merged; ``Conflict`` where it may not.

    Whether there is such a node is not asked (contracts 1.5).
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if problem := _unbindable(metadata, spec):
        raise Conflict(
            f'Operation cannot be fulfilled on pods/binding "{metadata["name"]}": '
            f"pod {metadata['name']} {problem}"
        )
    merged = {**(metadata.get("annotations") or {}), **annotations}
    condition = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": timestamp(moment),
    }
    status = pod.get("status") or {}
    others = [one for one in _conditions(status) if one.get("type") != "PodScheduled"]
    return {
        **pod,
        "metadata": metadata | ({"annotations": merged} if merged else {}),
        "spec": spec | {"nodeName": node},
        "status": status | {"conditions": [*others, condition]},
    }


def _fixed(spec: Json) -> tuple[object, ...]:
    asked = [
        (one.raw["name"], one.raw.get("resources") or {})
        for one in containers(Reader(spec))
    ]
    return spec.get("nodeName"), asked


def _check_same_thing(before: Json, after: Json) -> None:
    for key in ("name", "namespace"):
        if before.get(key) != after.get(key):
            raise Invalid(
                f"the {key} of the object ({after.get(key)}) does not match "
                f"the {key} on the URL ({before.get(key)})"
            )


def _grace(pod: Json) -> int:
    grace = pod["spec"].get("terminationGracePeriodSeconds")
    return grace if isinstance(grace, int) else DEFAULT_GRACE_S


def _unbindable(metadata: Json, spec: Json) -> str:
    if "deletionTimestamp" in metadata:
        return "is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return "has non-empty .spec.schedulingGates"
    return ""


def _conditions(status: Json) -> list[Json]:
    found: list[Json] = status.get("conditions") or []
    return found
