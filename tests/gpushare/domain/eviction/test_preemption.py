"""Which pods to evict so that one card comes free."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.domain.eviction.preemption import (
    Budget,
    EvictionFacts,
    Victims,
    choose_victims,
    find_violations,
    tries_on_each,
)
from gpushare.domain.hosts import Hosts
from gpushare.domain.model import Claim, HostAmount, Placement, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal, place
from tests.builders import (
    FIRST_FIT,
    apart,
    as_claim,
    card,
    cards,
    claim,
    node,
    placement,
    request,
    share,
)
from tests.work import work


def low(name: str, on: int, units: int, priority: int = 1, cores: int = 0) -> Placement:
    """A pod that may be evicted by those of priority 10."""
    return placement(name, on, units, cores, priority=priority)


def victims(*names: str, violations: int = 0) -> Victims:
    return Victims(tuple(PodUID(f"uid-{name}") for name in names), violations)


def budget(allowed: int, *names: str) -> Budget:
    return Budget(frozenset(PodUID(f"uid-{name}") for name in names), allowed)


def cpu(milli: int) -> HostAmount:
    return HostAmount(milli, 0)


def hosts(capacity: int, **pods: tuple[int, int]) -> Hosts:
    """What is known of one node: its CPU, and for each pod CPU and priority."""
    made = Hosts()
    made.set_allocatable(node().name, cpu(capacity))
    for name, (milli, priority) in pods.items():
        uid = PodUID(f"uid-{name}")
        made.hold(uid, node().name, cpu(milli), priority)
    return made


def asks(units: int = 0, cores: int = 0, milli: int = 0) -> PodRequest:
    return request("asks", units, cores, priority=10, host=cpu(milli))


def choose(
    pending: PodRequest,
    page: Node,
    proposal: Victims,
    *budgets: Budget,
    uses: Hosts | None = None,
    reserved: Collection[str] = (),
    started: Mapping[str, str] | None = None,
) -> Victims | None:
    """Choose victims on a host with room for all, where nothing else is said."""
    times = started or {}
    facts = EvictionFacts(
        uses or hosts(1000),
        budgets,
        [PodUID(f"uid-{name}") for name in reserved],
        lambda uid: times.get(uid.removeprefix("uid-"), ""),
    )
    pending = replace(pending, host=pending.host or HostAmount())
    return choose_victims(pending, page, proposal, FIRST_FIT, facts)


def on(pods: str, *sizes: int) -> Node:
    """Cards of 29 units, or of these sizes, with pods such as ``a@0=20/5``.

    That is 20 units of card 0 at priority 5, else 1; ``~`` nominated, ``@?`` unplaced.
    """
    holds, kept, lost = [], [], []
    for name, number, how, units, priority in re.findall(
        r"(\w+)@(\S)(=|~)(\d+)(?:/(\d+))?", pods
    ):
        rank = int(priority or 1)
        if number == "?":
            lost.append(request(name, int(units), priority=rank))
        else:
            placed = low(name, int(number), int(units), rank)
            (holds if how == "=" else kept).append(placed)
    chosen_victims = cards(*(sizes or (29, 29)))
    return node(*chosen_victims, holds=holds, nominated=kept, unplaced=lost)


FRAGMENTED = on("a0@0=10 b0@0=15 a1@1=20 b1@1=5")
"""4 units free on each card."""
PAIR = on("a@0=20 b@1=20")
FOUR = on("vip@0=1/99 b@1=5 c@2=5/2 d@2=5", 29, 29, 29)
LOST = on("a@0=10 lost@?=15/20")
GHOST = on("ghost@0=20 a@1=20/5")
TWICE = placement("w", shares=[share(0, 29, 100), share(1, 29, 100)])
CORDONED = node(card(cordoned=True), card(1), holds=[low("a", 0, 10), low("b", 1, 10)])
MIXED = request("asks", claims=[claim(0, 100), claim(20)], priority=10)
OLD, NEW = "2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z"


@pytest.mark.parametrize(
    ("pending", "page", "named", "chosen"),
    [
        pytest.param(*row, id=about)
        for about, *row in (
            ("a proposal that makes room", asks(20), FRAGMENTED, "a1 b1", "a1 b1"),
            ("room on two cards is none", asks(24), FRAGMENTED, "a0 b1", "a1"),
            ("no more than must", asks(19), FRAGMENTED, "b1", "b0"),
            ("no share: for the node", asks(24), FRAGMENTED, "hog a0", "hog a1"),
            (
                *("all lower ones", apart("asks", 19, 28, priority=10)),
                *(on("z@0=5/20 a@0=20/5 b@1=5 c@1=10"), "a c", "a c b"),
            ),
            ("beside vip", asks(20), on("v@0=9/99 a@0=10 b@0=10", 29), "a", "a b"),
            ("too small", asks(20), node(card(units=10)), "x", ""),
            ("sick", asks(20), node(card(healthy=False)), "x", ""),
            ("important", asks(20), on("v@0=10/99", 29), "x", ""),
            ("as important", asks(20), on("v@0=20/10 a@1=10", 29, 10), "a", ""),
            ("a whole card", asks(0, 100), FOUR, "x", "x b"),
            ("two whole cards", asks(0, 200), FOUR, "x", "x c b d"),
            ("one whole card too many", asks(0, 300), FOUR, "x", ""),
            (
                "whole with units",
                asks(60, 100),
                on("a@0=1 b@1=1/2", 16, 94),
                "x",
                "x b",
            ),
            (
                *("one pod on two cards", asks(0, 200)),
                *(node(*cards(29, 29), holds=[TWICE]), "x", "x w"),
            ),
            ("apart", apart("asks", 20, 20, priority=10), PAIR, "x", "x a b"),
            ("a share beside a whole card", MIXED, PAIR, "x", "x a b"),
            ("its own nomination", asks(25), on("a@0=10 asks@0~25/10", 29), "a", "a"),
            ("that of an equal", asks(20), on("a@0=4 o@0~25/10", 29), "a", ""),
            (
                *("one on an unknown card frees all", asks(15)),
                *(on("a@0=10/5 b@1=10/5 lost@?=15"), "a", "lost"),
            ),
            ("an important one there", asks(20), LOST, "a", ""),
            ("no whole card beside it", asks(0, 100), LOST, "a", ""),
            ("a small share beside it", asks(14), LOST, "a", "a"),
            ("whole", asks(0, 100), on("a@0=1 b@1=1/5 l@?=1/2"), "x", "x l a"),
            ("not from a cordoned card", asks(29), CORDONED, "a", "b"),
            (
                *("named for a port, though it holds a share", asks(10)),
                *(on("port@0=4 v@0=8/99 a@1=12", 16, 16, 6), "port", "port a"),
            ),
        )
    ],
)
def test_who_is_evicted(
    pending: PodRequest, page: Node, named: str, chosen: str
) -> None:
    chosen_victims = choose(pending, page, victims(*named.split()))
    assert chosen_victims == (victims(*chosen.split()) if chosen else None)


def test_a_proposals_violations_are_kept_with_it() -> None:
    """They are kube-scheduler's count."""
    proposal = victims("a1", violations=3)
    assert choose(asks(20), FRAGMENTED, proposal) == proposal


