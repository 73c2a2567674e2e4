"""Changing an object by steps (JSON patch, RFC 6902), without changing the old. Pure.

The steps that our manifests use: ``add``, ``replace`` and ``test``.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from gpushare.kube.cluster import Json


class PatchError(ValueError):
    """A step cannot be taken; the message says which, and why."""


def patched(body: Json, steps: Sequence[Json]) -> Json:
    """Give the object after all steps; ``PatchError`` where one cannot be taken."""
    if not isinstance(steps, list):
        raise PatchError("a list of steps is wanted")
    found = deepcopy(body)
    for number, step in enumerate(steps, 1):
        try:
            _take(found, step)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            said = error if isinstance(error, PatchError) else repr(error)
            raise PatchError(f"step {number}, {step}: {said}") from error
    return found


def _take(found: Json, step: Json) -> None:
    *way, last = _keys(step["path"])
    place: Any = found
    for key in way:
        place = place[int(key)] if isinstance(place, list) else place[key]
    value = deepcopy(step["value"])
    match step["op"]:
        case "add":
            _add(place, last, value)
        case "replace":
            place[_there(place, last)] = value
        case "test":
            _test(place[_there(place, last)], value)
        case _:
            raise PatchError("only add, replace and test are known here")


def _keys(path: str) -> list[str]:
    if not path.startswith("/"):
        raise PatchError("the path must begin with /")
    # In this order, or ~01 would become a slash.
    return [key.replace("~1", "/").replace("~0", "~") for key in path[1:].split("/")]


def _add(place: Any, key: str, value: object) -> None:  # noqa: ANN401
    if not isinstance(place, list):
        place[key] = value
    elif key == "-":
        place.append(value)
    elif int(key) > len(place):
        raise PatchError(f"the list has {len(place)} members only")
    else:
        place.insert(int(key), value)


def _there(place: Any, key: str) -> str | int:  # noqa: ANN401
    """Give the key or index of something that is there."""
    found: str | int = int(key) if isinstance(place, list) else key
    _ = place[found]
    return found


def _test(found: object, value: object) -> None:
    if found != value:
        raise PatchError(f"there is {found!r}")
