"""The webhook's certificate: made, renewed and left, and believed at every moment.

Two installs at once: each is held up before one of its writes; then the first goes on
to its end, and then the second. After every write the API server is looked at.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.errors import Unavailable
from gpushare.kube.objects import Ref
from gpusharectl.installer.options import WebhookOptions
from gpusharectl.installer.progress import Exit
from gpusharectl.installer.webhook.objects import CONFIGURATIONS, SECRET, SECRETS
from tests.gpusharectl.installer.fake_objects import copied
from tests.gpusharectl.installer.installed_cluster import InstalledCluster
from tests.gpusharectl.installer.trust_checking_objects import (
    TrustCheckingObjects,
    bundle,
    shown,
)

NOW = InstalledCluster.now
DUE = NOW + timedelta(days=250)
WANTED = WebhookOptions(wanted=True)


@pytest.fixture
def objects() -> TrustCheckingObjects:
    return TrustCheckingObjects(NOW)


def test_the_first_is_believed_from_the_first_moment(world: InstalledCluster) -> None:
    """The API server asks when a replica is Ready, not before."""
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    assert world.objects.moments
    assert len(bundle(world.objects)) == 1
    assert "written: Secret kube-system/gpushare-webhook-tls" in world.screen.lines
    lines = world.screen.lines
    asked = "from now on, the API server asks the webhook about pods with cards"
    assert lines.index("gpushare-webhook: running") < lines.index(asked)


def test_cut_off_at_any_write_it_goes_on_without_a_gap(tmp_path: Path) -> None:
    """A renewal, interrupted where it is worst, and run again."""
    numbers = _renewal(tmp_path / "whole", 0)
    assert len(numbers) > 5
    for number in numbers:
        _renewal(tmp_path / str(number), number)


def _renewal(folder: Path, cut_off: int) -> list[int]:
    """Renew after a first try that lost one answer; give the calls that write."""
    objects = TrustCheckingObjects(NOW)
    world = InstalledCluster(objects, folder, now=NOW).populate()
    world.install(webhook=WANTED)
    world.now = objects.now = DUE
    if cut_off:
        objects.fails(cut_off, lambda: Unavailable("no answer"), done=True)
        assert world.install() in (Exit.STOPPED, Exit.DONE)
        objects.look()
    before = len(objects.calls)
    objects.writes.clear()
    assert world.install() == Exit.DONE, world.screen.text
    assert len(bundle(objects)) == 1
    return [
        at for at, one in enumerate(objects.calls[before:], 1) if one in objects.writes
    ]


def test_a_broken_one_is_made_anew(
    world: InstalledCluster, objects: TrustCheckingObjects
) -> None:
    world.install(webhook=WANTED)
    first = shown(objects)
    objects.kept[SECRET]["data"]["tls.crt"] = "~"
    objects.look = lambda: None
    assert world.install() == Exit.DONE, world.screen.text
    del objects.look
    objects.look()
    assert len(bundle(objects)) == 1
    assert shown(objects) != first


def test_of_all_secrets_it_reads_its_own(world: InstalledCluster) -> None:
    """And without the webhook none."""

    def read() -> set[str]:
        asked = {
            one for one in world.objects.calls if "ecret" in one and "may " not in one
        }
        return {one.split(" ", 1)[1] for one in asked}

    world.install()
    assert read() == set()
    world.install(webhook=WANTED)
    world.install()
    assert read() == {str(SECRET)}
    world.uninstall()
    assert read() == set(map(str, SECRETS))


WAIT_S = 120.0
NEVER = 1000
SHARED = {str(ref) for ref in (*CONFIGURATIONS, SECRET)}


class Held(TrustCheckingObjects):
    """One installer's hands on a cluster that another has hands on too."""

    def __init__(
        self, now: datetime, kept: dict[Ref, Json], stop_at: int, number: int
    ) -> None:
        super().__init__(now)
        self.kept = kept
        # Else two of them would call different versions the same.
        self._numbers = count(1_000_000 * number)
        self.waiting, self.go_on = threading.Event(), threading.Event()
        self._left = stop_at

    def _called(
        self, what: str, *, write: bool = False
    ) -> AbstractContextManager[None]:
        if write and what.partition(" ")[2] in SHARED:
            self._left -= 1
            if self._left == 0:
                self.waiting.set()
                assert self.go_on.wait(WAIT_S)
        return super()._called(what, write=write)


def both(
    folder: Path, now: datetime, kept: dict[Ref, Json], stops: tuple[int, int]
) -> set[Exit]:
    """Let two installs meet; give how they ended."""
    installs, codes = [], set()
    with ThreadPoolExecutor(2) as pool:
        for number, stop in enumerate(stops, 1):
            objects = Held(now, kept, stop, number)
            world = InstalledCluster(objects, folder / f"{stops}/{number}", now=now)
            run = pool.submit(world.install, webhook=WANTED)
            run.add_done_callback(lambda _, held=objects: held.waiting.set())
            installs.append((world, run))
            # It is held up, or has ended.
            assert objects.waiting.wait(WAIT_S)
        for world, run in installs:
            world.objects.go_on.set()
            code = run.result(WAIT_S)
            codes.add(code)
            assert code in (Exit.DONE, Exit.STOPPED)
            if code is Exit.STOPPED:
                assert "another install has changed " in world.screen.text
                assert "To go on: gpusharectl install" in world.screen.text
    objects = Held(now, kept, NEVER, 3)
    last = InstalledCluster(objects, folder / f"{stops}/3", now=now)
    certificate = shown(objects)
    last.nodes.step()
    objects.look()
    assert last.install(webhook=WANTED) == Exit.DONE
    assert len(bundle(objects)) == 1
    assert shown(objects) == certificate
    return codes


def test_a_renewal_by_two(
    tmp_path: Path, sampled: Callable[[list[int]], list[int]]
) -> None:
    """Every pair of places; somewhere one of them has to give way."""
    objects = TrustCheckingObjects(NOW)
    world = InstalledCluster(objects, tmp_path / "first", now=NOW).populate()
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    ends = set()
    for first in sampled([1, 2, 3, 4, 5, 6]):
        for second in (1, 3, 4, NEVER):
            kept = {ref: copied(body) for ref, body in objects.kept.items()}
            ends |= both(tmp_path, DUE, kept, (first, second))
    assert ends == {Exit.DONE, Exit.STOPPED}


def test_a_first_install_by_two(tmp_path: Path) -> None:
    """Neither finds anything; there is one certificate in the end."""
    ends = set()
    for first in range(1, 6):
        for second in (1, 3, NEVER):
            objects = TrustCheckingObjects(NOW)
            InstalledCluster(objects, tmp_path / "empty", now=NOW).populate()
            ends |= both(tmp_path, NOW, objects.kept, (first, second))
    assert ends == {Exit.DONE, Exit.STOPPED}
