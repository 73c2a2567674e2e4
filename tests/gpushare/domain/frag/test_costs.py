"""What a pod costs on a node, by the published table, and how often it is computed."""

import random
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.frag.costs import NEVER, PricedNode
from gpushare.domain.frag.learner import learn
from gpushare.domain.frag.prices import Tables, untrained_tables
from gpushare.domain.frag.shapes import (
    WHOLE,
    FreeOnNode,
    PodShape,
    milli_free,
    read_free_on_node,
)
from gpushare.domain.model import (
    HostAmount,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal, place
from gpushare.domain.policies import POLICIES
from tests.builders import card, claim, node, placement, request, share
from tests.gpushare.domain.frag.invented import pool
from tests.gpushare.domain.frag.test_policy import Cluster, asked, gpus

CASES = yaml.safe_load((Path(__file__).parents[3] / "cases/frag.yaml").read_text())
FRAG = POLICIES["frag"]


def page_of(seen: dict[str, Any]) -> Node:
    """A node whose cards of 1000 units have so much left."""
    return node(
        *(
            card(i, WHOLE, model=seen.get("model", ""))
            for i in range(len(seen["free"]))
        ),
        name=seen["name"],
        holds=[
            placement(f"p{i}", i, WHOLE - free, 1, node=seen["name"])
            for i, free in enumerate(seen["free"])
            if free < WHOLE
        ],
    )


def request_of(ask: dict[str, Any]) -> PodRequest:
    models, cards = ask.get("models"), ask["cards"]
    whole = claim(WHOLE * cards, 100 * cards)
    asked_claim = whole if ask["milli"] == WHOLE else claim(ask["milli"], 0)
    return PodRequest(
        PodRef(PodUID("u"), "d", "asking"),
        (asked_claim,) if cards else (),
        cards=CardSelector.of(models=models) if models else None,
        host=HostAmount(ask.get("cpu", 0), ask.get("memory", 0)),
    )


def tables_of(case: dict[str, Any], states: list[FreeOnNode]) -> Tables:
    built = case["built"]
    total = pool(states, built["cards"], built.get("cpu"), built.get("memory"))
    seen = {
        PodShape(
            pod["milli"],
            pod["cards"],
            pod.get("cpu", 0),
            pod.get("memory", 0),
            frozenset(pod["models"]) if "models" in pod else None,
        ): pod["count"]
        for pod in case["pods"]
    }
    return (learn(seen, total) if seen else untrained_tables()).under(total)


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["id"])
def test_pages_cost_what_the_table_says(case: dict[str, Any]) -> None:
    """Cards of cores and units come out as thousandths of a card do."""
    request, costs = request_of(case["ask"]), {}
    pages = [
        (page_of(seen), HostAmount(seen["cpu"], seen.get("memory", 10**9)))
        if "cpu" in seen
        else (page_of(seen), None)
        for seen in case["nodes"]
    ]
    tables = tables_of(case, [read_free_on_node(p, host, p.free) for p, host in pages])
    for page, host in pages:
        standing = PricedNode.of(page, host, tables)
        assert standing.gauge.worth == pytest.approx(case["worth"][page.name], abs=1e-6)
        if request.host is not None and not request.host.fits(host):
            continue  # It is kube-scheduler that does not let it there.
        cost = standing.cost(request, FRAG)
        wanted = case["scores"][page.name]
        if wanted is None:
            assert cost == NEVER
        else:
            costs[page.name] = cost
            assert cost == pytest.approx(wanted["score"], abs=1e-7)
            assert card_of(standing, request) == wanted["card"]
    assert min(costs, key=lambda n: (costs[n], n), default=None) == case["best"]


def card_of(standing: PricedNode, request: PodRequest) -> int:
    """The position of the card that costs least, or of the first whole one."""
    if not request.claims:
        return -1
    (share_claim,) = request.claims
    page, uuids = standing.node, [card.uuid for card in standing.node.cards]
    if share_claim.whole_cards:
        return uuids.index(page.untouched[0].uuid)
    by_group = standing.share_costs(share_claim, request.host)
    _, uuid = min((cost, look.cards[0]) for cost, look in by_group)
    return uuids.index(uuid)


A, B, C = NodeName("a"), NodeName("b"), NodeName("c")
ASKED = HostAmount(4000, 1024)


