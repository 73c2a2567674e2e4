"""The exporter put together, and the file of fields while it runs."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from werkzeug.test import Client
from werkzeug.wrappers import Request

from exporter.owners.procfs import ProcFs
from exporter.run import (
    CONFIG,
    ExporterParts,
    FieldFileWatcher,
    assemble_exporter,
    run_exporter,
    start_exporter,
)
from exporter.sampler import Sampler, SnapshotStore, groups_read
from exporter.selection import Flags, choose
from exporter.settings import Compute, ExporterSettings
from exporter.telemetry import fields as f
from exporter.telemetry.amd import AmdTelemetry
from exporter.telemetry.base import Telemetry
from exporter.telemetry.combined import CombinedTelemetry
from exporter.telemetry.nvml import NvmlTelemetry
from gpushare.addresses import find_free_address, why_not_listen
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.domain.model import NodeName
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.exporter.amd_tree import AmdTree
from tests.exporter.scripted_telemetry import ScriptedTelemetry
from tests.gpushare.cards.nvml_fixture import FOREVER_S
from tests.nvml.build import the_stub
from tests.nvml.driver import StubDriver, stub_card, stub_driver, stub_instance
from tests.testbed.waiting import wait_until

Log = pytest.LogCaptureFixture
CARDS = (stub_card(0, used_mib=100), stub_card(1, used_mib=101))
AMD = "AMD-0000:03:00.0"
ONE, OTHER = CARDS[0].uuid, CARDS[1].uuid
EVERY_PAGE = ("/metrics", "/healthz", "/v1/collect", "/")
SHORT_S = 0.3
"""Where cards hang; a busy machine may be as slow now and then."""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[StubDriver]:
    with stub_driver(the_stub(), tmp_path, CARDS) as made:
        yield made


def assembled(
    *more: Telemetry, deadline_s: float = FOREVER_S, **settings: Any
) -> tuple[ExporterParts, CombinedTelemetry]:
    given = ExporterSettings(NodeName("n"), pods=False, look_every_s=0.1, **settings)
    nvml = NvmlTelemetry(NvmlCards(deadline_s=deadline_s))
    telemetry = CombinedTelemetry([nvml, *more])
    return assemble_exporter(given, telemetry, None), telemetry


@contextmanager
def exporting(
    let_go: Callable[[], object], *more: Telemetry, **settings: Any
) -> Iterator[ExporterParts]:
    """All its threads at work; none of them is left afterwards."""
    made, telemetry = assembled(*more, **settings)
    stop = Event()
    threads = start_exporter(made, stop)
    try:
        yield made
    finally:
        let_go()
        stop.set()
        telemetry.close()
        made.sampler.wake()
        for thread in threads:
            thread.join(30)
        assert not [thread.name for thread in threads if thread.is_alive()]


def page(made: ExporterParts, path: str = "/metrics") -> str:
    answer = Client(Request.application(made.pages.every)).get(path)
    assert answer.status_code == 200
    return answer.text


def series(
    made: ExporterParts, name: str, *labels: str
) -> dict[str | tuple[str, ...], float]:
    """The values of a metric, by some of its labels; the next are read at once.

    By the card's UUID if none is named; by the instance's own if it is one.
    """
    made.sampler.wake()

    def key(of: dict[str, str]) -> tuple[str, ...]:
        if not labels:
            return (of.get("GPU_I_UUID") or of["UUID"],)
        return tuple(of[label] for label in labels)

    told = [
        (key(sample.labels), sample.value)
        for family in text_string_to_metric_families(page(made))
        for sample in family.samples
        if sample.name == name
    ]
    return {where[0] if len(where) == 1 else where: value for where, value in told}


def wait_for(made: ExporterParts, *cards: str) -> None:
    wait_until(lambda: series(made, f.GPU_UTIL).keys() == set(cards), f"{cards}")


def test_a_scrape_never_asks_the_driver(driver: StubDriver) -> None:
    before = driver.calls()
    flags = Flags(on=frozenset({"pcie", "retired", "profiling"}))
    made, telemetry = assembled(flags=flags)
    assert (driver.calls(), made.store.read().found) == (before, None)
    made.file_watcher.read_fields()
    made.sampler.look_once()
    for group in groups_read():
        assert made.sampler.sample_once(group.name), group.name
    before = driver.calls()
    for path in EVERY_PAGE:
        page(made, path)
    assert driver.calls() == before
    assert f.GPU_UTIL in page(made)
    telemetry.close()


def test_a_file_of_amds_that_hangs_freezes_no_page(
    driver: StubDriver, tmp_path: Path
) -> None:
    tree = AmdTree(tmp_path / "host")
    tree.card(0)
    hanging = tree.card(1)
    hanging.hang("mem_info_vram_total")
    amd = AmdTelemetry(tree.root, deadline_s=SHORT_S)
    with exporting(lambda: hanging.let_go("mem_info_vram_total"), amd) as made:
        for busy in (20.0, 30.0, 40.0):
            driver.values("*", gpu_util=busy)
            wait_until(
                lambda: series(made, f.GPU_UTIL),
                "all cards but the one that hangs, as they are now",
                accept={ONE: busy, OTHER: busy, AMD: 0.0}.__eq__,
            )


def test_pages_answer_while_every_call_hangs(driver: StubDriver) -> None:
    """From the first moment on, when nothing was ever read."""
    driver.hang()
    with exporting(driver.let_go, deadline_s=SHORT_S) as made:
        wait_until(lambda: made.store.read().no_cards, "the deadline's word")
        for path in EVERY_PAGE:
            page(made, path)
        assert '"deviceNum": 0' in page(made, "/v1/collect")
        driver.let_go()
        wait_for(made, ONE, OTHER)


def test_instances_are_cards_on_all_pages(driver: StubDriver) -> None:
    """For the edge agent too; the card that they are parts of is none beside them."""
    driver.change(0, mig=True)
    parts = [stub_instance(CARDS[0], place, used_mib=64) for place in (0, 1)]
    driver.set_instances(*parts)
    with exporting(driver.let_go) as made:
        used = {OTHER: 101.0, parts[0].uuid: 64.0, parts[1].uuid: 64.0}
        wait_until(lambda: series(made, f.FB_USED) == used, "the memory of all three")
        told = json.loads(page(made, "/v1/collect"))["n"]
        assert [device["usedMemory"] for device in told["devices"]] == [101, 64, 64]
        assert 'GPU_I_ID="7",GPU_I_PROFILE="1g.5gb"' in page(made)
        # Another group, which may be read later.
        power = wait_until(lambda: series(made, f.POWER_USAGE), "power")
        assert power.keys() == {OTHER}


def test_the_page_tells_when_the_api_server_last_spoke() -> None:
    """From the reflector itself, as soon as it has listed the pods."""
    made = assemble_exporter(quiet(pods=True), ScriptedTelemetry(), Embedded())
    name, stop = "vcuda_collect_timestamp_seconds", Event()
    assert "allotment" not in series(made, name, "group")
    # A daemon: its watch looks up only at the next word.
    follow = made.loops["follow pods"]
    Thread(target=follow, args=(stop,), daemon=True).start()
    wait_until(lambda: "allotment" in series(made, name, "group"), "the first list")
    stop.set()


def test_a_file_of_fields_is_heeded_while_it_runs(
    driver: StubDriver, tmp_path: Path
) -> None:
    path = tmp_path / "fields.csv"
    ok, sent = "vcuda_exporter_config_ok", "DCGM_FI_DEV_PCIE_TX_THROUGHPUT"
    with exporting(driver.let_go, fields_file=path) as made:
        wait_until(lambda: series(made, f.GPU_UTIL), "the default")
        path.write_text(f"{sent}, gauge, Sent here.\n")
        wait_until(lambda: series(made, sent), "a slow field")
        assert not series(made, f.GPU_UTIL)
        assert f"# HELP {sent} Sent here.\n" in page(made)
        path.write_text("broken\n")
        wait_until(lambda: series(made, ok, "NodeName") == {"n": 0.0}, "the trouble")
        assert series(made, sent)
        path.unlink()
        wait_until(lambda: series(made, f.GPU_UTIL), "the default again")
        wait_until(lambda: series(made, ok, "NodeName") == {"n": 1.0}, "its word")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_half_an_exporter_ends() -> None:
    """A thread that is gone would be missed by nobody: a new process is whole."""
    telemetry = ScriptedTelemetry()
    telemetry.breaks["cards"] = SystemExit()
    stop = Event()
    assert run_exporter(quiet(), telemetry, None, stop) == 1
    assert stop.is_set()


def test_it_ends_well_when_it_is_told_to() -> None:
    settings, stop = quiet(collect_listen=find_free_address()), Event()
    stop.set()
    assert run_exporter(settings, ScriptedTelemetry(), None, stop) == 0
    assert not why_not_listen(settings.listen)


def quiet(**how: Any) -> ExporterSettings:
    settings = {"pods": False, "listen": find_free_address(), "collect_listen": None}
    return ExporterSettings(NodeName("n"), **settings | how)


_GAUGE = f"{f.GPU_TEMP}, gauge"
TEMP, UTIL = f"{f.GPU_TEMP}, gauge, warm\n", f"{f.GPU_UTIL}, gauge, busy\n"
DEFAULT = {field.name for field in choose(Flags()).fields}


class FieldFileFixture:
    def __init__(self, path: Path | None, flags: Flags | None = None) -> None:
        self.board = SnapshotStore()
        sampler = Sampler(ScriptedTelemetry(), self.board, ProcFs())
        self.watcher = FieldFileWatcher(flags or Flags(), path, sampler, self.board)
        self.watcher.read_fields()

    def shows(self, *names: str) -> bool:
        """Look again; whether just these fields are shown, and there is no trouble."""
        self.watcher.read_fields()
        shown = {field.name for field in self.board.read().fields}
        return shown == set(names) and not self.trouble

    @property
    def trouble(self) -> str:
        return self.board.read().troubles.get(CONFIG, "")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fields.csv"


def test_a_file_is_heeded_as_it_comes_and_changes_and_goes(
    path: Path, caplog: Log
) -> None:
    """A ConfigMap is optional. An unchanged file is no news, so no round is lost."""
    other = "DCGM_FI_DEV_FAN_SPEED, gauge, what only DCGM knows\n"
    assert FieldFileFixture(None).shows(*DEFAULT)
    fixture = FieldFileFixture(path)
    assert fixture.shows(*DEFAULT)
    for text, shown in (
        (TEMP, {f.GPU_TEMP}),
        (TEMP + UTIL + other, {f.GPU_TEMP, f.GPU_UTIL}),
    ):
        path.write_text(text)
        assert fixture.shows(*shown)
        before = fixture.board.read()
        assert fixture.shows(*shown)
        assert fixture.board.read() is before
    path.unlink()
    assert fixture.shows(*DEFAULT)
    assert caplog.messages == ["fields not known here"]


def test_a_change_within_one_tick_and_of_one_length_is_seen(path: Path) -> None:
    path.write_text(TEMP)
    fixture = FieldFileFixture(path)
    before = path.stat()
    path.write_text(f"{f.FB_USED},  gauge, warm\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert fixture.shows(f.FB_USED)


def test_a_configmap_s_link_is_followed(tmp_path: Path) -> None:
    """kubelet swaps ``..data`` to a new folder; the file's own path never changes."""
    for name, text in (("..1", TEMP), ("..2", UTIL)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "fields.csv").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "fields.csv").symlink_to("..data/fields.csv")
    fixture = FieldFileFixture(tmp_path / "fields.csv")
    assert fixture.shows(f.GPU_TEMP)
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert fixture.shows(f.GPU_UTIL)


