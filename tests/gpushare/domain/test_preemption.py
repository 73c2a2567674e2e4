"""Which pods to evict so that one card comes free."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain.hosts import Hosts
from gpushare.domain.model import HostAmount, Placement, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.placement import place
from gpushare.domain.preemption import (
    Budget,
    Facts,
    Victims,
    choose_victims,
    violating,
)
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


def cpu(milli: int) -> HostAmount:
    return HostAmount(milli, 0)


def hosts(capacity: int, **pods: tuple[int, int]) -> Hosts:
    """The book of one node: its CPU, and for each pod CPU and priority."""
    made = Hosts()
    made.set_allocatable(node().name, cpu(capacity))
    for name, (milli, priority) in pods.items():
        uid = PodUID(f"uid-{name}")
        made.hold(uid, node().name, cpu(milli), priority)
    return made


def choose(
    asked: PodRequest,
    page: Node,
    proposal: Victims,
    *budgets: Budget,
    book: Hosts | None = None,
    reserved: Collection[str] = (),
    started: Mapping[str, str] | None = None,
) -> Victims | None:
    """Choose victims on a host with room for all, where nothing else is said."""
    times = started or {}
    facts = Facts(
        book or hosts(1000),
        budgets,
        [PodUID(f"uid-{name}") for name in reserved],
        lambda uid: times.get(uid.removeprefix("uid-"), ""),
    )
    asked = replace(asked, host=asked.host or HostAmount())
    return choose_victims(asked, page, proposal, FIRST_FIT, facts)


FRAGMENTED = node(
    *cards(29, 29),
    holds=[low("a0", 0, 10), low("b0", 0, 15), low("a1", 1, 20), low("b1", 1, 5)],
)
"""4 units free on each card."""


def test_a_proposal_that_makes_room_is_kept() -> None:
    """Though a smaller or cheaper one might be found."""
    proposal = victims("a1", "b1")
    assert choose(asks(20), FRAGMENTED, proposal) == proposal


def test_a_proposals_violations_are_kept_with_it() -> None:
    """They are kube-scheduler's count."""
    proposal = victims("a1", violations=3)
    assert choose(asks(20), FRAGMENTED, proposal) == proposal


def test_victims_on_the_wrong_cards_are_replaced() -> None:
    """10 + 5 units go free by totals, but on two cards; one pod of 20 would do."""
    proposal = victims("a0", "b1")
    found = choose(asks(24), FRAGMENTED, proposal)
    assert found == victims("a1")


def test_no_more_pods_go_than_must() -> None:
    """Of the cleared card, those live whose room is not needed."""
    found = choose(asks(19), FRAGMENTED, victims("b1"))
    assert found == victims("b0")


def test_all_that_may_go_is_looked_at_where_no_card_alone_helps() -> None:
    """The 19 are cheapest on card 1, which the 28 need as a whole."""
    page = node(
        *cards(29, 29),
        holds=[
            placement("high", 0, 5, priority=20),
            low("a", 0, 20, priority=5),
            low("b", 1, 5),
            low("c", 1, 10),
        ],
    )
    found = choose(apart("asks", 19, 28, priority=10), page, victims("a", "c"))
    assert found == victims("a", "c", "b")


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
    found = choose(asks(20), page, proposal)
    assert found == victims("elsewhere", chosen)


def test_pods_without_shares_stay_victims() -> None:
    """They were chosen for something of the node that is not seen here."""
    proposal = victims("cpu-hog", "a0")
    found = choose(asks(24), FRAGMENTED, proposal)
    assert found == victims("cpu-hog", "a1")


@pytest.mark.parametrize("priority", [10, 11, 2_000_000_000])
def test_pods_of_equal_or_higher_priority_are_never_chosen(priority: int) -> None:
    """Not even when theirs is the only card that would do."""
    page = node(*cards(29, 10), holds=[low("vip", 0, 20, priority), low("a", 1, 10)])
    assert choose(asks(20), page, victims("a")) is None