@pytest.mark.parametrize(
    ("priorities", "chosen"),
    [((1, 2), "a"), ((2, 1), "b"), ((1, 1), "a"), ((-5, 1), "a")],
)
def test_the_card_with_the_least_important_pods_is_cleared(
    priorities: tuple[int, int], chosen: str
) -> None:
    """Highest priority first, as kube-scheduler compares nodes."""
    holds = [low("a", 0, 20, priorities[0]), low("b", 1, 20, priorities[1])]
    chosen_victims = choose(asks(20), node(*cards(29, 29), holds=holds), victims("x"))
    assert chosen_victims == victims("x", chosen)


@pytest.mark.parametrize(
    ("units", "page", "named", "chosen"),
    [
        (20, on("a@0=20 b@1=20/5"), budget(0, "a"), victims("x", "b")),
        (14, on("safe@0=14 o@0=14/5", 29), budget(0, "safe"), victims("x", "o")),
        (
            *(29, on("a@0=14 b@0=14", 29)),
            *(budget(1, "a", "b"), victims("x", "a", "b", violations=1)),
        ),
    ],
    ids=["on another card", "on the same card", "where nothing else helps"],
)
def test_pods_under_a_budget_go_last(
    units: int, page: Node, named: Budget, chosen: Victims
) -> None:
    assert choose(asks(units), page, victims("x"), named) == chosen


