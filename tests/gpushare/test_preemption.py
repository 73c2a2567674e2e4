"""Which pods to evict so that one card comes free."""

import pytest

from gpushare.domain.model import Placement, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.preemption import Budget, Victims, choose_victims, violating
from tests.builders import (
    FIRST_FIT,
    apart,
    card,
    cards,
    claim,
    node,
    placement,
    ref,
    request,
    share,
)


def low(name: str, on: int, units: int, priority: int = 1, cores: int = 0) -> Placement:
    """A pod that may be evicted by those of priority 10."""
    return placement(name, on, units, cores, priority=priority)


def asks(units: int = 0, cores: int = 0) -> PodRequest:
    return request("asks", units, cores, priority=10)


def victims(*names: str, violations: int = 0) -> Victims:
    return Victims(tuple(PodUID(f"uid-{name}") for name in names), violations)


def budget(allowed: int, *names: str) -> Budget:
    return Budget(frozenset(PodUID(f"uid-{name}") for name in names), allowed)


FRAGMENTED = node(
    *cards(29, 29),
    holds=[low("a0", 0, 10), low("b0", 0, 15), low("a1", 1, 20), low("b1", 1, 5)],
)
"""4 units free on each card."""


def test_a_proposal_that_makes_room_is_kept() -> None:
    """Though a smaller or cheaper one might be found."""
    proposal = victims("a1", "b1")
    assert choose_victims(asks(20), FRAGMENTED, proposal, FIRST_FIT) == proposal


def test_a_proposals_violations_are_kept_with_it() -> None:
    """They are kube-scheduler's count."""
    proposal = victims("a1", violations=3)
    assert choose_victims(asks(20), FRAGMENTED, proposal, FIRST_FIT) == proposal


def test_victims_on_the_wrong_cards_are_replaced() -> None:
    """10 + 5 units go free by totals, but on two cards; one pod of 20 would do."""
    proposal = victims("a0", "b1")
    found = choose_victims(asks(24), FRAGMENTED, proposal, FIRST_FIT)
    assert found == victims("a1")


def test_no_more_pods_go_than_must() -> None:
    """Of the cleared card, those live whose room is not needed."""
    found = choose_victims(asks(19), FRAGMENTED, victims("b1"), FIRST_FIT)
    assert found == victims("b0")


@pytest.mark.parametrize(
    ("priorities", "chosen"),
    [((1, 2), "a"), ((2, 1), "b"), ((1, 1), "a"), ((-5, 1), "a")],
    ids=["a is less important", "b is", "first card of equals", "negative"],
)
def test_the_card_with_the_least_important_pods_is_cleared(
    priorities: tuple[int, int], chosen: str
) -> None:
    """Highest priority first, as kube-scheduler compares nodes."""
    page = node(
        *cards(29, 29),
        holds=[low("a", 0, 20, priorities[0]), low("b", 1, 20, priorities[1])],
    )
    proposal = Victims((PodUID("uid-elsewhere"),))
    found = choose_victims(asks(20), page, proposal, FIRST_FIT)
    assert found == victims("elsewhere", chosen)


def test_pods_without_shares_stay_victims() -> None:
    """They were chosen for CPU or memory of the node."""
    proposal = victims("cpu-hog", "a0")
    found = choose_victims(asks(24), FRAGMENTED, proposal, FIRST_FIT)
    assert found == victims("cpu-hog", "a1")


@pytest.mark.parametrize("priority", [10, 11, 2_000_000_000])
def test_pods_of_equal_or_higher_priority_are_never_chosen(priority: int) -> None:
    """Not even when theirs is the only card that would do."""
    page = node(*cards(29, 10), holds=[low("vip", 0, 20, priority), low("a", 1, 10)])
    assert choose_victims(asks(20), page, victims("a"), FIRST_FIT) is None


def test_a_card_shared_with_an_important_pod_is_cleared_around_it() -> None:
    """The important one stays, if its room is not needed."""
    page = node(holds=[low("vip", 0, 9, 99), low("a", 0, 10), low("b", 0, 10)])
    found = choose_victims(asks(20), page, victims("a"), FIRST_FIT)
    assert found is not None
    assert set(found.uids) == {"uid-a", "uid-b"}


