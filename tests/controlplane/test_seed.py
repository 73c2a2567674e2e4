"""The scenarios of seed 001: which card each application gets."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest

from tests.controlplane.books import checked_books
from tests.controlplane.world import World, beside
from tests.testbed.controlplane import ControlPlane

pytestmark = pytest.mark.controlplane

GPU_0 = "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"
GPU_1 = "GPU-7cf0b881-7598-8b1a-3270-94d6f5d2479a"
ARRIVALS = sorted(set(permutations((4, 20, 20))))
ONE_SHORT = "0/1 nodes are available: 1 Insufficient baidu.com/vcuda-memory."


@pytest.fixture(scope="module")
def by_uuid_house(plane: ControlPlane) -> Iterator[World]:
    with beside(plane, "by-uuid", CARD_ORDER="uuid") as world:
        yield world


@pytest.fixture
def by_uuid(by_uuid_house: World, space: str) -> World:
    """A cluster whose extender takes the first card by UUID."""
    return replace(by_uuid_house, namespace=space, nodes=set())


def test_two_small_services_share_the_first_card(world: World) -> None:
    """2 + 2 GiB fit on one card of 4 GiB, so both use card 1."""
    world.node("edge", 16, 16)
    assert [world.runs("ai-1", 8, 1), world.runs("ai-2", 8, 1)] == ["edge-0"] * 2
    checked_books(world.rest)


def test_what_does_not_fit_beside_goes_to_the_second_card(world: World) -> None:
    """2 + 3 GiB do not fit on one card of 4 GiB, so they use one each."""
    world.node("edge", 16, 16)
    assert world.runs("ai-1", 8, 1) == "edge-0"
    assert world.runs("ai-2", 12, 1) == "edge-1"
    checked_books(world.rest)


@pytest.mark.parametrize("arrival", ARRIVALS, ids=str)
def test_two_cards_take_three_services_in_any_order(
    world: World, arrival: tuple[int, ...]
) -> None:
    """Two cards of 29 units: 4, 20 and 20 become {4, 20} and {20}."""
    world.node("edge", 29, 29)
    for number, units in enumerate(arrival):
        world.runs(f"app-{number}", units, 1)
    books = checked_books(world.rest)
    groups = sorted(
        sorted(units for _, units in books.holders(card).values())
        for card in books.units
    )
    assert groups == [[4, 20], [20]]


def test_the_seeds_own_picture(by_uuid: World) -> None:
    """Card order uuid and arrival 1, 3, 2 give exactly what the seed shows."""
    by_uuid.node("p4", 29, 29, uuids=[GPU_0, GPU_1])
    applications = {1: 4, 3: 20, 2: 20}
    found = {n: by_uuid.runs(f"app-{n}", u, 1) for n, u in applications.items()}
    assert found == {1: GPU_1, 3: GPU_1, 2: GPU_0}
    checked_books(by_uuid.rest)


def test_one_card_runs_fifty_forty_and_one(world: World) -> None:
    """A card of 24259 MiB has 94 units: 50 + 40 + 1 run."""
    world.node("rtx3090", 94)
    for number, units in enumerate((50, 40, 1), start=1):
        assert world.runs(f"base-{number}", units, 1) == "rtx3090-0"
    assert checked_books(world.rest).free() == {("rtx3090", "rtx3090-0"): (97, 3)}


def test_one_card_leaves_the_third_pending(world: World) -> None:
    """50 + 40 + 10 units are more than 94: the third waits, and its event says why."""
    world.node("rtx3090", 94)
    world.runs("base-1", 50, 1)
    world.runs("base-2", 40, 1)
    verdict = world.verdict(world.post("base-3", 10, 1))
    assert verdict.event.startswith(ONE_SHORT)
    checked_books(world.rest)


def test_most_of_a_card_is_a_card_alone(world: World) -> None:
    """With at least as many cards as pods of 80 percent, each has one to itself."""
    world.node("seven", *[29] * 7)
    for number in range(3):
        world.runs(f"app-{number}", 23, 1)
    books = checked_books(world.rest)
    counts = Counter(len(books.holders(card)) for card in books.units)
    assert counts == {1: 3, 0: 4}
