"""What the locks on a region tell, whatever a container does with its own."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from exporter.owners import regions
from exporter.owners.regions import SLOT_LENGTH, SLOTS, counted_in
from gpushare.kubelet.limit_files import InnerPid
from tests.exporter.exporter_data import counting, slot_taken


@pytest.fixture
def region(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "region")
    return tmp_path / "region"


def test_each_process_is_told_apart(region: Path) -> None:
    """Two of one pid are of several PID namespaces; they may start at the same time."""
    assert counted_in(region) == {}
    with (
        slot_taken(region, SLOTS - 1, 5, 7, 100, 3),
        slot_taken(region, 3, 4, 7, 100, 4),
        slot_taken(region, 8, 0, 1, 9),
    ):
        assert counted_in(region) == {InnerPid(7, 100): 9, InnerPid(1, 9): 0}
    assert counted_in(region) == {}


def test_a_lock_over_many_slots_is_many_processes(region: Path) -> None:
    """Nobody honest makes one; it is not seen as less than it is."""
    with slot_taken(region, 2, 3 * SLOT_LENGTH - 1), counting(region, {(9, 1): 5}):
        counted = counted_in(region)
    assert counted == {
        InnerPid(0, 0): 3 * (SLOT_LENGTH - 1),
        InnerPid(9, 1): 5 * 2**20,
    }


PLACED: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": lambda path: os.mknod(path, 0o140666),
}


@pytest.mark.parametrize("what", PLACED)
def test_nothing_else_is_read(tmp_path: Path, what: str) -> None:
    PLACED[what](tmp_path / "region")
    with pytest.raises(OSError):
        counted_in(tmp_path / "region")


def test_a_link_is_not_followed(tmp_path: Path, region: Path) -> None:
    """It would show what another container's processes count."""
    (tmp_path / "link").symlink_to(region)
    with pytest.raises(OSError, match="symbolic links"):
        counted_in(tmp_path / "link")


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """It is one of before an upgrade, which a container may have made larger."""
    (tmp_path / "region").touch()
    os.truncate(tmp_path / "region", 1 << 40)
    assert counted_in(tmp_path / "region") is None


def test_more_locks_than_one_can_wait_for(region: Path) -> None:
    with ExitStack() as slots:
        for slot in range(20):
            slots.enter_context(slot_taken(region, slot, 1, 1, 1))
        assert counted_in(region)
        with pytest.raises(TimeoutError):
            counted_in(region, within_s=0)


def test_an_exporter_that_gets_no_processor_waits_for_it(
    region: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own limit may stop it for longer than the locks take."""
    ask = regions._lock

    def slowly(file: int, first: int, end: int) -> tuple[int, int] | None:
        time.sleep(regions.WITHIN_S)
        return ask(file, first, end)

    monkeypatch.setattr(regions, "_lock", slowly)
    with slot_taken(region, 0, 1, 7, 100):
        assert counted_in(region) == {InnerPid(7, 100): 1}
