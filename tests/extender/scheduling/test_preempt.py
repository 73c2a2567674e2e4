"""preempt: which proposals of kube-scheduler are kept, mended or dropped."""

import pytest

from extender.scheduling.service import preempt
from gpushare.domain.model import HostAmount, NodeName, PodUID
from gpushare.domain.preemption import Budget, Facts, Victims
from tests.builders import FIRST_FIT, cards, node, placement, request, roomy

N = NodeName("n")
PAGE = node(
    *cards(20, 20),
    holds=[
        placement("a", 0, 10),
        placement("b", 0, 10),
        placement("c", 1, 15),
        placement("vip", 1, 5, priority=100),
    ],
)


def victims(*names: str, broken: int = 0) -> Victims:
    return Victims(tuple(PodUID(f"uid-{name}") for name in names), broken)


def choose(
    units: int, proposal: Victims, *budgets: Budget, on: NodeName = N
) -> dict[NodeName, Victims]:
    asked = request("high", units=units, priority=10, host=HostAmount())
    facts = Facts(roomy(), budgets)
    return preempt(asked, {on: proposal}, {N: PAGE}.get, FIRST_FIT, facts)


@pytest.mark.parametrize(
    ("units", "proposal", "chosen"),
    [
        pytest.param(10, victims("a"), victims("a"), id="frees-a-card-is-kept"),
        pytest.param(15, victims("a", "c"), victims("a", "c"), id="kept-word-for-word"),
        pytest.param(20, victims("a", "c"), victims("a", "b"), id="mended"),
        pytest.param(15, victims("b"), victims("c"), id="the-fewest-on-one-card"),
        pytest.param(
            10, victims("b", broken=3), victims("b", broken=3), id="violations"
        ),
    ],
)
def test_victims_must_free_one_card(
    units: int, proposal: Victims, chosen: Victims
) -> None:
    """Kept where they do; others where not; never a pod of the same rank or higher."""
    found = choose(units, proposal)[N]
    assert set(found.uids) == set(chosen.uids)
    assert found.budget_violations == chosen.budget_violations


@pytest.mark.parametrize(
    ("units", "proposal", "on"),
    [
        pytest.param(21, victims("a", "b", "c"), N, id="no-card-is-so-large"),
        pytest.param(1, victims("a"), NodeName("unknown"), id="unknown-node"),
        pytest.param(0, victims(), N, id="no-victims-at-all"),
    ],
)
def test_a_node_where_evicting_does_not_help_is_left_out(
    units: int, proposal: Victims, on: NodeName
) -> None:
    """kube-scheduler takes a node with no victims for an error (contracts 1.3)."""
    assert choose(units, proposal, on=on) == {}


def test_victims_without_shares_stay_victims() -> None:
    """They were chosen for something of the node that is not seen here."""
    found = choose(20, victims("cpu-hog", "a"))[N]
    assert set(found.uids) == {"uid-cpu-hog", "uid-a", "uid-b"}


def test_budgets_are_kept_where_they_can_be() -> None:
    """The card of pods that may not be disturbed is cleared last."""
    kept = Budget(frozenset({PodUID("uid-c")}), 0)
    found = choose(15, victims("vip"), kept)[N]
    assert set(found.uids) == {"uid-a", "uid-b"}
    assert found.budget_violations == 0