@pytest.mark.parametrize(
    ("budgets", "beyond"),
    [
        ([], ""),
        ([budget(2, "a", "b")], ""),
        ([budget(1, "a", "b")], "b"),
        ([budget(0, "a", "b")], "a b"),
        ([budget(0, "other")], ""),
        ([budget(1, "a", "c"), budget(0, "b")], "b c"),
        ([budget(-1, "c")], "c"),
        ([budget(1, "a"), budget(1, "a"), budget(0, "a")], "a"),
    ],
)
def test_evictions_beyond_a_budget(budgets: list[Budget], beyond: str) -> None:
    """Counted in order; a pod under several budgets is one breach."""
    uids = [PodUID(f"uid-{name}") for name in "abc"]
    assert find_violations(uids, budgets) == {f"uid-{name}" for name in beyond.split()}


@pytest.mark.parametrize(
    ("pods", "units", "chosen"),
    [
        ("least@0=7 new@0=7/5 old@0=7/5 most@0=8/9", 29, "x most old new least"),
        ("new@0=14 old@0=14", 15, "x new"),
        ("older@0=15 y@0=7 z@0=7", 15, "x older"),
    ],
    ids=["important and old first", "the younger goes", "number before age"],
)
def test_the_age_of_victims(pods: str, units: int, chosen: str) -> None:
    """As kube-scheduler has it: what runs longer is worth more."""
    started = {"old": OLD, "new": NEW, "y": NEW, "z": NEW}
    chosen_victims = choose(asks(units), on(pods, 29), victims("x"), started=started)
    assert chosen_victims == victims(*chosen.split())


@pytest.mark.parametrize(
    ("pods", "order"),
    [
        ({"hog": (1, 7), "daemon": (1, 1)}, "hog a daemon"),
        ({"hog": (1, 3), "daemon": (1, 1)}, "a hog daemon"),
        ({"hog": (1, 5), "daemon": (1, 5)}, "hog daemon a"),
        ({}, "hog daemon a"),
    ],
)
def test_pods_without_shares_stand_where_their_priority_is(
    pods: dict[str, tuple[int, int]], order: str
) -> None:
    """One that nobody knows yet is as important as it can be: it stays in front."""
    uses, page = hosts(1000, **pods), on("a@0=20/5", 29)
    chosen_victims = choose(asks(20), page, victims("hog", "daemon"), uses=uses)
    assert chosen_victims == victims(*order.split())


@pytest.mark.parametrize(
    ("pods", "has", "named", "chosen"),
    [
        ("light@0=12 both@1=12", {"hog": (4, 1), "both": (4, 1)}, "hog", "both"),
        ("busy@0=6 light@1=12 v@0=6/99", {"busy": (8, 1)}, "busy", "busy light"),
        ("light@0=12 both@1=12/5", {"hog": (4, 1), "both": (4, 5)}, "hog", "hog light"),
        ("light@0=12 busy@1=12/2", {"hog": (4, 0), "busy": (4, 2)}, "busy", "busy"),
    ],
    ids=[
        "one has both",
        "the only one with cpu",
        "two cheap ones before a dear one",
        "none without a share that kube-scheduler did not name",
    ],
)
def test_victims_for_cpu_and_card(
    pods: str, has: dict[str, tuple[int, int]], named: str, chosen: str
) -> None:
    """None goes without need; the highest priority counts before the number."""
    uses = hosts(10, light=(0, 1), **has)
    chosen_victims = choose(
        asks(12, milli=4), on(pods, 16, 16), victims(named), uses=uses
    )
    assert chosen_victims == victims(*chosen.split())


def test_where_the_host_is_unknown_the_whole_proposal_stays() -> None:
    """Nobody can tell what each of its pods was named for."""
    chosen_victims = choose(asks(24), FRAGMENTED, victims("a0", "b1"), uses=Hosts())
    assert {"uid-a0", "uid-b1"} < set(chosen_victims.uids)


