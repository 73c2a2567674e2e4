"""The steps from one JSON document to another, as RFC 6902 has them. Pure.

Rules change a copy of the pod as they please; what the API server is sent comes from
the difference. So no step can be built on anything but the object that arrived.
"""

from typing import Any

from gpushare.kube.cluster import Json


def patch_between(before: Json, after: Json) -> list[Json]:
    """Give the steps that make ``after`` out of ``before``; none where they are equal.

    Only ``add``, ``replace`` and ``remove``. What is missing is added whole, so no step
    needs a parent that another one did not make. Lists are compared place by place:
    what is longer is added at the end, what is shorter is removed from the end.
    """
    steps: list[Json] = []
    _values("", before, after, steps)
    return steps


def _values(path: str, old: Any, new: Any, steps: list[Json]) -> None:  # noqa: ANN401
    if old is new:
        # Of most parts of a pod: a copy shares what it does not change.
        return
    kind = type(old)
    # In Python, but not in JSON, true is 1 and 1 is 1.0.
    if kind is not type(new):
        steps.append(_replace(path, new))
    elif kind is dict:
        _objects(path, old, new, steps)
    elif kind is list:
        _lists(path, old, new, steps)
    elif old != new:
        steps.append(_replace(path, new))


def _objects(path: str, before: Json, after: Json, steps: list[Json]) -> None:
    for key, old in before.items():
        if key not in after:
            steps.append({"op": "remove", "path": _under(path, key)})
        elif old is not after[key]:
            _values(_under(path, key), old, after[key], steps)
    for key, new in after.items():
        if key not in before:
            steps.append(_add(_under(path, key), new))


def _lists(path: str, before: list[Any], after: list[Any], steps: list[Json]) -> None:
    for place, (old, new) in enumerate(zip(before, after, strict=False)):
        _values(f"{path}/{place}", old, new, steps)
    steps.extend(_add(f"{path}/-", new) for new in after[len(before) :])
    # From the end, so that no removal moves what another one names.
    places = range(len(before) - 1, len(after) - 1, -1)
    steps.extend({"op": "remove", "path": f"{path}/{place}"} for place in places)


def _add(path: str, value: Any) -> Json:  # noqa: ANN401
    return {"op": "add", "path": path, "value": value}


def _replace(path: str, value: Any) -> Json:  # noqa: ANN401
    return {"op": "replace", "path": path, "value": value}


def _under(path: str, key: str) -> str:
    """Name what an object has under a key, as a JSON pointer does (RFC 6901)."""
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