@pytest.mark.parametrize(
    "page",
    [
        node(card(units=10)),
        node(card(healthy=False)),
        node(holds=[low("v", 0, 10, 99)]),
    ],
    ids=["card too small", "card sick", "important pod in the way"],
)
def test_hopeless_nodes_are_dropped(page: Node) -> None:
    """Evicting pods of lower priority does not help there."""
    assert choose_victims(asks(20), page, victims("x"), FIRST_FIT) is None


@pytest.mark.parametrize(
    ("cores", "chosen"),
    [(100, {"uid-b"}), (200, {"uid-b", "uid-c", "uid-d"}), (300, None)],
)
def test_whole_cards_are_cleared_of_all_their_pods(
    cores: int, chosen: set[str] | None
) -> None:
    """The cheapest cards that hold nobody important."""
    page = node(
        *cards(29, 29, 29),
        holds=[low("vip", 0, 1, 99), low("b", 1, 5), low("c", 2, 5, 2), low("d", 2, 5)],
    )
    found = choose_victims(asks(0, cores), page, victims("x"), FIRST_FIT)
    assert (found and set(found.uids) - {"uid-x"}) == chosen


def test_whole_cards_must_hold_the_units_asked() -> None:
    """The small card's pod is spared, when only the large card will do."""
    page = node(*cards(16, 94), holds=[low("a", 0, 1), low("b", 1, 1, 2)])
    found = choose_victims(asks(60, 100), page, victims("x"), FIRST_FIT)
    assert found == victims("x", "b")


def test_a_pod_on_several_cards_is_one_victim() -> None:
    """Clearing one of its cards clears all of them."""
    both = placement("w", shares=[share(0, 29, 100), share(1, 29, 100)], priority=1)
    page = node(*cards(29, 29), holds=[both])
    found = choose_victims(asks(0, 200), page, victims("x"), FIRST_FIT)
    assert found == victims("x", "w")


def test_apart_containers_get_a_card_each() -> None:
    """Both cards must be cleared: one of them has room for one container only."""
    page = node(*cards(29, 29), holds=[low("a", 0, 20), low("b", 1, 20)])
    found = choose_victims(
        apart("asks", 20, 20, priority=10), page, victims("x"), FIRST_FIT
    )
    assert found is not None
    assert set(found.uids) == {"uid-x", "uid-a", "uid-b"}


def test_a_share_and_a_whole_card_are_cleared_for_together() -> None:
    """The share may not sit on the card that the other container needs for itself."""
    page = node(*cards(29, 29), holds=[low("a", 0, 20), low("b", 1, 20)])
    both = [claim(0, 100, container="w"), claim(20, container="s")]
    asked = request("asks", claims=both, priority=10)
    found = choose_victims(asked, page, victims("x"), FIRST_FIT)
    assert found is not None
    assert set(found.uids) == {"uid-x", "uid-a", "uid-b"}


def test_pods_under_a_budget_go_last() -> None:
    """The card whose pods may go is cleared, though the other's matter less."""
    page = node(*cards(29, 29), holds=[low("a", 0, 20, 1), low("b", 1, 20, 5)])
    found = choose_victims(asks(20), page, victims("x"), FIRST_FIT, [budget(0, "a")])
    assert found == victims("x", "b")


def test_a_protected_pod_lives_where_another_will_do() -> None:
    """On one card, the pod without a budget goes, though it matters more."""
    page = node(holds=[low("safe", 0, 14, 1), low("other", 0, 14, 5)])
    found = choose_victims(asks(14), page, victims("x"), FIRST_FIT, [budget(0, "safe")])
    assert found == victims("x", "other")


