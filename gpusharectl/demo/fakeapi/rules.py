"""The API server's rules for creating, changing, binding, evicting and deleting. Pure.

The sources are Kubernetes 1.36: ``pkg/registry/core/pod/strategy.go`` (status, graceful
deletion), ``pkg/registry/core/pod/storage`` (binding, eviction) and
``pkg/apis/core/v1/defaults.go`` (requests from limits). JSON merge patch is RFC 7396.
Of the strategic merge patch, lists of objects are merged by their key, and directives
for order are ignored (``k8s.io/apimachinery/pkg/util/strategicpatch``).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from gpushare.kube import codec
from gpushare.kube.cluster import Json, Kind, timestamp
from gpushare.kube.codec import read_pod_record
from gpushare.kube.errors import Conflict, Forbidden, Invalid, Throttled, Unavailable
from gpushare.kube.facts import TERMINAL, is_ready
from gpushare.kube.json_reader import Malformed, Reader

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.:]{0,251}[a-z0-9])?")


STATUS_APART = frozenset({Kind.PODS, Kind.NODES, Kind.BUDGETS, Kind.CLAIMS})
"""The status of these is written only through the subresource ``status``."""


def new_object(kind: Kind, body: Json, uid: str, moment: datetime) -> Json:
    """Return the new object for what a user sent; ``Invalid`` says what is wrong."""
    try:
        metadata = dict(Reader(body).object("metadata").raw)
        name = metadata.get("name") or _generated(metadata, uid)
    except Malformed as error:
        raise Invalid(str(error)) from error
    metadata |= {"name": name, "uid": uid, "creationTimestamp": timestamp(moment)}
    metadata.pop("deletionTimestamp", None)
    metadata.pop("resourceVersion", None)
    if kind.resource.namespaced:
        metadata["namespace"] = metadata.get("namespace") or "default"
    else:
        metadata.pop("namespace", None)
    thing = {**with_kind(kind, body), "metadata": metadata}
    check_object(kind, thing)
    if kind is Kind.PODS:
        thing["spec"] = with_requests(thing["spec"])
        thing["status"] = {"phase": "Pending"}
    return thing


def check_object(kind: Kind, thing: Json) -> None:
    """Raise ``Invalid`` for an object that a typed API rejects."""
    try:
        metadata = Reader(thing).object("metadata")
        _check_name(metadata, "name")
        if metadata.optional_text("namespace"):
            _check_name(metadata, "namespace")
        metadata.optional_object("labels").texts("")
        metadata.optional_object("annotations").texts("")
        status = Reader(thing).optional_object("status")
        for key in ("conditions", "containerStatuses", "initContainerStatuses"):
            status.optional_objects(key)
        if kind is Kind.PODS:
            _check_pod(Reader(thing).object("spec"))
    except Malformed as error:
        raise Invalid(str(error)) from error


def with_kind(kind: Kind, thing: Json) -> Json:
    """Return the object with the ``apiVersion`` and ``kind`` of its collection."""
    resource = kind.resource
    return {**thing, "apiVersion": resource.api_version, "kind": resource.kind}


def containers(spec: Reader) -> Iterator[Reader]:
    """Read a pod's containers, init containers first."""
    for key in ("initContainers", "containers"):
        yield from spec.optional_objects(key)


def with_requests(spec: Json) -> Json:
    """Return a pod's spec with missing requests set from limits; all as text."""
    return spec | {
        key: [_with_requests(container) for container in spec[key]]
        for key in ("initContainers", "containers")
        if spec.get(key)
    }


def _with_requests(container: Json) -> Json:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    defaulted = {"limits": limits, "requests": {**limits, **requests}}
    texts = {
        part: {resource: str(amount) for resource, amount in amounts.items()}
        for part, amounts in defaulted.items()
        if amounts
    }
    return container | ({"resources": resources | texts} if texts else {})


def _check_name(metadata: Reader, key: str) -> None:
    if not _NAME.fullmatch(metadata.text(key)):
        raise Malformed(metadata.path(key), f"{metadata.raw[key]!r} is no name")


def _generated(metadata: Json, uid: str) -> str:
    prefix = Reader(metadata, "metadata").optional_text("generateName")
    if not prefix:
        raise Malformed("metadata.name", "name or generateName is required")
    return f"{prefix}{uid[-5:]}"


def _check_pod(spec: Reader) -> None:
    if not spec.objects("containers"):
        raise Malformed(spec.path("containers"), "must name at least one")
    for container in containers(spec):
        container.text("name")
        resources = container.optional_object("resources")
        resources.optional_object("requests")
        resources.optional_object("limits")


DEFAULT_GRACE_S = 30
_KEPT = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "resourceVersion",
)
"""Metadata that users cannot change."""


def updated_object(kind: Kind, before: Json, after: Json, subresource: str) -> Json:
    """Return the object after a write; ``Invalid`` if the write is not allowed.

    A write to ``status`` changes nothing else, and other writes do not change it.
    """
    check_object(kind, after)
    _check_same_thing(before["metadata"], after["metadata"])
    if subresource == "status":
        return {**before, "status": after.get("status") or {}}
    kept = {key: before["metadata"].get(key) for key in _KEPT}
    metadata = {key: value for key, value in kept.items() if value is not None}
    given = {k: v for k, v in after["metadata"].items() if k not in _KEPT}
    result = {**with_kind(kind, after), "metadata": given | metadata}
    if kind in STATUS_APART:
        result.pop("status", None)
        result |= {"status": before["status"]} if "status" in before else {}
    if kind is Kind.PODS:
        result["spec"] = with_requests(after["spec"])
        if _fixed(before["spec"]) != _fixed(result["spec"]):
            message = "a pod's node, containers and resources may not be changed"
            raise Invalid(f"spec: {message}")
    return result


