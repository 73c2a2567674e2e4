"""The fewest and cheapest moves, beside an exhaustive search on small clusters."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from typing import Any

import pytest

from gpushare.domain.eviction.landing import Situation
from gpushare.domain.eviction.movable import Movable
from gpushare.domain.eviction.moves import (
    Bounds,
    MovePlan,
    NoPlan,
    NoPlanReason,
    apply_moves,
    plan_moves,
)
from gpushare.domain.eviction.preemption import Budget, EvictionFacts
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    CardUUID,
    HostAmount,
    NodeName,
    Placement,
    PodRequest,
    PodUID,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal, schedule
from gpushare.domain.policies import Policy, PolicyChoice
from tests.builders import apart, card, cards, node, placement, request, share

MOVES = 3
CLUSTERS = 1000


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, a pod that waits, and the CPU that is free on each node."""

    asks: PodRequest
    situation: Situation
    cpu: dict[NodeName, int]


def may_use(names: Iterable[str]) -> Callable[[NodeName], bool]:
    return frozenset(names).__contains__


def random_case(seed: int) -> Case:
    """One to three nodes of one or two cards each, some pods, and a pod that waits."""
    dice = Random(seed)
    sizes = [dice.choice((8, 8, 10)) for _ in range(dice.randint(2, 4))]
    whole = dice.choice((0, 0, 0, 0, 1, 2))
    names = [f"n{number}" for number in range(dice.randint(1, 3))]
    homes = [dice.choice(names) for _ in sizes]
    requests, placements = {}, []
    own_cards = [
        card(i, units, cordoned=dice.random() < 0.05) for i, units in enumerate(sizes)
    ]
    free = {each_node.uuid: [each_node.units, 100] for each_node in own_cards}
    for number in range(dice.randint(4, 8)):
        units, cores = dice.randint(1, 5), dice.choice((1, 1, 10, 30))
        at = dice.choice(own_cards)
        rest = free[at.uuid]
        if units > rest[0] or cores > rest[1]:
            continue
        rest[0] -= units
        rest[1] -= cores
        name, priority = f"p{number}", dice.choice((0, 0, 0, 5, 20))
        host = HostAmount(dice.choice((0, 0, 1000)))
        requests[name] = request(name, units, cores, priority=priority, host=host)
        where = homes[at.index]
        placements.append(
            placement(name, at.index, units, cores, node=where, priority=priority)
        )
    nodes = [
        node(
            *(each_node for each_node in own_cards if homes[each_node.index] == name),
            name=name,
            holds=[each_node for each_node in placements if each_node.node == name],
        )
        for name in names
        if name in homes
    ]
    cpu = {each_node.name: dice.choice((500, 1500, 5000, 5000)) for each_node in nodes}
    hosts = Hosts()
    for each_node in nodes:
        hosts.set_allocatable(each_node.name, HostAmount(cpu[each_node.name]))
    movable = {}
    for name, asks in requests.items():
        uid = PodUID(f"uid-{name}")
        if dice.random() < 0.95:
            fit = [n for n in names if dice.random() < 0.95]
            movable[uid] = Movable(asks, may_use(fit), after_end=dice.random() < 0.5)
    protected = frozenset(uid for uid in movable if dice.random() < 0.1)
    facts = EvictionFacts(hosts, [Budget(protected, 0), Budget(frozenset(movable), 1)])
    choice = PolicyChoice(dice.choice(("first-fit", "best-fit", "spread", "frag")))
    most = max(units for units, _ in free.values())
    units = min(most + dice.randint(1, 3), 8)
    units, cores = (0, 100 * whole) if whole else (units, dice.choice((1, 1, 60)))
    waits = request(
        "w", units, cores, priority=10, host=HostAmount(dice.choice((0, 1000)))
    )
    usable = may_use(n for n in names if dice.random() < 0.9)
    situation = Situation(tuple(nodes), movable, choice, facts, usable)
    return Case(waits, situation, cpu)


def policy_of(case: Case) -> Policy:
    plan = case.situation.choice.policy(None)
    assert isinstance(plan, Policy)
    return plan


def marked(each_node: Node, shut: Callable[[CardUUID], bool]) -> Node:
    own_cards = (
        replace(c, cordoned=c.cordoned or shut(c.uuid)) for c in each_node.cards
    )
    return replace(each_node, cards=tuple(own_cards))