def test_a_budget_is_broken_where_nothing_else_helps() -> None:
    """And the number of breaches is told."""
    page = node(holds=[low("a", 0, 14), low("b", 0, 14)])
    found = choose_victims(
        asks(29), page, victims("x"), FIRST_FIT, [budget(1, "a", "b")]
    )
    assert found is not None
    assert set(found.uids) == {"uid-x", "uid-a", "uid-b"}
    assert found.budget_violations == 1


@pytest.mark.parametrize(
    ("budgets", "beyond"),
    [
        ([], set()),
        ([budget(2, "a", "b")], set()),
        ([budget(1, "a", "b")], {"uid-b"}),
        ([budget(0, "a", "b")], {"uid-a", "uid-b"}),
        ([budget(0, "other")], set()),
        ([budget(1, "a", "c"), budget(0, "b")], {"uid-b", "uid-c"}),
        ([budget(-1, "c")], {"uid-c"}),
        ([budget(1, "a"), budget(1, "a"), budget(0, "a")], {"uid-a"}),
    ],
    ids=[
        "no budgets",
        "enough",
        "the later one",
        "none may go",
        "of others",
        "two budgets",
        "overdrawn",
        "twice covered",
    ],
)
def test_evictions_beyond_a_budget(budgets: list[Budget], beyond: set[str]) -> None:
    """Counted in order; a pod under several budgets is one breach."""
    uids = [PodUID(f"uid-{name}") for name in "abc"]
    assert violating(uids, budgets) == beyond


def test_the_nominated_pods_own_room_is_not_in_its_way() -> None:
    """A pod that preempts again sees what was kept for it as free."""
    kept = placement("asks", 0, 25, priority=10)
    page = node(holds=[low("a", 0, 10)], nominated=[kept])
    found = choose_victims(asks(25), page, victims("a"), FIRST_FIT)
    assert found == victims("a")


def test_room_kept_for_an_equal_is_not_taken() -> None:
    """Evicting is of no use where the room is promised to another."""
    kept = placement("other", 0, 25, priority=10)
    page = node(holds=[low("a", 0, 4)], nominated=[kept])
    assert choose_victims(asks(20), page, victims("a"), FIRST_FIT) is None


def test_a_pod_on_nobody_knows_which_card_leaves_them_all() -> None:
    """One such victim does for any card; the others may stay."""
    page = node(
        *cards(29, 29),
        holds=[low("a", 0, 10, 5), low("b", 1, 10, 5)],
        unplaced=[request("lost", 15, priority=1)],
    )
    found = choose_victims(asks(15), page, victims("a"), FIRST_FIT)
    assert found == victims("lost")


def test_a_more_important_pod_on_nobody_knows_which_card_stays() -> None:
    """What it may hold is out of reach on every card."""
    page = node(
        *cards(29, 29),
        holds=[low("a", 0, 10)],
        unplaced=[request("lost", 15, priority=20)],
    )
    assert choose_victims(asks(20), page, victims("a"), FIRST_FIT) is None
    assert choose_victims(asks(0, 100), page, victims("a"), FIRST_FIT) is None
    assert choose_victims(asks(14), page, victims("a"), FIRST_FIT) == victims("a")


def test_a_whole_card_needs_the_pods_on_nobody_knows_which_card_gone() -> None:
    """Beside those that sit on the card for sure."""
    page = node(
        *cards(29, 29),
        holds=[low("a", 0, 1), low("b", 1, 1, 5)],
        unplaced=[request("lost", 1, priority=2)],
    )
    found = choose_victims(asks(0, 100), page, victims("b"), FIRST_FIT)
    assert found is not None
    assert set(found.uids) == {ref("a").uid, ref("lost").uid}


def test_nobody_is_evicted_from_a_cordoned_card() -> None:
    """It would not be open afterwards either."""
    page = node(
        card(0, cordoned=True), card(1), holds=[low("a", 0, 10), low("b", 1, 10)]
    )
    found = choose_victims(asks(29), page, victims("a"), FIRST_FIT)
    assert found == victims("b")
    alone = node(card(0, cordoned=True), holds=[low("a", 0, 10)])
    assert choose_victims(asks(29), alone, victims("a"), FIRST_FIT) is None