def check_precondition(thing: Json, uid: str, version: str = "") -> None:
    """Raise ``Conflict`` unless UID and version match, as far as given."""
    metadata = thing["metadata"]
    for what, wanted, actual in (
        ("UID", uid, metadata["uid"]),
        ("ResourceVersion", version, metadata["resourceVersion"]),
    ):
        if wanted and wanted != actual:
            raise Conflict(
                f"Precondition failed: {what} in precondition: {wanted}, "
                f"{what} in object meta: {actual}"
            )


def terminating_pod(
    pod: Json, grace_period_s: int | None, moment: datetime
) -> Json | None:
    """Return the terminating pod, or None if it is deleted at once.

    ``grace_period_s`` None is the pod's own grace period. The period of a terminating
    pod can only be shortened.
    """
    grace = _grace(pod) if grace_period_s is None else max(0, grace_period_s)
    terminal = pod.get("status", {}).get("phase") in TERMINAL
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


def bound_pod(
    pod: Json, node: str, annotations: Mapping[str, str], moment: datetime
) -> Json:
    """Return the pod bound to a node, annotations merged; ``Conflict`` if forbidden.

    The node need not exist (contracts 1.5).
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if problem := _unbindable(metadata, spec):
        raise Conflict(
            f'Operation cannot be fulfilled on pods/binding "{metadata["name"]}": '
            f"pod {metadata['name']} {problem}"
        )
    merged = {**(metadata.get("annotations") or {}), **annotations}
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": timestamp(moment),
    }
    status = pod.get("status") or {}
    there = status.get("conditions") or []
    others = [item for item in there if item.get("type") != "PodScheduled"]
    return {
        **pod,
        "metadata": metadata | ({"annotations": merged} if merged else {}),
        "spec": spec | {"nodeName": node},
        "status": status | {"conditions": [*others, scheduled]},
    }


def _fixed(spec: Json) -> tuple[object, ...]:
    resources = [
        (container.raw["name"], container.raw.get("resources") or {})
        for container in containers(Reader(spec))
    ]
    return spec.get("nodeName"), resources


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


_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "conditions": "type",
    "addresses": "type",
    "ownerReferences": "uid",
}
_DIRECTIVE = "$"


def merge_patch(target: Json, patch: Json, *, strategic: bool = False) -> Json:
    """Return the target with the patch applied; null removes a key."""
    merged = dict(target)
    for key, value in patch.items():
        if strategic and key.startswith(_DIRECTIVE):
            continue
        if value is None:
            merged.pop(key, None)
        else:
            old = merged.get(key)
            merged[key] = _merged(old, value, _MERGE_KEYS.get(key), strategic)
    return merged


def _merged(old: object, new: Any, by: str | None, strategic: bool) -> Any:  # noqa: ANN401, FBT001
    if isinstance(new, dict):
        return merge_patch(
            old if isinstance(old, dict) else {}, new, strategic=strategic
        )
    if strategic and by and _objects(old) and _objects(new):
        return _merged_lists(old, new, by)
    return new


def _objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(member, dict) for member in value)


def _merged_lists(old: Any, new: Any, by: str) -> list[Json]:  # noqa: ANN401
    """Merge members by key; append new ones, remove deleted ones."""
    by_key = {member.get(by): member for member in old}
    for member in new:
        key = member.get(by)
        if member.get("$patch") == "delete":
            by_key.pop(key, None)
        else:
            by_key[key] = merge_patch(by_key.get(key, {}), member, strategic=True)
    return list(by_key.values())


RETRY_AFTER_S = 10.0
"""``Retry-After`` of the API server when a budget forbids an eviction."""
_DISRUPTS_NOBODY = ("Pending", "Succeeded", "Failed")


def spares_budgets(pod: Json) -> bool:
    """Return whether budgets are ignored: the pod does not run, or is terminating."""
    phase = (pod.get("status") or {}).get("phase")
    return phase in _DISRUPTS_NOBODY or "deletionTimestamp" in pod["metadata"]


def covering_budget(pod: Json, budgets: Iterable[Json]) -> Json | None:
    """Return the budget that covers a pod; ``Unavailable`` if there are several.

    The real API server answers 500 as well.
    """
    record = read_pod_record(pod)
    covering = [
        budget for budget in budgets if codec.read_budgets([budget], [record])[0].pods
    ]
    if len(covering) > 1:
        raise Unavailable(
            "This pod has more than one PodDisruptionBudget, which the eviction "
            "subresource does not support."
        )
    return covering[0] if covering else None


def spent_budget(budget: Json, pod: Json, moment: datetime) -> Json:
    """Return the budget after the pod's eviction; ``Throttled`` if it allows none.

    A pod that is not ready does not count while enough others are ready.
    """
    status = Reader(budget).optional_object("status")
    wanted = status.optional_integer("desiredHealthy")
    if not is_ready(pod) and 0 < wanted <= status.optional_integer("currentHealthy"):
        return budget
    name = budget["metadata"]["name"]
    generation = budget["metadata"].get("generation") or 0
    if status.optional_integer("observedGeneration") < generation:
        raise _no_more(f"The disruption budget {name} is still being processed.")
    allowed = status.optional_integer("disruptionsAllowed")
    if allowed < 0:
        raise Forbidden("pdb disruptions allowed is negative")
    if allowed == 0:
        raise _no_more(f"The disruption budget {name} allows no more now.")
    disrupted = status.optional_object("disruptedPods").raw
    disrupted = {**disrupted, pod["metadata"]["name"]: timestamp(moment)}
    changed = {"disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}
    return {**budget, "status": {**status.raw, **changed}}


def _no_more(why: str) -> Throttled:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return Throttled(f"{message} {why}", RETRY_AFTER_S)