class Played:
    """A cluster in which pods are evicted and land, without anything of the planner."""

    def __init__(
        self, case: Case, nodes: dict[NodeName, Node], cpu: dict[NodeName, int]
    ) -> None:
        self.case, self.nodes, self.cpu = case, nodes, cpu

    @property
    def key(self) -> object:
        return frozenset(
            (uid, name, placements.cards())
            for name, each_node in self.nodes.items()
            for uid, placements in each_node.placements.items()
        )

    def fits(self, target: frozenset[CardUUID], name: NodeName) -> bool:
        asks = self.case.asks
        here = marked(self.nodes[name], lambda uuid: uuid not in target)
        # The target's own cards are open again.
        opened = (
            replace(c, cordoned=False) if c.uuid in target else c for c in here.cards
        )
        enough = self.has_cpu(asks, name)
        here = replace(here, cards=tuple(opened))
        return enough and find_refusal(asks, here, policy_of(self.case)) is None

    def has_cpu(self, asks: PodRequest, name: NodeName) -> bool:
        assert asks.host is not None
        return not asks.host.cpu_milli or asks.host.cpu_milli <= self.cpu[name]

    def lands(self, pod: Movable) -> Placement | None:
        asks = replace(pod.request, pod=replace(pod.request.pod, uid=PodUID("new")))
        open_to = [
            each_node
            for name, each_node in self.nodes.items()
            if pod.may_use(name) and self.has_cpu(asks, name)
        ]
        plan = schedule(asks, open_to, policy_of(self.case))
        return plan if isinstance(plan, Placement) else None

    def evicted(self, uid: PodUID) -> "Played":
        (name,) = (
            n for n, each_node in self.nodes.items() if uid in each_node.placements
        )
        asks = self.case.situation.movable[uid].request
        assert asks.host is not None
        rest = {**self.nodes, name: self.nodes[name].without({uid})}
        return Played(
            self.case, rest, {**self.cpu, name: self.cpu[name] + asks.host.cpu_milli}
        )

    def moved(self, uid: PodUID) -> "Played | None":
        """Evict one pod; None if its landing is nowhere or depends on the time."""
        pod, gone = self.case.situation.movable[uid], self.evicted(uid)
        landing, early = gone.lands(pod), None if pod.after_end else self.lands(pod)
        if landing is None or early not in (None, landing):
            return None
        return gone.landed(replace(landing, pod=replace(landing.pod, uid=uid)))

    def landed(self, at: Placement) -> "Played":
        asks = self.case.situation.movable[at.pod.uid].request
        assert asks.host is not None
        nodes = {**self.nodes, at.node: self.nodes[at.node].with_placement(at)}
        rest = self.cpu[at.node] - asks.host.cpu_milli
        return Played(self.case, nodes, {**self.cpu, at.node: rest})


def start(case: Case, target: frozenset[CardUUID] = frozenset()) -> Played:
    nodes = {
        each_node.name: marked(each_node, lambda uuid: uuid in target)
        for each_node in case.situation.nodes
    }
    return Played(case, nodes, case.cpu)


def targets(case: Case) -> Iterator[tuple[NodeName, frozenset[CardUUID]]]:
    count = max(1, case.asks.claims[0].whole_cards)
    for each_node in case.situation.nodes:
        if case.situation.may_use(each_node.name):
            for chosen in combinations([c for c in each_node.cards if c.open], count):
                yield each_node.name, frozenset(c.uuid for c in chosen)


def allowed(case: Case) -> list[PodUID]:
    facts = case.situation.facts
    return [
        uid
        for uid, pod in case.situation.movable.items()
        if pod.request.pod.priority <= case.asks.pod.priority
        and all(budget.allowed for budget in facts.budgets if uid in budget.pods)
    ]


def cost(case: Case, moves: Iterable[PodUID]) -> tuple[int, int]:
    pods = [case.situation.movable[uid].request for uid in moves]
    units = sum(each_node.claims[0].amount.units for each_node in pods)
    return max((each_node.pod.priority for each_node in pods), default=0), units


def cheapest(case: Case, most: int) -> tuple[int, tuple[int, int]] | None:
    """Try all orders of evictions for each target; the fewest, then the cheapest."""
    levels: dict[tuple[NodeName, frozenset[CardUUID]], Level] = {
        (name, target): {0: ((), start(case, target))} for name, target in targets(case)
    }
    for length in range(most + 1):
        done = [
            cost(case, moves)
            for (name, target), level in levels.items()
            for moves, at in level.values()
            if at.fits(target, name)
        ]
        if done:
            return length, min(done)
        if length < most:
            levels = {where: one_more(case, level) for where, level in levels.items()}
    return None


Level = dict[object, tuple[tuple[PodUID, ...], Played]]
"""The states after equally many moves, each with the cheapest way to it."""


