"""A sampler with its board, over a telemetry that a test holds in its hands."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from deviceplugin.exporter.procfs import ProcFs
from deviceplugin.exporter.sampler import Sampler
from deviceplugin.exporter.selection import Flags, choose
from deviceplugin.exporter.snapshot import Snapshot
from deviceplugin.exporter.snapshot_store import SnapshotStore
from deviceplugin.telemetry.fields import Group
from gpushare.domain.model import CardUUID
from tests.deviceplugin.scriptedtelemetry import A, ScriptedTelemetry

QUICK = 0.01


class Desk:
    """A sampler with its board, whose rounds are made by hand."""

    def __init__(self, root: Path = Path("/"), flags: Flags | None = None) -> None:
        self.telemetry = ScriptedTelemetry()
        self.board = SnapshotStore()
        self.sampler = Sampler(
            self.telemetry, self.board, ProcFs(root), look_every_s=QUICK
        )
        self.sampler.choose(choose(flags or Flags()))

    @property
    def seen(self) -> Snapshot:
        return self.board.read()

    def value(self, group: str, name: str, uuid: CardUUID = A) -> float | None:
        return self.seen.rounds[group].cards[uuid].values.get(name)


@contextmanager
def working(desk: Desk, *groups: Group) -> Iterator[Desk]:
    """Run the threads of these groups, and the one that looks for cards."""
    stop = Event()
    threads = [Thread(target=desk.sampler.look, args=(stop,))]
    threads += [Thread(target=desk.sampler.sample, args=(one, stop)) for one in groups]
    for thread in threads:
        thread.start()
    try:
        yield desk
    finally:
        stop.set()
        desk.telemetry.close()
        desk.sampler.wake()
        for thread in threads:
            thread.join(30)
        assert not [thread for thread in threads if thread.is_alive()]


def fast(name: str) -> Group:
    return Group(name, QUICK, "")