def test_a_card_shared_with_an_important_pod_is_cleared_around_it() -> None:
    """The important one stays, if its room is not needed."""
    page = node(holds=[low("vip", 0, 9, 99), low("a", 0, 10), low("b", 0, 10)])
    found = choose(asks(20), page, victims("a"))
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
    assert choose(asks(20), page, victims("x")) is None


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
    found = choose(asks(0, cores), page, victims("x"))
    assert (found and set(found.uids) - {"uid-x"}) == chosen


def test_whole_cards_must_hold_the_units_asked() -> None:
    """The small card's pod is spared, when only the large card will do."""
    page = node(*cards(16, 94), holds=[low("a", 0, 1), low("b", 1, 1, 2)])
    found = choose(asks(60, 100), page, victims("x"))
    assert found == victims("x", "b")


def test_a_pod_on_several_cards_is_one_victim() -> None:
    """Clearing one of its cards clears all of them."""
    both = placement("w", shares=[share(0, 29, 100), share(1, 29, 100)], priority=1)
    page = node(*cards(29, 29), holds=[both])
    found = choose(asks(0, 200), page, victims("x"))
    assert found == victims("x", "w")


def test_apart_containers_get_a_card_each() -> None:
    """Both cards must be cleared: one of them has room for one container only."""
    page = node(*cards(29, 29), holds=[low("a", 0, 20), low("b", 1, 20)])
    found = choose(apart("asks", 20, 20, priority=10), page, victims("x"))
    assert found is not None
    assert set(found.uids) == {"uid-x", "uid-a", "uid-b"}


def test_a_share_and_a_whole_card_are_cleared_for_together() -> None:
    """The share may not sit on the card that the other container needs for itself."""
    page = node(*cards(29, 29), holds=[low("a", 0, 20), low("b", 1, 20)])
    both = [claim(0, 100, container="w"), claim(20, container="s")]
    asked = request("asks", claims=both, priority=10)
    found = choose(asked, page, victims("x"))
    assert found is not None
    assert set(found.uids) == {"uid-x", "uid-a", "uid-b"}


def test_pods_under_a_budget_go_last() -> None:
    """The card whose pods may go is cleared, though the other's matter less."""
    page = node(*cards(29, 29), holds=[low("a", 0, 20, 1), low("b", 1, 20, 5)])
    found = choose(asks(20), page, victims("x"), budget(0, "a"))
    assert found == victims("x", "b")


def test_a_protected_pod_lives_where_another_will_do() -> None:
    """On one card, the pod without a budget goes, though it matters more."""
    page = node(holds=[low("safe", 0, 14, 1), low("other", 0, 14, 5)])
    found = choose(asks(14), page, victims("x"), budget(0, "safe"))
    assert found == victims("x", "other")


def test_a_budget_is_broken_where_nothing_else_helps() -> None:
    """And the number of breaches is told."""
    page = node(holds=[low("a", 0, 14), low("b", 0, 14)])
    found = choose(asks(29), page, victims("x"), budget(1, "a", "b"))
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
    found = choose(asks(25), page, victims("a"))
    assert found == victims("a")


def test_room_kept_for_an_equal_is_not_taken() -> None:
    """Evicting is of no use where the room is promised to another."""
    kept = placement("other", 0, 25, priority=10)
    page = node(holds=[low("a", 0, 4)], nominated=[kept])
    assert choose(asks(20), page, victims("a")) is None


def test_a_pod_on_nobody_knows_which_card_leaves_them_all() -> None:
    """One such victim does for any card; the others may stay."""
    page = node(
        *cards(29, 29),
        holds=[low("a", 0, 10, 5), low("b", 1, 10, 5)],
        unplaced=[request("lost", 15, priority=1)],
    )
    found = choose(asks(15), page, victims("a"))
    assert found == victims("lost")