def one_more(case: Case, level: Level) -> Level:
    plan: Level = {}
    for moves, at in level.values():
        for uid in allowed(case):
            then = at.moved(uid)
            if then is not None:
                way, known = (*moves, uid), plan.get(then.key)
                if known is None or cost(case, way) < cost(case, known[0]):
                    plan[then.key] = way, then
    return plan


def carry_out(case: Case, plan: MovePlan) -> None:
    """Carry a plan out on a ledger; every card and each prediction is checked."""
    ledger = Ledger()
    closed = set(plan.cards)
    assert closed.issuperset(plan.placement.cards())
    for each_node in case.situation.nodes:
        ledger.set_cards(each_node.name, marked(each_node, closed.__contains__).cards)
        for placements in each_node.placements.values():
            ledger.record(placements)
    for move in plan.moves:
        uid = move.pod.uid
        assert ledger.release(uid) == move.source
        asks = case.situation.movable[uid].request
        where = move.landing.node
        assert case.situation.movable[uid].may_use(where)
        assert ledger.reserve(asks, where, policy_of(case)) == move.landing
        for each_node in ledger.nodes():
            assert all(
                min(rest.units, rest.cores) >= 0 for rest in each_node.free.values()
            )
    for each_node in case.situation.nodes:
        ledger.set_cards(each_node.name, each_node.cards)
    decision = ledger.reserve(case.asks, plan.node, policy_of(case))
    assert isinstance(decision, Placement)


def test_no_sequence_of_evictions_is_shorter_or_cheaper() -> None:
    """Over random small clusters; and each plan works, step by step on a ledger."""
    lengths, chains = Counter[int](), 0
    for seed in range(CLUSTERS):
        case = random_case(seed)
        plan = plan_moves(case.asks, case.situation, Bounds(MOVES))
        best = cheapest(case, MOVES)
        assert plan.exact
        if isinstance(plan, NoPlan):
            expected = best and best[0]
            assert expected == (0 if plan.why is NoPlanReason.FITS else None), (
                seed,
                plan,
            )
            continue
        moved = [move.pod.uid for move in plan.moves]
        assert best == (len(moved), cost(case, moved)), (seed, plan, best)
        carry_out(case, plan)
        lengths[len(moved)] += 1
        on_it = {u for move in plan.moves for u in move.source.cards()}
        chains += not on_it <= set(plan.cards)
    # Else the random clusters would not test what they are for.
    assert min(lengths[1], lengths[2], lengths[3], chains) >= 5, (lengths, chains)


def situation(*nodes: Node, stay: Iterable[str] = (), **more: Any) -> Situation:
    """Nodes whose pods may all move, but for those that are to stay."""
    movable = {
        uid: Movable(
            request(
                placements.pod.name,
                placements.shares[0].amount.units,
                placements.shares[0].amount.cores,
                priority=placements.pod.priority,
            )
        )
        for each_node in nodes
        for uid, placements in each_node.placements.items()
        if placements.pod.name not in stay
    }
    return Situation(nodes, movable, **more)


def split(**big: Any) -> Node:
    """Two cards of 8 units with 5 free on each: 2 and 1 are held, and 3."""
    placements = [placement("a", 0, 2, 10, **big), placement("b", 0, 1, 10)]
    return node(*cards(8, 8), holds=[*placements, placement("c", 1, 3, 10)])


def moves_of(plan: MovePlan | NoPlan) -> list[tuple[str, tuple[CardUUID, ...]]]:
    assert isinstance(plan, MovePlan), plan
    return [(move.pod.name, move.landing.cards()) for move in plan.moves]


def test_the_pod_with_the_fewest_units_moves() -> None:
    """Of the single moves that suffice; the target's cards and placement are named."""
    plan = plan_moves(request("w", 6, 10), situation(split()))
    assert moves_of(plan) == [("b", ("GPU-1",))]
    assert isinstance(plan, MovePlan)
    assert (plan.node, plan.cards, plan.exact) == ("n", ("GPU-0",), True)
    assert plan.placement.cards() == ("GPU-0",)


def test_a_lower_priority_goes_before_fewer_units() -> None:
    """The most important pod of a plan counts first."""
    each_node = node(
        *cards(8, 8),
        holds=[
            placement("a", 0, 2, 10),
            placement("b", 0, 1, 10, priority=5),
            placement("c", 1, 3, 10, priority=5),
        ],
    )
    plan = plan_moves(request("w", 6, 10, priority=5), situation(each_node))
    assert moves_of(plan) == [("a", ("GPU-1",))]


def alone(name: str, uuid: str, units: int, pod: str, placements: int) -> Node:
    """A node of one card, and one pod on it."""
    own_cards = placement(pod, uuid, placements, 1, node=name)
    return node(card(0, units, uuid=uuid), name=name, holds=[own_cards])


