"""What a pod costs on a page, by the published table of states and scores."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.frag.costs import NEVER, PricedNode
from gpushare.domain.frag.learner import learn
from gpushare.domain.frag.prices import Tables, plain
from gpushare.domain.frag.shapes import WHOLE, Pool, Shape, State, state_of
from gpushare.domain.hosts import HostAmount
from gpushare.domain.model import Claim, PodRef, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.policies import POLICIES
from tests.builders import card, claim, node, placement

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


def host_of(seen: dict[str, Any]) -> HostAmount | None:
    if "cpu" not in seen:
        return None
    return HostAmount(seen["cpu"], seen.get("memory", 10**9))


def claims_of(ask: dict[str, Any]) -> tuple[Claim, ...]:
    if not ask["cards"]:
        return ()
    if ask["milli"] == WHOLE:
        return (claim(WHOLE * ask["cards"], 100 * ask["cards"]),)
    return (claim(ask["milli"], 0),)


def request_of(ask: dict[str, Any]) -> PodRequest:
    models = ask.get("models")
    return PodRequest(
        PodRef(PodUID("u"), "d", "asking"),
        claims_of(ask),
        cards=CardSelector.of(models=models) if models else None,
        host=HostAmount(ask.get("cpu", 0), ask.get("memory", 0)),
    )


def tables_of(case: dict[str, Any], states: list[State]) -> Tables:
    built = case["built"]
    pool = Pool.of(
        states,
        cards=built["cards"],
        cpu_milli=built.get("cpu"),
        memory_mib=built.get("memory"),
    )
    seen = {
        Shape(
            pod["milli"],
            pod["cards"],
            pod.get("cpu", 0),
            pod.get("memory", 0),
            frozenset(pod["models"]) if "models" in pod else None,
        ): pod["count"]
        for pod in case["pods"]
    }
    return (learn(seen, pool) if seen else plain()).under(pool)


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["id"])
def test_pages_cost_what_the_table_says(case: dict[str, Any]) -> None:
    """Cards of cores and units come out as thousandths of a card do."""
    request, costs = request_of(case["ask"]), {}
    pages = [(page_of(seen), host_of(seen)) for seen in case["nodes"]]
    tables = tables_of(case, [state_of(p, host, p.free) for p, host in pages])
    for page, host in pages:
        standing = PricedNode.of(page, host, tables)
        assert standing.gauge.worth == pytest.approx(case["worth"][page.name], abs=1e-6)
        if request.host is not None and not request.host.fits(host):
            continue  # It is kube-scheduler that does not let it there.
        cost = standing.cost(request, FRAG, tables)
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
    (asked,) = request.claims
    page, uuids = standing.node, [each.uuid for each in standing.node.cards]
    if asked.whole_cards:
        return uuids.index(page.untouched[0].uuid)
    found = standing.share_costs(asked, request.host, standing.tables)
    _, uuid = min((cost, look.cards[0]) for cost, look in found)
    return uuids.index(uuid)


def test_every_case_has_a_name_of_its_own() -> None:
    """Or a failure names the wrong one."""
    names = [case["id"] for case in CASES["cases"]]
    assert len(set(names)) == len(names)


def test_cores_and_memory_are_left_apart() -> None:
    """Half of the cores and nine tenths of the memory: 400 left, not 100."""
    page = node(card(0, WHOLE), holds=[placement("p", 0, 100, 50)])
    tables = plain()
    standing = PricedNode.of(page, None, tables)
    assert standing.state.residuals == (500,)
    ((cost, _),) = standing.share_costs(claim(400, 10), None, tables)
    assert cost == pytest.approx(80 + 400e-7)


def test_containers_apart_are_priced_together() -> None:
    """Each on its card, as bind would place them."""
    page = node(card(0, WHOLE), card(1, WHOLE))
    tables = plain()
    both = PodRequest(PodRef(PodUID("u"), "d", "apart"), (claim(600, 1), claim(500, 1)))
    cost = PricedNode.of(page, None, tables).cost(both, FRAG, tables)
    assert cost == pytest.approx(1120 + (400 + 500) * 1e-7)