def test_a_more_important_pod_on_nobody_knows_which_card_stays() -> None:
    """What it may hold is out of reach on every card."""
    page = node(
        *cards(29, 29),
        holds=[low("a", 0, 10)],
        unplaced=[request("lost", 15, priority=20)],
    )
    assert choose(asks(20), page, victims("a")) is None
    assert choose(asks(0, 100), page, victims("a")) is None
    assert choose(asks(14), page, victims("a")) == victims("a")


def test_a_whole_card_needs_the_pods_on_nobody_knows_which_card_gone() -> None:
    """Beside those that sit on the card for sure."""
    page = node(
        *cards(29, 29),
        holds=[low("a", 0, 1), low("b", 1, 1, 5)],
        unplaced=[request("lost", 1, priority=2)],
    )
    found = choose(asks(0, 100), page, victims("x"))
    assert found is not None
    assert set(found.uids) == {"uid-x", ref("a").uid, ref("lost").uid}


def test_nobody_is_evicted_from_a_cordoned_card() -> None:
    """It would not be open afterwards either."""
    page = node(
        card(0, cordoned=True), card(1), holds=[low("a", 0, 10), low("b", 1, 10)]
    )
    found = choose(asks(29), page, victims("a"))
    assert found == victims("b")
    alone = node(card(0, cordoned=True), holds=[low("a", 0, 10)])
    assert choose(asks(29), alone, victims("a")) is None


def test_the_most_important_victim_is_named_first() -> None:
    """kube-scheduler compares nodes by it; of equals, the older one."""
    page = node(
        holds=[
            low("least", 0, 7, 1),
            low("new", 0, 7, 5),
            low("old", 0, 7, 5),
            low("most", 0, 8, 9),
        ]
    )
    started = {"old": "2026-01-02T03:04:05Z", "new": "2026-01-02T03:04:06Z"}
    found = choose(asks(29), page, victims("x"), started=started)
    assert found == victims("x", "most", "old", "new", "least")


def test_the_younger_of_two_equals_goes() -> None:
    """As kube-scheduler has it: what runs longer is worth more."""
    page = node(holds=[low("new", 0, 14), low("old", 0, 14)])
    started = {"old": "2026-01-02T03:04:05Z", "new": "2026-01-02T03:04:06Z"}
    found = choose(asks(15), page, victims("x"), started=started)
    assert found == victims("x", "new")


def test_one_old_pod_goes_rather_than_two_young_ones() -> None:
    """Of equal rank, their number counts before their age."""
    page = node(card(0, 20), holds=[low("old", 0, 10), low("y", 0, 5), low("z", 0, 5)])
    started = {"y": "2026-01-02T03:04:05Z", "z": "2026-01-02T03:04:05Z"}
    found = choose(asks(10), page, victims("x"), started=started)
    assert found == victims("x", "old")


@pytest.mark.parametrize(
    ("pods", "order"),
    [
        ({"hog": (1, 7), "daemon": (1, 1)}, "hog a daemon"),
        ({"hog": (1, 3), "daemon": (1, 1)}, "a hog daemon"),
        ({"hog": (1, 5), "daemon": (1, 5)}, "hog daemon a"),
        ({}, "hog daemon a"),
    ],
    ids=["before", "behind", "equal", "unknown"],
)
def test_pods_without_shares_stand_where_their_priority_is(
    pods: dict[str, tuple[int, int]], order: str
) -> None:
    """One that nobody knows yet is as important as it can be: it stays in front."""
    page = node(holds=[low("a", 0, 20, 5)])
    book = hosts(1000, **pods)
    found = choose(asks(20), page, victims("hog", "daemon"), book=book)
    assert found == victims(*order.split())


def test_of_the_proposal_nobody_goes_without_need() -> None:
    """``both`` has the CPU that ``hog`` was named for, and sits on a card by itself."""
    page = node(*cards(16, 16), holds=[low("light", 0, 12), low("both", 1, 12)])
    book = hosts(10, hog=(4, 1), both=(4, 1), light=(0, 1))
    asked = replace(asks(12), host=cpu(4))
    assert choose(asked, page, victims("hog"), book=book) == victims("both")


