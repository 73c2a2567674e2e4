"""Why a pod waits, in one line for all nodes."""

from collections.abc import Mapping, Sequence

import pytest

from gpushare.domain.node import Node
from gpushare.domain.policies import PolicyChoice
from gpushare.informers.shortage import find_shortage
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.codec import read_pod_record
from gpushare.kube.node_filters import read_properties
from tests.builders import card, cards, container_json, node, placement, pod_json

FULL = node(*cards(29, 16), holds=[placement("a", 0, 20)], name="full")
EMPTY = node(name="empty")
CORELESS = node(holds=[placement("a", 0, 2, 99), placement("b", 0, 2, 1)])
SICK = node(card(0, 60, healthy=False))
ZONES = {"full": "a", "empty": "b"}


def said(pod: Json, *nodes: Node, zones: Mapping[str, str] = ZONES) -> str:
    properties = {
        each_node.name: read_properties(
            {
                "metadata": {
                    "name": each_node.name,
                    "labels": {"zone": zones[each_node.name]},
                }
            }
        )
        for each_node in nodes
        if each_node.name in zones
    }
    return str(find_shortage(read_pod_record(pod), nodes, PolicyChoice(), properties))


def tied(units: int, zone: str) -> Json:
    pod = pod_json(units=units, cores=1)
    pod["spec"]["nodeSelector"] = {"zone": zone}
    return pod


def apart(*units: int) -> Json:
    containers = [container_json(f"c{n}", size) for n, size in enumerate(units)]
    return pod_json(containers=containers, annotations={names.CONTAINERS: names.APART})


ONLY = "on the node that it may use, no card has"
NOT = "it may not use empty (its nodeSelector is zone=a, the node has zone=b)"


@pytest.mark.parametrize(
    ("pod", "nodes", "words"),
    [
        (tied(9, "a"), [FULL, EMPTY], "there is room on full; see"),
        (
            tied(20, "a"),
            [FULL, EMPTY],
            f"{ONLY} 20 units free; the most is 16, on full card 1; {NOT}",
        ),
        (
            tied(20, "c"),
            [EMPTY],
            "it may use no node with cards: empty (its nodeSelector is zone=c, the",
        ),
        # Nothing is known of this node but its cards.
        (tied(20, "c"), [node()], "there is room on n; see"),
    ],
    ids=["room", "too little", "nowhere", "not known"],
)
def test_a_node_that_the_pod_may_not_use_has_no_room(
    pod: Json, nodes: Sequence[Node], words: str
) -> None:
    assert said(pod, *nodes).startswith(words)


@pytest.mark.parametrize(
    ("pod", "nodes", "words"),
    [
        (pod_json(units=30), [FULL], "30 units are asked, but the largest card has 29"),
        (
            pod_json(cores=300),
            [FULL],
            "3 whole cards are asked, but no node has more than 2 cards",
        ),
        (
            pod_json(cores=200, units=50),
            [FULL],
            "50 units are asked, but the 2 largest cards have 45",
        ),
        (
            tied(30, "b"),
            [node(card(0, 60), name="full"), EMPTY],
            "on the node that it may use, 30 units are asked, but the largest card has",
        ),
        (
            pod_json(units=30, annotations={names.MODELS: "Tesla P4"}),
            [node(card(0), card(1, 60, model="A10"))],
            "30 units are asked, but the largest card that it may use has 29",
        ),
        (apart(40, 40), [node(card(0, 60))], "no node could hold its 2 containers"),
        (
            pod_json(cores=200),
            [node(card(0), card(100, 19, parent="GPU-9"))],
            "2 whole cards are asked, but no node has more than 1 card of one kind",
        ),
    ],
)
def test_what_can_never_run_is_said_first(
    pod: Json, nodes: Sequence[Node], words: str
) -> None:
    """Whatever is free now."""
    reason = said(pod, *nodes)
    assert reason.startswith(words)
    assert "so it can never run here" in reason


@pytest.mark.parametrize(
    ("pod", "nodes", "words"),
    [
        # A closed card may be opened again.
        (pod_json(units=30), [SICK], "no node has a healthy, uncordoned card"),
        (pod_json(units=29, cores=1), [FULL], "no card has 29 units free; the most"),
        (
            pod_json(units=5, cores=1),
            [CORELESS],
            "no card has a free core; 25 units are free on cards without one",
        ),
        (
            pod_json(units=25, cores=1),
            [CORELESS, node(card(0, 40), holds=[placement("c", 0, 30)])],
            "no card has 25 units free; the most is 10",
        ),
        (pod_json(cores=200), [FULL], "no node has 2 untouched cards; the most is 1"),
    ],
)
def test_what_may_fit_later(pod: Json, nodes: Sequence[Node], words: str) -> None:
    """Units on a card without a free core are no room for a pod that asks for one."""
    assert said(pod, *nodes).startswith(words)
