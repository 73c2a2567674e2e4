import pytest

from bench.packing.cluster import Shape, Spot
from tests.bench.packing.building import cluster, node, shape


def test_a_pod_fits_by_cpu_memory_cards_and_model() -> None:
    nodes = cluster(
        node(),
        node(cpu=500),
        node(memory=512),
        node(cards=0, model=""),
        node(model="B"),
    )
    assert nodes.fits(shape(500, models="A"), nodes.all).tolist() == [
        *(True, False, False, False, False)
    ]
    assert nodes.fits(shape(), nodes.all).tolist() == [True, False, False, True, True]


def test_whole_cards_are_the_lowest_untouched_ones_and_come_back() -> None:
    nodes = cluster(node(cards=4))
    share = nodes.take(shape(300), Spot(0, 1))
    several = nodes.take(shape(1000, cards=2), Spot(0))
    assert several.cards == (0, 2)
    assert nodes.free[0].tolist() == [0, 700, 0, 1000]
    nodes.give_back(several)
    nodes.give_back(share)
    assert nodes.free[0].tolist() == [1000] * 4
    assert (nodes.cpu[0], nodes.memory[0]) == (32_000, 65_536)
    assert nodes.changes == [0, 0, 0, 0]
    assert nodes.ended == [several, share]


@pytest.mark.parametrize(
    "asked", [shape(600), shape(1000, cards=2), shape(cpu=40_000), shape(memory=10**6)]
)
def test_a_place_without_room_is_a_fault_of_the_policy(asked: Shape) -> None:
    nodes = cluster(node())
    nodes.take(shape(500), Spot(0, 0))
    with pytest.raises(AssertionError, match="does not fit"):
        nodes.take(asked, Spot(0, 0))