@pytest.mark.parametrize(
    ("cores", "reserved", "named", "chosen"),
    [
        (0, ["ghost"], "x", "x a"),
        (0, ["ghost", "a"], "x", ""),
        (200, ["ghost"], "x", ""),
        (200, ["ghost"], "ghost", "a ghost"),
    ],
    ids=["another", "no other", "whole cards", "named by kube-scheduler"],
)
def test_a_reservation_is_no_victim_unless_it_is_named(
    cores: int, reserved: list[str], named: str, chosen: str
) -> None:
    """kube-scheduler may not know the pod there, and would refuse the whole answer."""
    pending = asks(0 if cores else 20, cores)
    chosen_victims = choose(pending, GHOST, victims(named), reserved=reserved)
    assert chosen_victims == (victims(*chosen.split()) if chosen else None)


@pytest.mark.parametrize(
    ("named", "counted", "counted_by_others"),
    [("hog", 1, 1), ("hog", 0, 0), ("hog a", 2, 1), ("hog daemon", 2, 2)],
)
def test_budgets_of_pods_without_shares_are_carried(
    named: str, counted: int, counted_by_others: int
) -> None:
    """By kube-scheduler's count, less that of pods which need not go."""
    page = on("a@0=4 b@1=16 stays@0=12/99", 16, 16)
    proposal = victims(*named.split(), violations=counted)
    uses = hosts(2, hog=(1, 1), daemon=(1, 1), a=(0, 1), b=(0, 1))
    both = 2 if "daemon" in named else 1
    pending = asks(16, milli=both)
    chosen_victims = choose(pending, page, proposal, budget(0, "a"), uses=uses)
    assert "uid-b" in chosen_victims.uids
    assert chosen_victims.budget_violations == counted_by_others


def test_a_violation_that_is_known_is_not_carried_too() -> None:
    """kube-scheduler counted it, because the budget goes to the more important pod."""
    uses, shared = hosts(1000, hog=(1, 1)), budget(1, "a", "hog")
    proposal = victims("hog", violations=1)
    chosen_victims = choose(asks(20), on("a@0=20/5", 29), proposal, shared, uses=uses)
    assert chosen_victims == victims("a", "hog", violations=1)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Node, dict[str, tuple[int, int]], Hosts]:
    """A node with pods on its cards and beside them, and no CPU left.

    Beside it CPU and priority of each pod.
    """
    sizes = draw(st.lists(st.integers(4, 16), min_size=1, max_size=3))
    rooms = dict(enumerate(sizes))
    holds = []
    for number in range(draw(st.integers(1, 6))):
        on = draw(st.sampled_from(sorted(rooms)))
        units = draw(st.integers(0, rooms[on]))
        if units:
            rooms[on] -= units
            priority = draw(st.sampled_from([0, 1, 1, 2, 3, 50]))
            holds.append(low(f"t{number}", on, units, priority))
    beside = draw(st.integers(0, 2))
    priorities = {placed.pod.uid: placed.pod.priority for placed in holds}
    priorities |= {f"uid-s{n}": draw(st.integers(0, 3)) for n in range(beside)}
    pods = {uid: (draw(st.integers(0, 4)), rank) for uid, rank in priorities.items()}
    full = sum(milli for milli, _ in pods.values())
    uses = hosts(full, **{uid.removeprefix("uid-"): pod for uid, pod in pods.items()})
    return node(*cards(*sizes), holds=holds), pods, uses


