"""Copies of one node and one pod, and what is read off a large cluster."""

import json

import pytest

from bench import crowd
from bench.crowd import Pace
from bench.placed import placement_text
from bench.stage import node_body
from bench.takeover import longest_gap
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Amount
from gpushare.domain.policies import PolicyChoice
from gpushare.informers.nodes import NodeInformer
from gpushare.informers.pods import PodInformer
from gpushare.kube.cluster import ListPage
from gpushare.kube.names import PLACEMENT
from tests.testbed.objects import pod

UID = "11111111-2222-4333-8444-555555555555"
SMALL = Amount(1, 4)


def template() -> crowd.Template:
    """What the API server would have stored of the one node and the one pod."""
    node = node_body(crowd.NODE, crowd.CARDS)
    node["metadata"]["uid"] = "the-node"
    running = pod(crowd.POD, units=SMALL.units, cores=SMALL.cores)
    running["metadata"]["uid"] = UID
    text = placement_text(running, crowd.NODE, f"GPU-{crowd.NODE}-0", SMALL)
    running["metadata"]["annotations"][PLACEMENT] = text
    running["spec"]["nodeName"] = crowd.NODE
    running["status"] = {"phase": "Running"}
    text = json.dumps(running)
    return crowd.Template(json.dumps(node), "the-node", "", "", text, UID)


def page(pairs: list[tuple[str, str]]) -> list[ListPage]:
    return [ListPage(tuple(json.loads(value) for _, value in pairs), "1", "")]


def test_the_books_take_each_copy_for_a_pod_of_its_own() -> None:
    """Two nodes, twenty pods: each card has one, and the first two of each node two."""
    nodes = list(crowd.nodes(template(), 2))
    pods = list(crowd.pods(template(), 20, 2))
    assert nodes[0][0] == "/registry/minions/node-00000"
    assert pods[0][0] == "/registry/pods/default/pod-000000"
    ledger = Ledger()
    pod_book = PodInformer(ledger, PolicyChoice("first-fit"))
    NodeInformer(ledger, set_cards=pod_book.set_cards).replace(iter(page(nodes)))
    pod_book.replace(iter(page(pods)))
    assert not any(map(pod_book.is_without_placement, pod_book.records()))
    assert len(ledger.holders()) == 20
    held = {node.name: list(node.charged.values()) for node in ledger.nodes()}
    each = [(2, 8)] * 2 + [(1, 4)] * 6
    assert held == {"node-00000": each, "node-00001": each}


def test_the_pace_waits_for_each_number_and_ends_in_time() -> None:
    """Who comes late does not wait; the time ends it, not the count."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    pace = Pace(10, 1.0, lambda: now, sleep)
    assert [(pace.take(), round(now, 2)) for _ in range(3)] == [
        (0, 0),
        (1, 0.1),
        (2, 0.2),
    ]
    now = 0.9
    assert [(pace.take(), now) for _ in range(2)] == [(3, 0.9), (4, 0.9)]
    now = 1.0
    assert pace.take() is None


@pytest.mark.parametrize(
    ("since", "gap"), [(0.0, 9.0), (3.5, 9.0), (12.5, 2.0), (14.0, 2.0)]
)
def test_the_longest_time_without_a_placement(since: float, gap: float) -> None:
    """One that began before the end counts, one that was over by then does not."""
    assert longest_gap([0, 1, 2, 3, 12, 13, 15], since) == gap
