"""What each policy chooses, against its definition written out plainly."""

import math
import random

import pytest

from bench.packing.cluster import ReplayCluster, ScoreBook, Shape, Spot
from bench.packing.fgd import Fgd, typical_pods
from bench.packing.peers import BestFit, Chance, FirstFit
from tests.bench.packing.building import cluster, node, shape

TYPICAL = [
    *(shape(1000), shape(500, cpu=4000), shape(300), shape(1000, cards=2, cpu=8000)),
    *(shape(250, models="B"), shape(cpu=6000)),
]
NODES = [node(cards=cards, cpu=12_000, model=m) for cards in (1, 2, 4) for m in "AB"]


def unusable(
    free: list[int], cpu: int, model: str, typical: list[tuple[Shape, float]]
) -> float:
    """F of a node, as the paper has it."""
    worth = 0.0
    for pod, part in typical:
        able = [milli for milli in free if pod.cards and milli >= pod.milli]
        right = pod.models is None or model in pod.models
        if right and cpu >= pod.cpu_milli and pod.cards and len(able) >= pod.cards:
            worth += part * (sum(free) - sum(able))
        else:
            worth += part * sum(free)
    return worth


def points(
    nodes: ReplayCluster,
    row: int,
    asked: Shape,
    card: int,
    typical: list[tuple[Shape, float]],
) -> int:
    """FGD's score of one card of a node, which has room."""
    free, cpu = nodes.free[row].tolist(), int(nodes.cpu[row])
    model = nodes.nodes[row].model
    before = unusable(free, cpu, model, typical)
    whole = [card for card, milli in enumerate(free) if milli == 1000]
    for taken in [card] if asked.cards == 1 else whole[: asked.cards]:
        free[taken] -= asked.milli
    after = unusable(free, cpu - asked.cpu_milli, model, typical)
    return int(100 / (1 + math.exp(-(before - after) / 1000)))


def fgd_by_hand(
    nodes: ReplayCluster, asked: Shape, typical: list[tuple[Shape, float]]
) -> Spot | None:
    best, place = -1, None
    for row in range(len(nodes.nodes)):
        if not nodes.fits(asked, nodes.all)[row]:
            continue
        cards = nodes.able(asked, row).tolist() if asked.cards == 1 else [-1]
        for card in cards:
            score = points(nodes, row, asked, card, typical)
            if score > best:
                best, place = score, Spot(row, card)
    return place


@pytest.mark.parametrize("seed", range(4))
def test_fgd_decides_as_its_definition_through_a_whole_filling(seed: int) -> None:
    """Each step changes a node, so what is kept of it must be brought up to date."""
    nodes, dice = cluster(*NODES), random.Random(seed)
    fgd, typical = Fgd(nodes, TYPICAL), typical_pods(TYPICAL)
    for _ in range(40):
        asked = dice.choice(TYPICAL)
        spot = fgd.choose(asked)
        assert spot == fgd_by_hand(nodes, asked, typical)
        if spot is not None:
            nodes.take(asked, spot)


def test_typical_pods_are_the_most_frequent_up_to_95_in_100() -> None:
    """Memory does not make another shape."""
    pods = [shape(500)] * 60 + [shape(500, memory=1)] * 30 + [shape(300)] * 9
    found = typical_pods([*pods, shape(100)])
    assert [(pod.milli, round(part, 3)) for pod, part in found] == [
        *((500, round(90 / 99, 3)), (300, round(9 / 99, 3)))
    ]


def test_best_fit_takes_the_fullest_node_and_its_tightest_card() -> None:
    nodes = cluster(node(cards=8, cpu=64_000), node(cards=2), node(cards=2))
    nodes.take(shape(600), Spot(2, 1))
    assert BestFit(nodes).choose(shape(300)) == Spot(2, 1)
    assert BestFit(nodes).choose(shape(500)) == Spot(2, 0)
    assert BestFit(nodes).choose(shape(1000, cards=4)) == Spot(0, 0)
    assert BestFit(nodes).choose(shape(1000, cards=9)) is None


def test_first_fit_takes_the_first_node_and_the_lowest_card() -> None:
    nodes = cluster(node(model="B"), node(cards=2), node(cards=2))
    nodes.take(shape(600), Spot(1, 0))
    policy = FirstFit(nodes)
    assert policy.choose(shape(300, models="A")) == Spot(1, 0)
    assert policy.choose(shape(500, models="A")) == Spot(1, 1)
    assert policy.choose(shape()) == Spot(0)
    assert policy.choose(shape(1000, models="C")) is None


def test_chance_takes_every_place_with_room_and_no_other() -> None:
    nodes = cluster(node(cards=2), node(model="B"), node(cpu=100))
    nodes.take(shape(600), Spot(0, 1))
    policy = Chance(nodes, 42)
    assert {policy.choose(shape(500)) for _ in range(60)} == {Spot(0, 0), Spot(1, 0)}
    assert policy.choose(shape(1000, models="C")) is None


def test_kept_scores_are_those_that_would_be_made_anew() -> None:
    nodes, dice = cluster(*NODES), random.Random(1)
    policy = BestFit(nodes)
    for _ in range(60):
        asked = dice.choice(TYPICAL)
        spot = policy.choose(asked)
        fresh = ScoreBook(nodes, policy._score)
        for pod in TYPICAL:
            kept = policy._book.scores(pod)
            assert kept.tolist() == fresh.scores(pod).tolist()
        if spot is not None:
            nodes.take(asked, spot)
