"""Two commands at once: the second waits, and nobody waits for one that was killed."""

from collections.abc import Callable
from itertools import count
from threading import Event

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.errors import Forbidden, Unavailable
from gpusharectl.installer.lock import LASTS_S, LEASE, _Lease, hold_lease
from gpusharectl.installer.progress import Exit, InstallError
from tests.gpusharectl.installer.fake_objects import FakeObjects
from tests.gpusharectl.installer.installed_cluster import InstalledCluster

WORDS = "install on cp-2 (process 7)"
OTHER = f"{WORDS}_0b9c"


def take(world: InstalledCluster, holder: str = OTHER) -> _Lease:
    """Let another command take the Lease."""
    lease = _Lease(world.nodes.objects, lambda: 0.0, holder)
    assert lease.take() == []
    return lease


def holder(world: InstalledCluster) -> str:
    found = world.objects.get(LEASE)
    return str(found["spec"]["holderIdentity"]) if found else ""


def at_each_pause(world: InstalledCluster, act: Callable[[int], object]) -> None:
    step, numbers = world.nodes.step, count(1)

    def both() -> None:
        act(next(numbers))
        step()

    world.nodes.step = both


def renewed(lease: _Lease) -> None:
    """Renew it once, as its thread does."""
    over = Event()
    turns = iter((False, True))
    over.wait = lambda _: next(turns)
    lease.keep(over)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_it_is_held_while_the_command_runs(
    world: InstalledCluster, error: type[BaseException] | None
) -> None:
    """And gone afterwards, however that ends."""
    try:
        with hold_lease(world.context(), "install"):
            assert holder(world).startswith("install on ")
            if error:
                raise error
    except KeyboardInterrupt:
        pass
    assert holder(world) == ""


def test_the_second_waits_for_the_end_of_the_first(world: InstalledCluster) -> None:
    """Longer than a Lease lasts, as long as it is renewed."""
    lease = take(world)
    at_each_pause(world, lambda turn: renewed(lease) if turn < 20 else lease.release())
    with hold_lease(world.context(), "uninstall"):
        assert world.clock.now_s == 20
        assert holder(world).startswith("uninstall on ")
    (one, *_) = world.screen.waits
    assert str(one) == f"gpusharectl {WORDS}: its end"


def test_it_does_not_wait_for_ever(world: InstalledCluster) -> None:
    lease = take(world)
    at_each_pause(world, lambda _: renewed(lease))
    with pytest.raises(InstallError) as error, hold_lease(world.context(), "install"):
        pytest.fail("two at once")
    assert error.value.exit_code is Exit.REFUSED
    assert error.value.why == f"gpusharectl {WORDS} still runs; nothing was changed"
    assert holder(world) == OTHER


def test_a_killed_command_is_not_waited_for(world: InstalledCluster) -> None:
    """Whatever its clock says, which may be another host's."""
    take(world)
    world.objects.merge(LEASE, {"spec": {"renewTime": "2099-01-01T00:00:00.000000Z"}})
    with hold_lease(world.context(), "install"):
        assert world.clock.now_s == LASTS_S
        assert holder(world) != OTHER


def test_two_containers_are_two_commands(world: InstalledCluster) -> None:
    """Though host name and process number are the same in both."""
    with hold_lease(world.context(), "install"):
        first = holder(world)
    take(world, first)
    with hold_lease(world.context(), "install"):
        assert world.clock.now_s == LASTS_S


def test_of_two_that_find_a_left_lease_one_has_it(world: InstalledCluster) -> None:
    take(world, "killed")
    merge = world.objects.merge

    def late(ref: object, patch: Json, **more: str) -> Json:
        world.objects.merge = merge
        world.nodes.objects.merge(LEASE, {"spec": {"holderIdentity": OTHER}})
        return merge(ref, patch, **more)

    world.objects.merge = late
    with hold_lease(world.context(), "install"):
        assert world.clock.now_s > 2 * LASTS_S


def test_one_that_was_suspended_renews_no_others_lease(world: InstalledCluster) -> None:
    mine = take(world, "suspended")
    world.objects.merge(LEASE, {"spec": {"holderIdentity": OTHER}})
    before = world.objects.get(LEASE)
    renewed(mine)
    mine.release()
    assert world.objects.get(LEASE) == before


def test_a_lost_answer_is_no_other_command(
    world: InstalledCluster, objects: FakeObjects
) -> None:
    objects.fails(1, lambda: Unavailable("no answer"), done=True)
    with hold_lease(world.context(), "install"):
        assert world.clock.now_s == 1


def test_without_the_right_the_checks_say_so(
    world: InstalledCluster, objects: FakeObjects
) -> None:
    objects.fails(1, lambda: Forbidden("no"), done=False)
    with hold_lease(world.context(), "install"):
        assert holder(world) == ""
    objects.denied.add("create leases.coordination.k8s.io")
    assert world.install() == Exit.REFUSED
    assert "create leases.coordination.k8s.io in kube-system" in world.screen.text
