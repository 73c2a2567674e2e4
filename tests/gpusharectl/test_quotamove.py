"""A quota's number under another name, and what befalls quotas in odd states."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kube.cluster import Json
from gpushare.kube.errors import Invalid
from gpushare.kube.objects import Ref
from gpusharectl.quota import Clash, Move, Names, move
from tests.gpusharectl.install.fake_objects import FakeObjects
from tests.gpusharectl.quotascenes import BITFUSION, CORE, MEMORY, quota

MOVED = Names(BITFUSION, CORE)
KEPT = Names(BITFUSION, CORE, keep=True)


def kept(body: Json) -> tuple[FakeObjects, Ref]:
    objects = FakeObjects()
    ref = Ref.of(objects.create(body))
    return objects, ref


def hard_after(body: Json, names: Names) -> dict[str, str]:
    """What an API server makes of the move; of none at all what is there."""
    objects, ref = kept(body)
    planned = move(body, names)
    if isinstance(planned, Move):
        objects.json_patch(ref, planned.steps)
    found = objects.get(ref)
    assert found is not None
    return dict(found["spec"]["hard"])


@pytest.mark.parametrize(
    ("hard", "names", "after"),
    [
        ({BITFUSION: "100"}, MOVED, {CORE: "100"}),
        ({BITFUSION: "100"}, KEPT, {BITFUSION: "100", CORE: "100"}),
        ({BITFUSION: "1k", "pods": "3"}, MOVED, {CORE: "1k", "pods": "3"}),
        ({BITFUSION: "0"}, MOVED, {CORE: "0"}),
        ({BITFUSION: "100", CORE: "100"}, MOVED, {CORE: "100"}),
        ({BITFUSION: "1k", CORE: "1000"}, MOVED, {CORE: "1000"}),
        ({BITFUSION: "100", MEMORY: "9"}, MOVED, {CORE: "100", MEMORY: "9"}),
    ],
)
def test_the_number_stays(
    hard: dict[str, str], names: Names, after: dict[str, str]
) -> None:
    """Only the name is new; all other bounds are as they were."""
    assert hard_after(quota("edge", hard=hard), names) == after


@pytest.mark.parametrize(
    ("hard", "names"),
    [
        ({}, MOVED),
        ({"pods": "3"}, MOVED),
        ({CORE: "100"}, MOVED),
        ({CORE: "100"}, KEPT),
        ({BITFUSION: "100", CORE: "100"}, KEPT),
        ({BITFUSION: "0.1k", CORE: "100"}, KEPT),
    ],
)
def test_nothing_is_left_to_do(hard: dict[str, str], names: Names) -> None:
    assert move(quota("edge", hard=hard), names) is None


@pytest.mark.parametrize("names", [MOVED, KEPT])
@pytest.mark.parametrize("number", ["50", "1k", "0.5", "nonsense"])
def test_two_numbers_are_a_persons_to_choose_from(number: str, names: Names) -> None:
    """Neither is written over: whoever made the second one meant it."""
    body = quota("edge", hard={BITFUSION: "100", CORE: number})
    assert move(body, names) == Clash(Ref.of(body), "100", number)
    assert hard_after(body, names) == {BITFUSION: "100", CORE: number}


@given(
    st.dictionaries(
        st.sampled_from([BITFUSION, CORE, MEMORY, "pods", "requests.cpu"]),
        st.sampled_from(["0", "1", "100", "0.1k", "2k", "500m"]),
    ),
    st.booleans(),
)
def test_the_second_time_changes_nothing(hard: dict[str, str], keep: bool) -> None:
    """Whatever was there: what a run leaves, the next one leaves too."""
    names = Names(BITFUSION, CORE, keep)
    once = hard_after(quota("edge", hard=hard), names)
    again = quota("edge", hard=once)
    assert not isinstance(move(again, names), Move)
    assert hard_after(again, names) == once
    others = {key: value for key, value in hard.items() if key not in (BITFUSION, CORE)}
    assert others.items() <= once.items()


def test_a_bound_that_changed_meanwhile_is_not_written_over() -> None:
    """The API server refuses the patch; what is used may change at any time."""
    body = quota("edge", hard={BITFUSION: "100"}, used={BITFUSION: "0"})
    planned = move(body, MOVED)
    assert isinstance(planned, Move)
    objects, ref = kept(body)
    objects.merge(ref, {"spec": {"hard": {BITFUSION: "300"}}})
    with pytest.raises(Invalid):
        objects.json_patch(ref, planned.steps)
    objects.merge(ref, {"spec": {"hard": {BITFUSION: "100"}}})
    objects.merge(ref, {"status": {"used": {BITFUSION: "50"}}}, subresource="status")
    assert objects.json_patch(ref, planned.steps)["spec"]["hard"] == {CORE: "100"}


@pytest.mark.parametrize("broken", [{}, {"spec": None}, {"spec": {"hard": None}}])
def test_a_quota_without_bounds(broken: dict[str, Any]) -> None:
    body = quota("edge", hard={})
    del body["spec"]
    assert move({**deepcopy(body), **broken}, MOVED) is None
