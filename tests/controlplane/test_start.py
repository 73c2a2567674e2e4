"""How the extender starts: not without its books, and not with wrong settings."""

import signal

import pytest

from tests.controlplane.books import checked_books
from tests.controlplane.by_hand import ASK, BIND
from tests.controlplane.extender import extender
from tests.controlplane.world import World
from tests.testbed.controlplane import ControlPlane
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane


def test_extender_started_without_an_apiserver(world: World) -> None:
    """Until it has listed nodes and pods it says so in words, and pods wait."""
    world.node("edge", 29, 29)
    world.runs("before", 20, 1)
    world.extender.kill()
    world.plane.stop_apiserver()
    world.extender.start(wait=False)
    _, answer = wait_until(
        world.extender.readiness, "words", accept=lambda seen: seen[0] == 503
    )
    assert "nodes have not been listed yet\npods have not been listed yet" in answer
    answered = world.extender.rest.must("POST", "/scheduler/filter", ASK)
    assert answered["NodeNames"] == []
    words = "vcuda extender is not ready: nodes have not been listed yet"
    assert answered["Error"].startswith(words)
    answered = world.extender.rest.must("POST", "/scheduler/bind", BIND)
    assert answered["Error"].startswith(words)
    world.plane.start_apiserver()
    world.extender.wait_ready()
    assert world.runs("after", 20, 1) == "edge-1"
    checked_books(world.rest)


def test_not_ready_before_the_first_list(plane: ControlPlane) -> None:
    """With an API server that hangs it says in words that nothing has been listed."""
    late = extender(plane, "late")
    plane.kill("kube-apiserver", signal.SIGSTOP)
    try:
        late.start(wait=False)
        wait_until(late.readiness, "words", accept=lambda seen: seen[0] == 503)
        words = "nodes have not been listed yet\npods have not been listed yet\n"
        assert late.readiness() == (503, words)
        assert late.public.get("/healthz")[0] == 200
        answer = late.rest.must("POST", "/scheduler/filter", ASK)
        assert answer["Error"].startswith("vcuda extender is not ready: nodes have")
    finally:
        plane.kill("kube-apiserver", signal.SIGCONT)
        late.wait_ready()
        assert late.rest.must("POST", "/scheduler/filter", ASK)["Error"] == ""
