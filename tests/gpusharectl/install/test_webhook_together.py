"""Two installs at once: whoever comes second stops cleanly, or both end right.

One is held up before one of its writes, then the other before one of its own; the first
goes on to its end, and then the second. After every write the API server is looked at.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.objects import Ref
from gpusharectl.install.options import WebhookOptions
from gpusharectl.install.progress import Exit
from gpusharectl.install.webhook.apply import GuardedWriter, OvertakenError
from gpusharectl.install.webhook.objects import CONFIGURATIONS, SECRET
from tests.gpusharectl.install.fake_objects import copied
from tests.gpusharectl.install.installed_cluster import InstalledCluster
from tests.gpusharectl.install.trust_checking_objects import (
    TrustCheckingObjects,
    bundle,
    shown,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DUE = NOW + timedelta(days=250)
WANTED = WebhookOptions(wanted=True)
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

    def _called(self, what: str, act: Callable[[], Any], *, write: bool = False) -> Any:
        if write and what.partition(" ")[2] in SHARED:
            self._left -= 1
            if self._left == 0:
                self.waiting.set()
                assert self.go_on.wait(WAIT_S)
        return super()._called(what, act, write=write)


class Installer:
    """An install in a thread of its own; ``number`` tells it from others."""

    def __init__(
        self,
        folder: Path,
        now: datetime,
        kept: dict[Ref, Json],
        stop_at: int = NEVER,
        number: int = 3,
    ) -> None:
        self.objects = Held(now, kept, stop_at, number)
        self.world = InstalledCluster(self.objects, folder / str(number), now=now)
        self.code: Exit | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Run until it is held up, or to its end."""
        self._thread.start()
        assert self.objects.waiting.wait(WAIT_S)

    def end(self) -> None:
        self.objects.go_on.set()
        self._thread.join(WAIT_S)
        assert self.error is None, self.error
        assert self.code in (Exit.DONE, Exit.STOPPED)
        if self.code is Exit.STOPPED:
            text = self.world.screen.text
            assert "another install has changed " in text
            assert "To go on: gpusharectl install" in text

    def _run(self) -> None:
        try:
            self.code = self.world.install(webhook=WANTED)
        except BaseException as error:
            self.error = error
        finally:
            self.objects.waiting.set()


def both(
    folder: Path, now: datetime, kept: dict[Ref, Json], stops: tuple[int, int]
) -> set[Exit | None]:
    """Let two installs meet; give how they ended."""
    place = folder / f"{stops}"
    one = Installer(place, now, kept, stops[0], 1)
    other = Installer(place, now, kept, stops[1], 2)
    one.begin()
    other.begin()
    one.end()
    other.end()
    last = Installer(place, now, kept)
    certificate = shown(last.objects)
    last.world.nodes.step()
    last.objects.look()
    last.begin()
    last.end()
    assert last.code is Exit.DONE
    assert len(bundle(last.objects)) == 1
    assert shown(last.objects) == certificate
    return {one.code, other.code}


def test_a_renewal_by_two(tmp_path: Path) -> None:
    """Every pair of places; somewhere one of them has to give way."""
    objects = TrustCheckingObjects(NOW)
    world = InstalledCluster(objects, tmp_path / "first", now=NOW).populate()
    assert world.install(webhook=WANTED) == Exit.DONE, world.screen.text
    ends = set()
    for first in range(1, 7):
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


def test_what_others_write_beside_it_is_no_conflict() -> None:
    """A label, say, between look and write: it is looked at again, and stays."""
    objects = TrustCheckingObjects(NOW)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET.name, "namespace": SECRET.namespace},
        "data": {"ca.crt": "eA=="},
    }
    objects.create(secret)
    writes = GuardedWriter.of(objects, [(SECRET, objects.get(SECRET))])
    get = objects.get

    def labelled(ref: Ref) -> Json | None:
        found = get(ref)
        objects.get = get  # type: ignore[method-assign]
        objects.merge(ref, {"metadata": {"labels": {"a": "b"}}})
        return found

    objects.get = labelled  # type: ignore[method-assign]
    writes.put({**secret, "data": {"ca.crt": "eQ=="}})
    assert objects.kept[SECRET]["data"] == {"ca.crt": "eQ=="}
    assert objects.kept[SECRET]["metadata"]["labels"] == {"a": "b"}
    objects.merge(SECRET, {"data": {"ca.crt": "eg=="}})
    with pytest.raises(OvertakenError, match="Secret kube-system/gpushare-webhook-tls"):
        writes.put(secret)
    assert objects.kept[SECRET]["data"] == {"ca.crt": "eg=="}
    assert not issubclass(OvertakenError, ClusterError)
