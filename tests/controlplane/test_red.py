"""The tests next door can fail: with a filter that answers "all nodes", they do."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.controlplane.books import checked_book, pending_though_fitting
from tests.controlplane.cases import CASES, Case
from tests.controlplane.extender import extender
from tests.controlplane.naive import NaiveExtender, serving
from tests.controlplane.world import EAGER, World, post_all
from tests.testbed.controlplane import ControlPlane
from tests.testbed.kubelet import StandInKubelet

pytestmark = pytest.mark.controlplane


@pytest.fixture(scope="module", params=[False, True], ids=["real-bind", "first-card"])
def shared(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[World]:
    """A scheduler whose extender lets every pod through to every node."""
    with extender(plane, "behind") as real, StandInKubelet(plane.rest) as kubelet:
        world = World(plane, real, kubelet)
        naive = NaiveExtender(world, first_card=request.param)
        with (
            serving(naive),
            plane.start_scheduler(
                "naive", extender_url=naive.url, settings=EAGER
            ) as scheduler,
        ):
            yield replace(world, scheduler=scheduler)


@pytest.fixture
def first_card(request: pytest.FixtureRequest) -> bool:
    return "first-card" in request.node.name


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_refusals_go_red(world: World, case: Case) -> None:
    """No refusal of ours comes about by itself: each of these tests fails."""
    case.arrange(world)
    with pytest.raises(AssertionError, match=r"something else|runs on"):
        case.check(world)


def test_capacity_goes_red(world: World, first_card: bool) -> None:
    """Sums over the objects show a card that has too much.

    With the real bind there is none, because bind decides whatever filter said.
    """
    world.node("edge", 29, 29)
    posted = post_all(world, [world.pod(f"pod-{n}", 10, 1) for n in range(5)])
    if first_card:
        for each in posted:
            world.bound(each)
        with pytest.raises(AssertionError, match="over their capacity"):
            checked_book(world.rest)
    else:
        for each in posted:
            world.verdict(each)
        assert not pending_though_fitting(world.rest)