def test_another_pod_moves_first_where_the_first_one_could_not_land() -> None:
    """A chain; without steps for it, the answer says that the search was cut."""
    nodes = (
        alone("n1", "A", 8, "p", 4),
        alone("n2", "B", 4, "q", 3),
        alone("n3", "C", 4, "r", 1),
    )
    full = situation(*nodes, stay="r")
    plan = plan_moves(request("w", 8, 1), full)
    assert moves_of(plan) == [("q", ("C",)), ("p", ("B",))]
    cut = plan_moves(request("w", 8, 1), full, Bounds(chain_steps=0))
    assert isinstance(cut, NoPlan)
    assert (cut.why, cut.exact) == (NoPlanReason.NO_PLAN, False)


def test_whole_cards_are_emptied_together() -> None:
    """Of sets of two cards, that with the fewest pods."""
    placements = [placement(f"p{i}", on, 1, 1) for i, on in enumerate((0, 0, 1, 2))]
    each_node = node(*cards(8, 8, 8), holds=placements)
    plan = plan_moves(request("w", 0, 200), situation(each_node))
    assert isinstance(plan, MovePlan)
    assert plan.cards == ("GPU-1", "GPU-2")
    assert moves_of(plan) == [("p2", ("GPU-0",)), ("p3", ("GPU-0",))]
    last = apply_moves((each_node,), plan.moves)[0]
    assert {c.uuid for c in last.untouched} == {"GPU-1", "GPU-2"}


def halves() -> Node:
    """Two cards of 8 units, each with a pod of 5."""
    return node(*cards(8, 8), holds=[placement(n, i, 5, 1) for i, n in enumerate("ab")])


def test_a_pod_of_whole_cards_moves_as_one() -> None:
    """Both its cards are free again, and its replacement needs two others."""
    pair = placement("pair", shares=[share(0, 8, 100), share(1, 8, 100)], node="n1")
    n1 = node(*cards(8, 8), name="n1", holds=[pair])
    others = [card(i, 8, uuid=f"B{i}") for i in range(2)]
    n2 = node(*others, card(2, 6, uuid="B2"), name="n2", holds=[])
    movable = {pair.pod.uid: Movable(request("pair", 0, 200))}
    placements = placement("held", "B2", 6, 1, node="n2")
    spent = replace(n2, placements={placements.pod.uid: placements})
    only_n1 = may_use(["n1"])
    plan = plan_moves(
        request("w", 0, 200), Situation((n1, spent), movable, may_use=only_n1)
    )
    assert moves_of(plan) == [("pair", ("B0", "B1"))]


def test_a_card_that_has_grown_is_free_with_the_pod_that_had_all_of_it() -> None:
    """It lists 20 units now, and the pod was charged 16 of them."""
    whole = placement("whole", 0, 16, 100, node="n1")
    n1 = node(card(0, 20), name="n1", holds=[whole])
    n2 = node(card(0, 20, uuid="B0"), name="n2")
    movable = {whole.pod.uid: Movable(request("whole", 0, 100))}
    only_n1 = may_use(["n1"])
    plan = plan_moves(
        request("w", 18, 10), Situation((n1, n2), movable, may_use=only_n1)
    )
    assert moves_of(plan) == [("whole", ("B0",))]


def test_room_on_a_part_of_a_card_is_made_alike() -> None:
    """A MIG instance is a card; whole ones of one profile go together."""
    parts = [card(i, 8, uuid=f"M{i}", model="A 1g.8gb", parent="P") for i in range(3)]
    placements = [placement("a", "M0", 2, 1), placement("b", "M1", 2, 1)]
    each_node = node(*parts, card(3, 8, uuid="F"), holds=placements)
    plan = plan_moves(request("w", 0, 200), situation(each_node))
    assert isinstance(plan, MovePlan)
    assert len(plan.moves) == 1
    assert set(plan.cards) <= {"M0", "M1", "M2"}


def a_claim() -> Node:
    placements = placement("c", 0, 5, 10)
    return node(
        *cards(8, 8),
        holds=[
            replace(placements, pod=replace(placements.pod, is_resource_claim=True)),
            placement("d", 1, 5, 10),
        ],
    )


UID_A, UID_B = PodUID("uid-a"), PodUID("uid-b")


