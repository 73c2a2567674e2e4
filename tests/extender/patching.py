"""A small, strict applier of JSON patches: what does not fit is an error."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any


def patched(body: Any, steps: Sequence[dict[str, Any]]) -> Any:
    """Give the object after all steps (RFC 6902); ``LookupError`` where one misses."""
    found = deepcopy(body)
    for step in steps:
        assert step["path"].startswith("/"), step
        *way, last = [unescaped(key) for key in step["path"].split("/")[1:]]
        place = found
        for key in way:
            place = place[index(place, key)]
        if step["op"] == "add":
            add(place, last, deepcopy(step["value"]))
        elif step["op"] == "replace":
            assert place[index(place, last)] is not Ellipsis
            place[index(place, last)] = deepcopy(step["value"])
        else:
            assert step == {"op": "remove", "path": step["path"]}
            del place[index(place, last)]
    return found


def add(place: Any, key: str, value: Any) -> None:
    if isinstance(place, dict):
        place[key] = value
    elif key == "-":
        place.append(value)
    else:
        assert int(key) <= len(place), key
        place.insert(int(key), value)


def index(place: Any, key: str) -> Any:
    if isinstance(place, list):
        assert str(int(key)) == key
        return int(key)
    assert isinstance(place, dict)
    return key


def unescaped(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")
