"""What survives when a part is killed: no card over-committed, no pod forgotten."""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.controlplane.books import checked_books, pending_though_fitting
from tests.controlplane.extender import USER
from tests.controlplane.world import World, node_of, post_all
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

SEED = 20240613


def bound_pods(world: World) -> list[Json]:
    return [a_pod for a_pod in world.pods() if node_of(a_pod)]


def wait_for_bound(world: World, count: int, timeout_s: float = 180.0) -> None:
    wait_until(
        lambda: len(bound_pods(world)),
        f"{count} bound pods",
        timeout_s,
        accept=lambda found: found >= count,
    )


def wait_until_settled(world: World) -> None:
    """Wait until each pod that waits does so because no card has room for it."""
    wait_until(
        lambda: pending_though_fitting(world.rest),
        "end of pods that wait although they fit",
        180.0,
        accept=lambda names: not names,
        every_s=0.2,
    )


def big_nodes(world: World) -> None:
    """Four nodes with eight cards of 28 units: room for 224 pods of 4."""
    for number in range(4):
        world.node(f"big-{number}", *[28] * 8)


@contextmanager
def burst(world: World) -> Iterator[None]:
    """Create 200 pods of 4 units, half of them before the block and half during it.

    The block begins with some pods bound and more on their way, and its end waits for
    the creation of the rest.
    """
    pods = [world.pod(f"burst-{n}", 4, 3) for n in range(200)]
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(post_all, world, pods[:100])
        wait_for_bound(world, 20)
        late = pool.submit(post_all, world, pods[100:])
        yield
        early.result()
        late.result()


def test_extender_killed_in_a_burst(world: World) -> None:
    """Killed with -9 between 200 pods and started again: all that fit are placed.

    24 more of the same size would fill the cards; of 30 that come late, six wait.
    """
    big_nodes(world)
    with burst(world):
        world.extender.kill()
    checked_books(world.rest)
    world.extender.start()
    wait_for_bound(world, 200)
    late = post_all(world, [world.pod(f"late-{n}", 4, 3) for n in range(30)])
    wait_for_bound(world, 224)
    verdicts = [world.verdict(each) for each in late]
    assert sum(not verdict.node for verdict in verdicts) == 6
    assert set(checked_books(world.rest).free().values()) == {(79, 0)}


def test_worker_killed(world: World) -> None:
    """gunicorn replaces a worker that died; the new one reads the books back."""
    world.node("edge", 29, 29)
    world.runs("before", 20, 1)
    (worker,) = world.extender.workers()
    os.kill(worker, signal.SIGKILL)
    wait_until(
        world.extender.workers,
        "new worker",
        accept=lambda pids: len(pids) == 1 and worker not in pids,
    )
    world.extender.wait_ready()
    assert world.runs("after", 20, 1) == "edge-1"
    assert world.runs("small", 9, 1) == "edge-0"
    checked_books(world.rest)


def test_apiserver_restarted(world: World) -> None:
    """Nobody answers while it is away; afterwards everything goes on as before."""
    world.node("edge", 29, 29)
    world.runs("before", 20, 1)
    pods = [world.pod(f"burst-{n}", 3, 1) for n in range(12)]
    post_all(world, pods)
    wait_for_bound(world, 4)
    world.plane.kill("kube-apiserver", signal.SIGKILL)
    world.plane.start_apiserver()
    wait_for_bound(world, 13)
    waiting = world.post("waiting", 10, 1)
    assert not world.verdict(waiting).node
    free = {("edge", "edge-0"): (96, 0), ("edge", "edge-1"): (91, 2)}
    assert checked_books(world.rest).free() == free
    world.extender.wait_ready()


def test_three_hundred_pods_of_random_sizes(world: World) -> None:
    """Every card's sum is at most its capacity, and who waits fits on no card.

    So it is again after a third of those that run have gone.
    """
    draw = random.Random(SEED)
    for number in range(6):
        sizes = [draw.choice([16, 29, 29, 64, 94]) for _ in range(draw.randint(2, 8))]
        world.node(f"node-{number}", *sizes)
    pods = [random_pod(world, draw, number) for number in range(300)]
    posted = post_all(world, pods)
    for each in posted:
        world.verdict(each, timeout_s=60)
    wait_until_settled(world)
    running = bound_pods(world)
    assert 50 < len(running) < 300
    for each in draw.sample(running, len(running) // 3):
        world.delete(each)
    wait_until(
        lambda: len(world.pods()),
        "end of the deleted",
        accept=lambda left: left == 300 - len(running) // 3,
    )
    wait_until_settled(world)


def random_pod(world: World, draw: random.Random, number: int) -> Json:
    """Mostly shares of both, some of one part alone, a few whole cards."""
    name = f"random-{number}"
    kind = draw.random()
    if kind < 0.04:
        return world.pod(name, draw.randint(1, 30), 100 * draw.randint(1, 2))
    if kind < 0.12:
        return world.pod(name, draw.randint(1, 40))
    if kind < 0.16:
        return world.pod(name, None, draw.randint(1, 99))
    return world.pod(name, draw.randint(1, 40), draw.randint(1, 60))


def test_one_write_per_pod(world: World) -> None:
    """Fifty pods cost fifty Bindings of our user's, one each, and no other write."""
    world.node("edge", *[29] * 8)
    mark = world.plane.audit.mark()
    posted = post_all(world, [world.pod(f"pod-{n}", 4, 1) for n in range(50)])
    for each in posted:
        assert world.bound(each).cards
    calls = wait_until(
        lambda: [c for c in world.plane.audit.calls(mark) if c.user == USER.name],
        "fifty bindings in the audit log",
        accept=lambda seen: len([c for c in seen if c.verb == "create"]) >= 50,
    )
    bindings = [c.name for c in calls if c.resource == "pods/binding"]
    assert Counter(bindings) == {f"pod-{n}": 1 for n in range(50)}
    writes = world.plane.audit.writes(USER.name, mark)
    assert writes == {"create pods/binding": 50}
    assert {c.status for c in calls if c.verb == "create"} == {201}
    checked_books(world.rest)