@pytest.mark.parametrize(
    ("asks", "where", "why"),
    [
        pytest.param(
            request("w", 5, 1), situation(split()), NoPlanReason.FITS, id="fits"
        ),
        pytest.param(
            request("w", 9, 1), situation(split()), NoPlanReason.NEVER, id="never"
        ),
        pytest.param(
            request("w", 6, 1),
            situation(split(), may_use=may_use(["other"])),
            NoPlanReason.NEVER,
            id="may-use-no-node",
        ),
        pytest.param(
            request("w", 6, 1, policy="none"),
            situation(split()),
            NoPlanReason.NEVER,
            id="unknown-policy",
        ),
        pytest.param(
            request("w", 6, 1),
            situation(node(card(0, 8, cordoned=True), card(1, 4))),
            NoPlanReason.CLOSED,
            id="closed",
        ),
        pytest.param(
            apart("w", 6, 6), situation(split()), NoPlanReason.APART, id="apart"
        ),
        pytest.param(
            request("w", 6, 1),
            situation(split(), stay=["a", "b", "c"]),
            NoPlanReason.NONE_MAY_MOVE,
            id="all-stay",
        ),
        pytest.param(
            request("w", 6, 1), situation(halves()), NoPlanReason.NO_PLAN, id="full"
        ),
        pytest.param(
            request("w", 7, 1),
            situation(a_claim(), stay="d"),
            NoPlanReason.NONE_MAY_MOVE,
            id="claim",
        ),
        pytest.param(
            request("w", 7, 1, priority=-1),
            situation(split()),
            NoPlanReason.NONE_MAY_MOVE,
            id="higher",
        ),
    ],
)
def test_why_there_is_no_plan(
    asks: PodRequest, where: Situation, why: NoPlanReason
) -> None:
    """Each reason is a value of its own, with a sentence."""
    plan = plan_moves(asks, where)
    assert isinstance(plan, NoPlan)
    assert (plan.why, plan.exact) == (why, True)
    assert plan.words


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(
            EvictionFacts(budgets=[Budget(frozenset({UID_B}), 0)]), id="budget"
        ),
        pytest.param(EvictionFacts(reserved=[UID_B]), id="reserved"),
    ],
)
def test_another_pod_moves_if_one_is_protected(facts: EvictionFacts) -> None:
    """By a disruption budget, or because its binding was not seen yet."""
    plan = plan_moves(request("w", 6, 10), situation(split(), facts=facts))
    assert moves_of(plan) == [("a", ("GPU-1",))]


def test_a_budget_allows_one_move_after_the_other() -> None:
    """Each pod is replaced before the next one is evicted."""
    facts = EvictionFacts(budgets=[Budget(frozenset({UID_A, UID_B}), 1)])
    full = situation(split(), stay="c", facts=facts)
    plan = plan_moves(request("w", 8, 10), full)
    assert [name for name, _ in moves_of(plan)] == ["b", "a"]


def test_what_is_kept_for_a_nominated_pod_stays_kept() -> None:
    """No replacement lands there, and the waiting pod does not get it."""
    each_node = split()
    kept = placement("k", 1, 5, 1, priority=50)
    full = replace(each_node, nominations={kept.pod.uid: kept})
    plan = plan_moves(request("w", 6, 10), situation(full))
    assert isinstance(plan, NoPlan)
    assert plan.why is NoPlanReason.NO_PLAN


def test_what_is_kept_for_a_less_important_pod_keeps_none_away() -> None:
    """A replacement lands there, as the extender lets it."""
    each_node = split()
    kept = placement("k", 1, 5, 1, priority=-1)
    full = replace(each_node, nominations={kept.pod.uid: kept})
    plan = plan_moves(request("w", 6, 10), situation(full, stay="c"))
    assert moves_of(plan) == [("b", ("GPU-1",))]


@pytest.mark.parametrize("after_end", [False, True])
def test_a_landing_that_depends_on_when_the_pod_ends_is_not_planned(
    *, after_end: bool
) -> None:
    """While the pod is there, n1 has no CPU for its replacement, and n2 takes it."""
    hosts, host = Hosts(), HostAmount(1000)
    hosts.set_allocatable(NodeName("n1"), host)
    hosts.hold(UID_A, NodeName("n1"), host)
    n1 = node(
        card(0, 8, uuid="A"),
        card(1, 2, uuid="B"),
        name="n1",
        holds=[placement("a", "A", 2, 1, node="n1")],
    )
    n2 = node(card(0, 2, uuid="C"), name="n2")
    movable = {UID_A: Movable(request("a", 2, 1, host=host), after_end=after_end)}
    choice = PolicyChoice("spread")
    plan = plan_moves(
        request("w", 8, 1), Situation((n1, n2), movable, choice, EvictionFacts(hosts))
    )
    if after_end:
        assert moves_of(plan) == [("a", ("B",))]
    else:
        assert isinstance(plan, NoPlan)