def by_totals(
    pending: PodRequest, page: Node, pods: dict[str, tuple[int, int]]
) -> Victims | None:
    """Choose as kube-scheduler does: by the node's totals, the least important."""
    host = pending.host or HostAmount()
    capacity = sum(each_card.units for each_card in page.cards)
    units = {
        uid: placed.shares[0].amount.units for uid, placed in page.placements.items()
    }

    def fits(there: Collection[str]) -> bool:
        taken = sum(units.get(PodUID(uid), 0) for uid in there)
        busy = sum(pods[uid][0] for uid in there)
        return (
            taken + pending.claims[0].amount.units <= capacity
            and busy + host.cpu_milli <= full
        )

    full = sum(milli for milli, _ in pods.values())
    there = [uid for uid, (_, rank) in pods.items() if rank >= pending.pod.priority]
    lower = [uid for uid, (_, rank) in pods.items() if rank < pending.pod.priority]
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
    """Victims are in order and enough, each is needed, and no others are cheaper.

    Where none are found, not even all pods of lower priority together would do. A pod
    without a share is evicted only if kube-scheduler names it: its budgets are not
    known here.
    """
    page, pods, uses = crowd
    pending = asks(units, milli=milli)
    proposal = by_totals(pending, page, pods)
    if proposal is None:
        return

    def enough(gone: Collection[str]) -> bool:
        freed = sum(pods[uid][0] for uid in gone)
        card_free = place(pending, page.without(gone), FIRST_FIT)
        return milli <= freed and isinstance(card_free, Placement)

    def cost(gone: Collection[str]) -> tuple[int, int, int]:
        ranks = [pods[uid][1] for uid in gone]
        return (max(ranks), sum(rank + 2**31 for rank in ranks), len(ranks))

    chosen_victims = choose(pending, page, proposal, uses=uses)
    lower = {uid for uid, (_, rank) in pods.items() if rank < pending.pod.priority}
    if chosen_victims is None:
        assert not enough(lower)
        return
    ranks = [pods[uid][1] for uid in chosen_victims.uids]
    assert all(first >= then for first, then in pairwise(ranks))
    assert set(chosen_victims.uids) <= lower
    assert enough(chosen_victims.uids)
    assert not any(
        enough(set(chosen_victims.uids) - {uid}) for uid in chosen_victims.uids
    )
    if chosen_victims != proposal:
        known = lower & {*page.placements, *proposal.uids}
        others = (
            gone for gone in some_of(known) if cost(gone) < cost(chosen_victims.uids)
        )
        assert not any(enough(gone) for gone in others)


def some_of(uids: Collection[str]) -> Iterator[frozenset[PodUID]]:
    """All sets of pods, but for the empty one."""
    pods = sorted(map(PodUID, uids))
    sizes = range(1, len(pods) + 1)
    chosen = chain.from_iterable(combinations(pods, size) for size in sizes)
    return map(frozenset, chosen)


def shared(dice: Random) -> tuple[Node, list[Budget]]:
    """A node of 2 to 4 cards, pods on one card or on two whole ones, and budgets."""
    sizes = [dice.choice([8, 12, 16]) for _ in range(dice.randint(2, 4))]
    rooms, holds = dict(enumerate(sizes)), []
    for number in range(dice.randint(2, 7)):
        name, priority = f"t{number}", dice.choice([0, 1, 1, 2, 3, 50])
        whole = [index for index, units in rooms.items() if units == sizes[index]]
        if len(whole) > 1 and dice.random() < 0.1:
            parts = [share(index, rooms.pop(index), 100) for index in whole[:2]]
            holds.append(placement(name, shares=parts, priority=priority))
        elif rooms:
            index = dice.choice(list(rooms))
            units = dice.randint(1, rooms[index])
            rooms[index] -= units
            rooms = {each_card: room for each_card, room in rooms.items() if room}
            holds.append(low(name, index, units, priority))
    uids = [placed.pod.uid for placed in holds]
    budgets = [
        Budget(
            frozenset(uid for uid in uids if dice.random() < 0.5), dice.randint(0, 2)
        )
        for _ in range(dice.randint(0, 2))
    ]
    return node(*cards(*sizes), holds=holds), budgets


def some_share(dice: Random) -> Claim:
    return claim(dice.randint(1, 14))


ASKING: Mapping[str, Callable[[Random], list[Claim]]] = {
    "a share": lambda dice: [some_share(dice)],
    "shares": lambda dice: [some_share(dice) for _ in range(dice.randint(2, 3))],
    "whole cards": lambda dice: [
        claim(dice.choice([0, 0, 20]), 100 * dice.randint(1, 3))
    ],
    "both": lambda dice: [claim(0, 100), some_share(dice)],
}


@pytest.mark.parametrize("claims", ASKING.values(), ids=ASKING)
def test_no_other_victims_are_cheaper(claims: Callable[[Random], list[Claim]]) -> None:
    """Of all sets of pods: by budgets, highest priority, sum of them, and number."""
    dice = Random(38)
    for _ in range(400):
        page, budgets = shared(dice)
        pending = request("asks", claims=claims(dice), priority=10)
        if find_refusal(pending, page, FIRST_FIT) is None:
            continue
        chosen_victims, best = (
            choose(pending, page, victims(), *budgets),
            cheapest(page, budgets, pending),
        )
        assert (chosen_victims and cost_of(chosen_victims.uids, page, budgets)) == best