@pytest.mark.parametrize(
    ("raw", "because"),
    [
        (b"nonsense\n", "line 1: 1 columns are not valid; write: field, type, help"),
        (
            (TEMP + TEMP.replace("gauge", "counter")).encode(),
            f"line 2: {f.GPU_TEMP} is listed twice, first as {_GAUGE}; leave one out",
        ),
        (b"", "it lists no field that is known here"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (TEMP.encode() + b"#" * (1 << 20), "it is longer than 1048576 bytes"),
        (None, "it cannot be read (Is a directory)"),
    ],
)
def test_a_bad_file_changes_nothing_and_is_told_once(
    path: Path, raw: bytes | None, because: str, caplog: Log
) -> None:
    """The line names file and fault; the trouble is over when the same file is back."""
    path.write_text(UTIL)
    fixture = FieldFileFixture(path)
    good = path.rename(path.with_suffix(".aside"))
    if raw is None:
        # Nobody can have meant no file by a folder.
        path.mkdir()
    else:
        path.write_bytes(raw)
    for _ in range(3):
        fixture.watcher.read_fields()
    assert {field.name for field in fixture.board.read().fields} == {f.GPU_UTIL}
    assert fixture.trouble == f"{path}: {because}; the fields chosen before stay"
    assert caplog.messages == ["the file of fields is not valid"]
    if raw is None:
        path.rmdir()
    good.rename(path)
    assert fixture.shows(f.GPU_UTIL)


def test_a_bad_file_at_the_start_leaves_defaults_and_flags(path: Path) -> None:
    path.write_text("nonsense")
    fixture = FieldFileFixture(path, Flags(off=frozenset({f.NVLINK})))
    shown = {field.name for field in fixture.board.read().fields}
    off = {field.name for field in f.FIELDS if field.group == f.NVLINK}
    assert shown == DEFAULT - off
    assert fixture.trouble


@pytest.mark.parametrize(("compute", "every_s"), [("none", 2.0), ("share", 0.5)])
def test_cores_are_held_only_if_that_is_wanted(
    tmp_path: Path, compute: Compute, every_s: float
) -> None:
    """Else nothing is written, and processes are read as rarely as before."""
    settings = ExporterSettings(NodeName("n"), state_dir=tmp_path, compute=compute)
    telemetry = ScriptedTelemetry()
    made = assemble_exporter(settings, telemetry, Embedded())
    assert ("pace launches" in made.loops) == (compute == "share")
    read = made.loops["read processes"]
    assert isinstance(read, partial)
    assert read.args[0].every_s == every_s
