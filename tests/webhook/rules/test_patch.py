"""The steps from one pod to another."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonpatch import apply_patch

from webhook.rules.review import patch_between

KEYS = st.text(alphabet="ab~/ .0-", max_size=3)
LEAVES = (
    st.none() | st.booleans() | st.integers(0, 2) | st.floats(0, 2) | st.text("ab~/")
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=15,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        ({}, {}, []),
        ({}, {"a": {"b": 1}}, [("add", "/a", {"b": 1})]),
        ({"a": {"x": 0}}, {"a": {"x": 0, "b": 1}}, [("add", "/a/b", 1)]),
        ({"a": 1}, {"a": 2}, [("replace", "/a", 2)]),
        ({"a": 1}, {"a": True}, [("replace", "/a", True)]),
        ({"a": 1}, {"a": 1.0}, [("replace", "/a", 1.0)]),
        ({"a": None}, {"a": {}}, [("replace", "/a", {})]),
        ({"a": 1, "b": 2}, {"b": 2}, [("remove", "/a")]),
        ({}, {"baidu.com/x~y": 1}, [("add", "/baidu.com~1x~0y", 1)]),
        ({"a": [1]}, {"a": [1, 2, 3]}, [("add", "/a/-", 2), ("add", "/a/-", 3)]),
        ({"a": [1, 2, 3]}, {"a": [1]}, [("remove", "/a/2"), ("remove", "/a/1")]),
        ({"a": [{"x": 1}]}, {"a": [{"x": 2}]}, [("replace", "/a/0/x", 2)]),
        ({"a": {"b": 1}}, {"a": [1]}, [("replace", "/a", [1])]),
    ],
)
def test_steps(before: Any, after: Any, steps: list[tuple[Any, ...]]) -> None:
    expected = [
        dict(zip(("op", "path", "value"), step, strict=False)) for step in steps
    ]
    assert patch_between(before, after) == expected


@settings(deadline=None)
@given(OBJECTS, OBJECTS)
def test_the_steps_lead_there(before: Any, after: Any) -> None:
    """From what arrived to what is wanted, true apart from 1, and 1 from 1.0."""
    kept = deepcopy(before)
    steps = patch_between(before, after)
    assert repr(apply_patch(before, steps)) == repr(ordered_as(after, before))
    assert before == kept


@settings(deadline=None)
@given(OBJECTS)
def test_no_steps_to_where_one_is(same: Any) -> None:
    assert patch_between(same, deepcopy(same)) == []


def ordered_as(after: Any, before: Any) -> Any:
    """Give an object its keys in the order in which a patch leaves them."""
    if isinstance(after, list):
        old = before if isinstance(before, list) else []
        return [
            ordered_as(one, old[place] if place < len(old) else None)
            for place, one in enumerate(after)
        ]
    if not isinstance(after, dict) or not isinstance(before, dict):
        return after
    keys = [key for key in before if key in after]
    keys += [key for key in after if key not in before]
    return {key: ordered_as(after[key], before.get(key)) for key in keys}
