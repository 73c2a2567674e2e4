"""The file of fields changes while the exporter runs; a bad one changes nothing."""

import logging
import os
from pathlib import Path
from threading import Event, Thread

import pytest

from deviceplugin.exporter.procfs import ProcFs
from deviceplugin.exporter.run import CONFIG, FieldFileWatcher
from deviceplugin.exporter.sampler import Sampler
from deviceplugin.exporter.selection import Flags, choose
from deviceplugin.exporter.snapshot_store import SnapshotStore
from deviceplugin.telemetry.fields import FB_USED, FIELDS, GPU_TEMP, GPU_UTIL, NVLINK
from tests.deviceplugin.scriptedtelemetry import ScriptedTelemetry
from tests.testbed.waiting import wait_until

TEMP, UTIL = f"{GPU_TEMP}, gauge, warm\n", f"{GPU_UTIL}, gauge, busy\n"
DEFAULT = {one.name for one in choose(Flags()).fields}


class Desk:
    def __init__(self, path: Path | None, flags: Flags | None = None) -> None:
        self.board = SnapshotStore()
        sampler = Sampler(ScriptedTelemetry(), self.board, ProcFs())
        self.watcher = FieldFileWatcher(flags or Flags(), path, sampler, self.board)
        self.look()

    def look(self) -> None:
        self.watcher.look()

    @property
    def shown(self) -> set[str]:
        return {one.name for one in self.board.read().fields}

    @property
    def trouble(self) -> str:
        return self.board.read().troubles.get(CONFIG, "")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fields.csv"


def told(caplog: pytest.LogCaptureFixture, message: str) -> int:
    return sum(one.message == message for one in caplog.records)


def test_without_a_file_the_defaults_hold(path: Path) -> None:
    """Also where one may come: a ConfigMap is optional."""
    for given in (None, path):
        desk = Desk(given)
        assert desk.shown == DEFAULT
        assert not desk.trouble


def test_a_file_is_heeded_as_it_comes_and_changes_and_goes(path: Path) -> None:
    """Without a restart."""
    desk = Desk(path)
    for text, shown in ((TEMP, {GPU_TEMP}), (TEMP + UTIL, {GPU_TEMP, GPU_UTIL})):
        path.write_text(text)
        desk.look()
        assert desk.shown == shown
    path.unlink()
    desk.look()
    assert desk.shown == DEFAULT


def test_a_change_within_one_tick_and_of_one_length_is_seen(path: Path) -> None:
    """Neither time nor size tells it."""
    path.write_text(TEMP)
    desk = Desk(path)
    before = path.stat()
    path.write_text(f"{FB_USED},  gauge, warm\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    desk.look()
    assert desk.shown == {FB_USED}


def test_a_configmap_s_link_is_followed(tmp_path: Path) -> None:
    """kubelet swaps ``..data`` to a new folder; the file's own path never changes."""
    for name, text in (("..1", TEMP), ("..2", UTIL)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "fields.csv").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "fields.csv").symlink_to("..data/fields.csv")
    desk = Desk(tmp_path / "fields.csv")
    assert desk.shown == {GPU_TEMP}
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    desk.look()
    assert desk.shown == {GPU_UTIL}


@pytest.mark.parametrize(
    ("raw", "because"),
    [
        (b"nonsense\n", "line 1: 1 columns are not valid; write: field, type, help"),
        (TEMP.encode() * 2, f"line 2: {GPU_TEMP} is listed twice; leave one out"),
        (b"", "it lists no field that is known here"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (TEMP.encode() + b"#" * (1 << 20), "it is longer than 1048576 bytes"),
    ],
)
def test_a_bad_file_changes_nothing_and_is_told_once(
    path: Path, raw: bytes, because: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names file and fault; the trouble is over when the file is."""
    path.write_text(UTIL)
    desk = Desk(path)
    path.write_bytes(raw)
    for _ in range(3):
        desk.look()
    assert desk.shown == {GPU_UTIL}
    assert desk.trouble == f"{path}: {because}; the fields chosen before stay"
    assert told(caplog, "the file of fields is not valid") == 1
    path.write_text(TEMP)
    desk.look()
    assert desk.shown == {GPU_TEMP}
    assert not desk.trouble


def test_a_file_that_is_put_back_is_no_trouble(path: Path) -> None:
    """Though what is chosen stays the same, bytes and all."""
    path.write_text(UTIL)
    desk = Desk(path)
    path.write_text("nonsense")
    desk.look()
    path.write_text(UTIL)
    desk.look()
    assert (desk.shown, desk.trouble) == ({GPU_UTIL}, "")
    aside = path.rename(path.with_suffix(".aside"))
    path.mkdir()
    desk.look()
    assert desk.trouble
    path.rmdir()
    aside.rename(path)
    desk.look()
    assert (desk.shown, desk.trouble) == ({GPU_UTIL}, "")


def test_a_file_that_cannot_be_read_is_bad(path: Path) -> None:
    """A folder in its place: nobody can have meant no file by that."""
    path.mkdir()
    desk = Desk(path)
    assert desk.shown == DEFAULT
    assert f"{path}: it cannot be read (Is a directory)" in desk.trouble


def test_a_bad_file_at_the_start_leaves_defaults_and_flags(path: Path) -> None:
    """It starts all the same."""
    path.write_text("nonsense")
    desk = Desk(path, Flags(off=frozenset({NVLINK})))
    assert desk.shown == DEFAULT - {one.name for one in FIELDS if one.group == NVLINK}
    assert desk.trouble


def test_unknown_names_are_skipped_and_told_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file made for dcgm-exporter may list what only DCGM knows."""
    path.write_text(TEMP + "DCGM_FI_DEV_FAN_SPEED, gauge, fan\n")
    desk = Desk(path)
    for _ in range(3):
        desk.look()
    assert (desk.shown, desk.trouble) == ({GPU_TEMP}, "")
    (line,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert line.fields == "DCGM_FI_DEV_FAN_SPEED"  # type: ignore[attr-defined]


def test_an_unchanged_file_is_no_news(path: Path) -> None:
    """No round is thrown away for it."""
    path.write_text(TEMP)
    desk = Desk(path)
    before = desk.board.read()
    desk.look()
    assert desk.board.read() is before


def test_it_looks_while_it_runs(path: Path) -> None:
    """Every so often, until it is stopped."""
    desk, stop = Desk(path), Event()
    thread = Thread(target=desk.watcher.run, args=(stop, 0.01))
    thread.start()
    try:
        path.write_text(UTIL)
        wait_until(lambda: desk.shown == {GPU_UTIL}, "the file's fields")
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
