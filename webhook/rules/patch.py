"""The patch of a review's answer. Pure.

The rules change a copy of the pod. The JSON patch (RFC 6902) of the answer is the
difference between the two, so it always fits the object that arrived.
"""

from typing import Any

from gpushare.kube.cluster import Json


def patch_between(before: Json, after: Json) -> list[Json]:
    """Return the steps that make ``after`` out of ``before``; empty if they are equal.

    The steps are ``add``, ``replace`` and ``remove``. A missing object is added whole,
    so no step needs a parent that another step makes. Lists are compared index by
    index: items are added and removed at the end.
    """
    steps: list[Json] = []
    _compare("", before, after, steps)
    return steps


def _compare(path: str, old: Any, new: Any, steps: list[Json]) -> None:  # noqa: ANN401
    if old is new:
        # Most parts of a pod: the copy shares what the rules do not change.
        return
    kind = type(old)
    # In Python, but not in JSON, true equals 1 and 1 equals 1.0.
    if kind is not type(new):
        steps.append({"op": "replace", "path": path, "value": new})
    elif kind is dict:
        _compare_objects(path, old, new, steps)
    elif kind is list:
        _compare_lists(path, old, new, steps)
    elif old != new:
        steps.append({"op": "replace", "path": path, "value": new})


def _compare_objects(path: str, before: Json, after: Json, steps: list[Json]) -> None:
    for key, old in before.items():
        if key not in after:
            steps.append({"op": "remove", "path": _pointer(path, key)})
        elif old is not after[key]:
            _compare(_pointer(path, key), old, after[key], steps)
    for key, new in after.items():
        if key not in before:
            steps.append({"op": "add", "path": _pointer(path, key), "value": new})


def _compare_lists(
    path: str, before: list[Any], after: list[Any], steps: list[Json]
) -> None:
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        _compare(f"{path}/{index}", old, new, steps)
    added = after[len(before) :]
    steps.extend({"op": "add", "path": f"{path}/-", "value": new} for new in added)
    # From the end, so that a removal moves no item that another step names.
    places = range(len(before) - 1, len(after) - 1, -1)
    steps.extend({"op": "remove", "path": f"{path}/{place}"} for place in places)


def _pointer(path: str, key: str) -> str:
    """Append a key to a JSON pointer (RFC 6901)."""
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
