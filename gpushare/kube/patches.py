"""Merging a patch into an object, without changing either. Pure.

JSON merge patch is RFC 7396. Of the strategic one there is what clients send for pods
and nodes: lists of objects are merged by their key, directives for order are dropped
(``k8s.io/apimachinery/pkg/util/strategicpatch``, keys from ``k8s.io/api/core/v1``).
"""

from typing import Any

from gpushare.kube.cluster import Json

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


def merge(target: Json, patch: Json, *, strategic: bool = False) -> Json:
    """Give the target with the patch laid over it; null takes a key away."""
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
        return merge(old if isinstance(old, dict) else {}, new, strategic=strategic)
    if strategic and by and _objects(old) and _objects(new):
        return _merged_lists(old, new, by)
    return new


def _objects(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(one, dict) for one in found)


def _merged_lists(old: Any, new: Any, by: str) -> list[Json]:  # noqa: ANN401
    """Merge members of the same key in place; new ones go behind, deleted ones out."""
    found = {one.get(by): one for one in old}
    for one in new:
        key = one.get(by)
        if one.get("$patch") == "delete":
            found.pop(key, None)
        else:
            found[key] = merge(found.get(key, {}), one, strategic=True)
    return list(found.values())