def test_a_victim_for_cpu_stays_one() -> None:
    """Nobody else has the CPU; the card is cleared beside it."""
    page = node(*cards(16, 16), holds=[low("busy", 0, 6), low("light", 1, 12)])
    page = page.with_placement(low("stays", 0, 6, 99))
    book = hosts(10, busy=(8, 1), light=(0, 1))
    asked = replace(asks(12), host=cpu(4))
    found = choose(asked, page, victims("busy"), book=book)
    assert found == victims("busy", "light")


def test_cheap_victims_for_cpu_and_card_are_better_than_a_dear_one_for_both() -> None:
    """The highest priority counts before the number, as with kube-scheduler."""
    page = node(*cards(16, 16), holds=[low("light", 0, 12), low("both", 1, 12, 5)])
    book = hosts(10, hog=(4, 1), both=(4, 5), light=(0, 1))
    asked = replace(asks(12), host=cpu(4))
    found = choose(asked, page, victims("hog"), book=book)
    assert found == victims("hog", "light")


def test_a_holder_named_for_a_port_stays_a_victim() -> None:
    """CPU, memory and the sum of the cards suffice without it."""
    page = node(
        *cards(16, 16, 6),
        holds=[low("port", 0, 4), low("stays", 0, 8, 99), low("a", 1, 12)],
    )
    found = choose(asks(10), page, victims("port"))
    assert found == victims("port", "a")


def test_where_the_host_is_unknown_the_whole_proposal_stays() -> None:
    """Nobody can tell what each of its pods was named for."""
    found = choose(asks(24), FRAGMENTED, victims("a0", "b1"), book=Hosts())
    assert found is not None
    assert {"uid-a0", "uid-b1"} < set(found.uids)


def test_a_reservation_is_no_victim() -> None:
    """kube-scheduler may not know the pod there, and would refuse the whole answer."""
    page = node(*cards(29, 29), holds=[low("ghost", 0, 20), low("a", 1, 20, 5)])
    found = choose(asks(20), page, victims("x"), reserved=["ghost"])
    assert found == victims("x", "a")
    found = choose(asks(20), page, victims("x"), reserved=["ghost", "a"])
    assert found is None
    found = choose(asks(0, 200), page, victims("x"), reserved=["ghost"])
    assert found is None


def test_a_reservation_that_kube_scheduler_names_may_go() -> None:
    """Then it knows the pod there."""
    page = node(holds=[low("new", 0, 15), low("a", 0, 14)])
    found = choose(asks(29), page, victims("new"), reserved=["new"])
    assert found is not None
    assert set(found.uids) == {"uid-new", "uid-a"}