def apart(*units: int) -> PodRequest:
    """A pod of several containers, each with a share of its own."""
    claims = tuple(claim(size, 1) for size in units)
    return PodRequest(PodRef(PodUID("apart"), "d", "apart"), claims, host=ASKED)


@pytest.fixture
def pair() -> Cluster:
    """Two nodes of two cards, and halves seen."""
    cluster = Cluster(a=gpus("a"), b=gpus("b"))
    cluster.see(asked("half", 50), asked("third", 33))
    return cluster


def test_a_search_asks_for_no_costs(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its steps that would be too dear: whether a pod fits is no taste."""
    for at, units in enumerate((35, 40)):
        pair.ledger.record(placement(f"p{at}", f"a-{at}", units, 1, node="a"))
    page = pair.ledger.node(A)
    assert page is not None
    calls: list[object] = []
    costs = pair.packer.costs

    def count(*args: Any) -> object:
        calls.append(args)
        return costs(*args)

    monkeypatch.setattr(pair.packer, "costs", count)
    assert find_refusal(apart(31, 31, 31, 31), page, pair.policy) is not None
    assert find_refusal(apart(30, 30, 30, 30), page, pair.policy) is None
    assert calls == []
    # In the order of the claims 5 goes beside 60 on either: only a search finds it.
    by_group = place(apart(5, 60, 60), page, pair.policy)
    assert isinstance(by_group, Placement)
    assert len(calls) <= 3


def test_containers_apart_are_priced_as_they_are_placed(pair: Cluster) -> None:
    """Price and placement are worked out in two rooms, and must be of one mind."""
    pair.see(asked("two", 200, 200))
    dice = random.Random(7)
    tables = pair.packer.tables
    assert tables is not None
    met = 0
    for _ in range(200):
        pair.ledger.set_cards(C, gpus("c", 4))
        for at in range(4):
            taken = dice.choice([0, dice.randrange(90)])
            pair.ledger.release(PodUID(f"uid-c{at}"))
            if taken:
                placed = placement(f"c{at}", f"c-{at}", taken, 1, node="c")
                pair.ledger.record(placed)
        pair.hosts.set_allocatable(C, HostAmount(dice.randrange(5, 30) * 1000, 10**6))
        page = pair.ledger.node(C)
        assert page is not None
        pod = apart(*(dice.randint(5, 60) for _ in range(dice.randint(2, 4))))
        placed = place(pod, page, pair.policy)
        if not isinstance(placed, Placement):
            continue
        met += 1
        there = PricedNode.of(page, pair.hosts.free(C), tables)
        cost = there.cost(pod, pair.policy)
        assert cost == pytest.approx(cost_of(there, placed), abs=1e-6)
    assert met > 50


def test_parts_that_make_a_card_are_priced_together(pair: Cluster) -> None:
    """They are two shares of it; a whole card beside them is another."""
    pair.see(asked("two", 200, 200))
    tables = pair.packer.tables
    assert tables is not None
    pair.ledger.set_cards(C, gpus("c", 2))
    pair.hosts.set_allocatable(C, HostAmount(20_000, 10**6))
    page = pair.ledger.node(C)
    assert page is not None
    wanted = ((4, 100), (30, 60), (20, 40))
    claims = [claim(*amounts, container=f"c{at}") for at, amounts in enumerate(wanted)]
    pod = request(claims=claims)
    placed = place(pod, page, pair.policy)
    assert isinstance(placed, Placement)
    assert len(placed.shares) == 3
    there = PricedNode.of(page, pair.hosts.free(C), tables)
    cost = there.cost(pod, pair.policy)
    assert cost == pytest.approx(cost_of(there, placed), abs=1e-6)


def cost_of(there: PricedNode, placed: Placement) -> float:
    """What the placement takes from the node's worth, by the tables themselves."""
    taken = placed.by_card()
    page, tables, state = there.node, there.tables, there.state
    after, rests, used = [], [], 0.0
    for card_, residual in zip(page.cards, state.residuals, strict=True):
        rest = residual
        if card_.uuid in taken:
            rest = milli_free(card_, page.free[card_.uuid] - taken[card_.uuid])
            rests.append(rest)
            used += tables.rest_worth(residual) - tables.rest_worth(rest)
        after.append(rest)
    assert state.cpu_milli is not None
    assert state.memory_mib is not None
    gone = FreeOnNode(
        state.cpu_milli - ASKED.cpu_milli,
        state.memory_mib - ASKED.memory_mib,
        tuple(after),
        state.model,
    )
    lost = tables.gauge(state).worth - tables.gauge(gone).worth
    cost = tables.charge(state.model, lost, used, sum(rests))
    return cost + tables.tie(gone.cpu_milli)


@pytest.mark.parametrize(("used", "best"), [(20_000, A), (100_000, B)])
def test_where_cpu_is_scarce_nodes_with_more_of_it_go_first(
    used: int, best: NodeName
) -> None:
    """Pods without cards use it, too. Else the first node is filled, by name."""
    cluster = Cluster(a=gpus("a"), b=gpus("b"), c=gpus("c"))
    cluster.hosts.set_allocatable(B, HostAmount(65_000, 256 * 1024))
    cluster.hosts.hold(PodUID("no-card"), C, HostAmount(used, 0))
    cluster.hosts.set_allocatable(C, HostAmount(100_000, 256 * 1024))
    cluster.bind(asked("one", 100, 100), "c")
    cluster.see(asked("half", 50), asked("whole", 100, 100))
    tables = cluster.packer.tables
    assert tables is not None
    assert tables.cpu_scarce == (best == B)
    for units in (50, 100):
        pod = asked("next", units, units if units > 99 else 1)
        assert cluster.packer.best(pod, [A, B], cluster.policy) == best


def test_nobody_waits_while_a_pod_is_priced(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new kind of pod on thousands of nodes takes a while; others have their answer.

    Here another thread asks in the midst of it, and is answered.
    """
    names, cost = [A, B], PricedNode.cost
    pair.packer.best(asked("known", 20), names, pair.policy)
    answers: list[NodeName | None] = []

    def ask() -> None:
        answers.append(pair.packer.best(asked("known", 20), names, pair.policy))

    def slow(self: PricedNode, request: PodRequest, *more: object) -> float:
        other = Thread(target=ask, daemon=True)
        other.start()
        other.join(10)
        return cost(self, request, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(PricedNode, "cost", slow)
    assert pair.packer.best(asked("new", 21), names, pair.policy) == A
    assert answers
    assert answers[0] == A


def test_nodes_that_are_alike_are_priced_once(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And known nodes not again: most of a cluster is alike, or as it was."""
    priced: list[NodeName] = []
    cost = PricedNode.cost

    def count(self: PricedNode, *more: object) -> float:
        priced.append(self.node.name)
        return cost(self, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(PricedNode, "cost", count)
    pods = [asked("x", 20), asked("y", 20, cards=CardSelector.of(models=["T4"]))]
    for pod in pods:
        priced.clear()
        assert pair.packer.best(pod, [A, B], pair.policy) == A
        assert len(priced) == 1
        pair.packer.best(pod, [A, B], pair.policy)
        assert len(priced) == 1
    pair.bind(asked("other", 30), "b")
    pair.packer.best(pods[0], [A, B], pair.policy)
    assert priced[1:] == [B]


def test_what_changes_while_it_is_priced_is_priced_again(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer about what was is not kept for what is."""
    cost = PricedNode.cost

    def meddle(self: PricedNode, *more: object) -> float:
        monkeypatch.setattr(PricedNode, "cost", cost)
        pair.ledger.record(placement("p", "a-0", 100, 100, node="a"))
        pair.ledger.record(placement("q", "a-1", 100, 100, node="a"))
        args = (asked("other", 70), [A, B], pair.policy)
        other = Thread(target=pair.packer.best, args=args, daemon=True)
        other.start()
        other.join(10)
        return cost(self, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(PricedNode, "cost", meddle)
    assert pair.packer.best(asked("new", 21), [A, B], pair.policy) == A
    assert pair.packer.best(asked("new", 21), [A, B], pair.policy) == B


def test_room_that_is_kept_for_a_pod_is_room_for_it(pair: Cluster) -> None:
    """Its nomination must not stand in its own way, as it does not in filter's."""
    me = asked("me", 100, 60)
    placed = Placement(me.pod, A, (share("a-0", 100, 60),))
    pair.ledger.nominate(A, {me.pod.uid: placed})
    pair.bind(asked("one", 100, 60), "a")
    full = [asked(f"f{at}", 100, 60) for at in range(2)]
    for pod in full:
        pair.bind(pod, "b")
    assert pair.packer.best(me, [A, B], pair.policy) == A
    assert pair.packer.best(asked("you", 100, 60), [A, B], pair.policy) is None