def cheapest(
    page: Node, budgets: Sequence[Budget], pending: PodRequest
) -> tuple[int, ...] | None:
    """The least cost of all sets of pods of lower priority that are enough."""
    holders = page.placements.values()
    lower = {
        placed.pod.uid
        for placed in holders
        if placed.pod.priority < pending.pod.priority
    }
    return min(
        (
            cost_of(gone, page, budgets)
            for gone in some_of(lower)
            if find_refusal(pending, page.without(gone), FIRST_FIT) is None
        ),
        default=None,
    )


def cost_of(
    gone: Collection[PodUID], page: Node, budgets: Sequence[Budget]
) -> tuple[int, ...]:
    """What kube-scheduler compares nodes by; of pods none of which has started."""
    ranks = {uid: page.placements[uid].pod.priority for uid in gone}
    ranked = sorted(gone, key=lambda uid: (-ranks[uid], uid))
    beyond = as_kube_scheduler_counts(ranked, budgets)
    return beyond, max(ranks.values()), sum(rank + 2**31 for rank in ranks.values())


def test_the_search_for_cheaper_victims_has_an_end() -> None:
    """With 96 pods of different priorities, four claims could be met in many ways.

    kube-scheduler waits for all nodes together.
    """
    holds = [low(f"t{n}", n % 8, 2, priority=n - 99) for n in range(96)]
    page = node(*cards(*[24] * 8), holds=holds)
    pending = apart("asks", 12, 12, 12, 12, priority=10)
    assert work(lambda: choose(pending, page, victims())) < 10**6
    assert [tries_on_each(nodes) for nodes in (0, 1, 100, 500)] == [300, 300, 100, 50]


def test_a_node_that_cannot_help_takes_one_look() -> None:
    """Of 16 claims the last has no room, whoever of lower priority goes."""
    holds = [low(f"t{n}", n % 8, 2) for n in range(80)]
    holds += [low(f"stays{n}", n, 2, priority=99) for n in range(8)]
    page = node(*cards(*[24] * 8), holds=holds)
    pending = apart("asks", *[11] * 15, 23, priority=10)
    judged = work(lambda: choose(pending, page, victims()))
    assert choose(pending, page, victims()) is None
    assert judged < 20_000


def as_kube_scheduler_counts(uids: Sequence[str], budgets: Sequence[Budget]) -> int:
    """``filterPodsWithPDBViolation``, of pods with the most important one first."""
    allowed = [budget.allowed for budget in budgets]
    violations = 0
    for uid in uids:
        beyond = False
        for number, budget in enumerate(budgets):
            if uid in budget.pods:
                allowed[number] -= 1
                beyond |= allowed[number] < 0
        violations += beyond
    return violations


@settings(deadline=None)
@given(crowds(), st.integers(1, 16), st.integers(0, 6), st.data())
def test_budgets_are_counted_as_kube_scheduler_counts_them(
    crowd: tuple[Node, dict[str, tuple[int, int]], Hosts],
    units: int,
    milli: int,
    data: st.DataObject,
) -> None:
    """Over all victims, also where one with cards and one without share a budget."""
    page, pods, uses = crowd
    pending = asks(units, milli=milli)
    proposal = by_totals(pending, page, pods)
    if proposal is None:
        return
    some = st.frozensets(st.sampled_from(sorted(pods)).map(PodUID))
    one_budget = st.builds(Budget, some, st.integers(0, 2))
    budgets = data.draw(st.lists(one_budget, max_size=2))
    named = as_kube_scheduler_counts(proposal.uids, budgets)
    proposal = Victims(proposal.uids, named)
    chosen_victims = choose(pending, page, proposal, *budgets, uses=uses)
    if chosen_victims is not None:
        counted = as_kube_scheduler_counts(chosen_victims.uids, budgets)
        assert chosen_victims.budget_violations == counted


def test_a_claim_is_no_victim() -> None:
    """What it holds stays charged, however low its priority looks."""
    claim = as_claim(low("claim", 0, 20, priority=0))
    page = node(card(0, 29), holds=[claim, low("pod", 0, 9)])
    assert choose(asks(9), page, victims("pod")) == victims("pod")
    assert choose(asks(10), page, victims("pod")) is None