@pytest.mark.parametrize(
    ("named", "counted", "told"),
    [("hog", 1, 1), ("hog", 0, 0), ("hog a", 2, 1), ("hog daemon", 2, 2)],
)
def test_budgets_of_pods_without_shares_are_carried(
    named: str, counted: int, told: int
) -> None:
    """By kube-scheduler's count, less that of pods which need not go."""
    page = node(*cards(16, 16), holds=[low("a", 0, 4), low("b", 1, 16)])
    page = page.with_placement(low("stays", 0, 12, 99))
    proposal = victims(*named.split(), violations=counted)
    book = hosts(2, hog=(1, 1), daemon=(1, 1), a=(0, 1), b=(0, 1))
    both = 2 if "daemon" in named else 1
    asked = replace(asks(16), host=cpu(both))
    found = choose(asked, page, proposal, budget(0, "a"), book=book)
    assert found is not None
    assert "uid-b" in found.uids
    assert found.budget_violations == told


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Node, dict[str, tuple[int, int]], Hosts]:
    """A node with pods on its cards and beside them, and no CPU left.

    Beside it CPU and priority of each pod.
    """
    sizes = draw(st.lists(st.integers(4, 16), min_size=1, max_size=3))
    left = dict(enumerate(sizes))
    holds = []
    for number in range(draw(st.integers(1, 6))):
        on = draw(st.sampled_from(sorted(left)))
        units = draw(st.integers(0, left[on]))
        if units:
            left[on] -= units
            priority = draw(st.sampled_from([0, 1, 1, 2, 3, 50]))
            holds.append(low(f"t{number}", on, units, priority))
    beside = draw(st.integers(0, 2))
    priorities = {held.pod.uid: held.pod.priority for held in holds}
    priorities |= {f"uid-s{n}": draw(st.integers(0, 3)) for n in range(beside)}
    pods = {uid: (draw(st.integers(0, 4)), rank) for uid, rank in priorities.items()}
    full = sum(milli for milli, _ in pods.values())
    book = hosts(full, **{uid.removeprefix("uid-"): pod for uid, pod in pods.items()})
    return node(*cards(*sizes), holds=holds), pods, book


def by_totals(
    asked: PodRequest, page: Node, pods: dict[str, tuple[int, int]]
) -> Victims | None:
    """Choose as kube-scheduler does: by the node's totals, the least important."""
    host = asked.host or HostAmount()
    capacity = sum(one.units for one in page.cards)
    units = {uid: held.shares[0].amount.units for uid, held in page.placements.items()}

    def fits(there: Collection[str]) -> bool:
        taken = sum(units.get(PodUID(uid), 0) for uid in there)
        busy = sum(pods[uid][0] for uid in there)
        return (
            taken + asked.claims[0].amount.units <= capacity
            and busy + host.cpu_milli <= full
        )

    full = sum(milli for milli, _ in pods.values())
    there = [uid for uid, (_, rank) in pods.items() if rank >= asked.pod.priority]
    lower = [uid for uid, (_, rank) in pods.items() if rank < asked.pod.priority]
    if not fits(there):
        return None
    named = []
    for uid in sorted(lower, key=lambda uid: -pods[uid][1]):
        if fits([*there, uid]):
            there.append(uid)
        else:
            named.append(uid)
    return Victims(tuple(PodUID(uid) for uid in named)) if named else None


@settings(deadline=None)
@given(crowds(), st.integers(1, 16), st.integers(0, 6))
def test_no_eviction_is_without_need(
    crowd: tuple[Node, dict[str, tuple[int, int]], Hosts], units: int, milli: int
) -> None:
    """Victims are in order and enough, each is needed, and no single one is cheaper.

    Where none are found, not even all pods of lower priority together would do.
    """
    page, pods, book = crowd
    asked = replace(asks(units), host=cpu(milli))
    proposal = by_totals(asked, page, pods)
    if proposal is None:
        return

    def enough(gone: Collection[str]) -> bool:
        freed = sum(pods[uid][0] for uid in gone)
        card_free = place(asked, page.without(gone), FIRST_FIT)
        return milli <= freed and isinstance(card_free, Placement)

    def cost(gone: Collection[str]) -> tuple[int, int, int]:
        ranks = [pods[uid][1] for uid in gone]
        return (max(ranks), sum(rank + 2**31 for rank in ranks), len(ranks))

    found = choose(asked, page, proposal, book=book)
    lower = {uid for uid, (_, rank) in pods.items() if rank < asked.pod.priority}
    if found is None:
        assert not enough(lower)
        return
    ranks = [pods[uid][1] for uid in found.uids]
    assert all(first >= then for first, then in pairwise(ranks))
    assert set(found.uids) <= lower
    assert enough(found.uids)
    assert not any(enough(set(found.uids) - {uid}) for uid in found.uids)
    if found != proposal:
        for uid in lower:
            assert not enough({uid}) or cost(found.uids) <= cost({uid})
