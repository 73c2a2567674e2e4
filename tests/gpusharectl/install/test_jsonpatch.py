"""Steps over an object, as RFC 6902 has them."""

from copy import deepcopy

import pytest

from gpusharectl.install.jsonpatch import PatchError, patched

BODY = {"a": {"b~c/d": 1}, "list": [{"name": "first"}, {"name": "second"}]}


@pytest.mark.parametrize(
    ("step", "path", "expected"),
    [
        ({"op": "add", "path": "/new", "value": {"x": 1}}, "new", {"x": 1}),
        ({"op": "add", "path": "/a", "value": 2}, "a", 2),
        ({"op": "replace", "path": "/a/b~0c~1d", "value": 2}, "a", {"b~c/d": 2}),
        ({"op": "add", "path": "/list/-", "value": 3}, "list", [*BODY["list"], 3]),
        ({"op": "add", "path": "/list/0", "value": 3}, "list", [3, *BODY["list"]]),
        ({"op": "add", "path": "/list/2", "value": 3}, "list", [*BODY["list"], 3]),
        (
            {"op": "replace", "path": "/list/1/name", "value": "x"},
            "list",
            [{"name": "first"}, {"name": "x"}],
        ),
        ({"op": "test", "path": "/list/0/name", "value": "first"}, "a", BODY["a"]),
    ],
)
def test_a_step(step: dict[str, object], path: str, expected: object) -> None:
    """It changes what it names, and the old object stays."""
    before = deepcopy(BODY)
    assert patched(BODY, [step])[path] == expected
    assert before == BODY


def test_steps_follow_each_other() -> None:
    """A later one sees the earlier; what is added is the object's own."""
    value: dict[str, object] = {}
    steps = [
        {"op": "add", "path": "/new", "value": value},
        {"op": "add", "path": "/new/inner", "value": 1},
    ]
    assert patched(BODY, steps)["new"] == {"inner": 1}
    assert value == {}


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ({"op": "replace", "path": "/none", "value": 1}, "KeyError"),
        ({"op": "add", "path": "/none/inner", "value": 1}, "KeyError"),
        ({"op": "add", "path": "/list/3", "value": 1}, "has 2 members only"),
        ({"op": "replace", "path": "/list/-", "value": 1}, "invalid literal"),
        ({"op": "test", "path": "/list/0/name", "value": "x"}, "there is 'first'"),
        ({"op": "remove", "path": "/a", "value": 1}, "only add, replace and test"),
        ({"op": "add", "path": "a", "value": 1}, "must begin with /"),
        ({"op": "add", "path": "/a"}, "value"),
        ("add", "TypeError"),
    ],
)
def test_a_step_that_cannot_be_taken(step: dict[str, object], says: str) -> None:
    """It says which, and why."""
    with pytest.raises(PatchError, match=r"^step 1, .*: ") as caught:
        patched(BODY, [step])
    assert says in str(caught.value)


def test_no_list_of_steps() -> None:
    """A strategic merge patch, say."""
    with pytest.raises(PatchError, match="a list of steps is wanted"):
        patched(BODY, {"spec": {}})  # type: ignore[arg-type]
