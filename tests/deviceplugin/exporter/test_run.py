"""The exporter put together, and the file of fields while it runs."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pynvml
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from werkzeug.test import Client
from werkzeug.wrappers import Request

from deviceplugin.cards.nvml_cards import NvmlCards
from deviceplugin.exporter.procfs import ProcFs
from deviceplugin.exporter.run import (
    CONFIG,
    ExporterParts,
    FieldFileWatcher,
    assemble,
    run,
    start,
)
from deviceplugin.exporter.sampler import Sampler, groups_read
from deviceplugin.exporter.selection import Flags, choose
from deviceplugin.exporter.settings import ExporterSettings
from deviceplugin.exporter.snapshot_store import SnapshotStore
from deviceplugin.telemetry.amd import AmdTelemetry
from deviceplugin.telemetry.combined import CombinedTelemetry
from deviceplugin.telemetry.fields import (
    FB_USED,
    FIELDS,
    GPU_TEMP,
    GPU_UTIL,
    NVLINK,
    XID_ERRORS,
)
from deviceplugin.telemetry.nvml import NvmlTelemetry
from gpushare.addresses import free_address, why_not_listen
from gpushare.domain.model import NodeName
from gpushare.fakeapi.cluster import Embedded
from tests.deviceplugin.amd_tree import AmdTree
from tests.deviceplugin.nvml_fixture import FOREVER_S
from tests.deviceplugin.scripted_telemetry import ScriptedTelemetry
from tests.nvml.build import the_stub
from tests.nvml.driver import StubDriver, stub_card, stub_driver
from tests.testbed.waiting import wait_until

CARDS = (stub_card(0, used_mib=100), stub_card(1, used_mib=101))
AMD = "AMD-0000:03:00.0"
ONE, OTHER = CARDS[0].uuid, CARDS[1].uuid
EVERY_PAGE = ("/metrics", "/healthz", "/v1/collect", "/")
SHORT_S = 0.3
"""Where cards hang; a busy machine may be as slow now and then."""
HANGS = f"did not answer within {SHORT_S:g} s"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[StubDriver]:
    with stub_driver(the_stub(), tmp_path, CARDS) as made:
        yield made


def assembled(
    *, deadline_s: float = FOREVER_S, **settings: Any
) -> tuple[ExporterParts, CombinedTelemetry]:
    given = ExporterSettings(NodeName("n"), pods=False, look_every_s=0.1, **settings)
    nvml = NvmlTelemetry(NvmlCards(deadline_s=deadline_s))
    telemetry = CombinedTelemetry([nvml])
    return assemble(given, telemetry, None), telemetry


@contextmanager
def exporting(driver: StubDriver, **settings: Any) -> Iterator[ExporterParts]:
    """All its threads at work; none of them is left afterwards."""
    made, telemetry = assembled(**settings)
    stop = Event()
    threads = start(made, stop)
    try:
        yield made
    finally:
        driver.let_go()
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


def series(made: ExporterParts, name: str, label: str = "UUID") -> dict[str, float]:
    """The values of a metric, by one of its labels; the next are read at once."""
    made.sampler.wake()
    return {one.labels[label]: one.value for one in samples(made, name)}


def samples(made: ExporterParts, name: str) -> list[Sample]:
    return [
        one
        for family in text_string_to_metric_families(page(made))
        for one in family.samples
        if one.name == name
    ]


def test_a_scrape_never_asks_the_driver(driver: StubDriver) -> None:
    """Not one call, on any page, though all groups were read before."""
    made, telemetry = assembled(
        flags=Flags(on=frozenset({"pcie", "retired", "profiling"}))
    )
    made.file_watcher.look()
    made.sampler.look_once()
    for group in groups_read():
        assert made.sampler.sample_once(group.name), group.name
    before = driver.calls()
    for path in EVERY_PAGE:
        page(made, path)
    assert driver.calls() == before
    assert GPU_UTIL in page(made)
    telemetry.close()


def test_a_file_of_amds_that_hangs_freezes_no_page(
    driver: StubDriver, tmp_path: Path
) -> None:
    """NVIDIA's cards are read at their pace; the page says what is missing."""
    tree = AmdTree(tmp_path / "host")
    tree.card(0)
    hanging = tree.card(1)
    hanging.hang("mem_info_vram_total")
    given = ExporterSettings(NodeName("n"), pods=False, look_every_s=0.1)
    nvml = NvmlTelemetry(NvmlCards(deadline_s=FOREVER_S))
    amd = AmdTelemetry(tree.root, deadline_s=SHORT_S)
    telemetry = CombinedTelemetry([nvml, amd])
    made, stop = assemble(given, telemetry, None), Event()
    threads = start(made, stop)
    try:
        for busy in (20.0, 30.0, 40.0):
            driver.values("*", gpu_util=busy)
            wait_until(
                lambda: series(made, GPU_UTIL),
                "all cards but the one that hangs, as they are now",
                accept={ONE: busy, OTHER: busy, AMD: 0.0}.__eq__,
            )
    finally:
        stop.set()
        hanging.let_go("mem_info_vram_total")
        telemetry.close()
        made.sampler.wake()
        for thread in threads:
            thread.join(30)
    assert not [thread.name for thread in threads if thread.is_alive()]


def test_pages_answer_while_every_call_hangs(driver: StubDriver) -> None:
    """From the first moment on, when nothing was ever read."""
    driver.hang()
    with exporting(driver, deadline_s=SHORT_S) as made:
        wait_until(lambda: made.store.read().no_cards, "the deadline's word")
        for path in EVERY_PAGE:
            page(made, path)
        assert '"deviceNum": 0' in page(made, "/v1/collect")
        driver.let_go()
        wait_until(lambda: series(made, GPU_UTIL).keys() == {ONE, OTHER}, "both cards")


def test_a_card_that_hangs_drops_out_alone(driver: StubDriver) -> None:
    """Its values go, it is unhealthy, the other's are read on; and it comes back."""
    with exporting(driver, deadline_s=SHORT_S) as made:
        wait_until(lambda: series(made, GPU_UTIL).keys() == {ONE, OTHER}, "both")
        driver.hang(ONE)
        wait_until(lambda: series(made, GPU_UTIL).keys() == {OTHER}, "the other alone")
        driver.values(OTHER, gpu_util=42)
        wait_until(lambda: series(made, GPU_UTIL) == {OTHER: 42.0}, "its next value")
        healthy = {ONE: 0.0, OTHER: 1.0}
        wait_until(lambda: series(made, "vcuda_card_healthy") == healthy, "one sick")
        wait_until(lambda: '"deviceNum": 1' in page(made, "/v1/collect"), "one left")
        assert HANGS in page(made, "/healthz")
        driver.let_go()
        wait_until(lambda: series(made, GPU_UTIL).keys() == {ONE, OTHER}, "both again")


def test_a_card_that_is_lost_drops_out_alone(driver: StubDriver) -> None:
    """It fell off the bus."""
    with exporting(driver) as made:
        wait_until(lambda: series(made, GPU_UTIL).keys() == {ONE, OTHER}, "both")
        driver.lose(ONE)
        wait_until(lambda: series(made, GPU_UTIL).keys() == {OTHER}, "the other alone")
        driver.find(ONE)
        wait_until(lambda: series(made, GPU_UTIL).keys() == {ONE, OTHER}, "both again")


def test_a_card_that_refuses_a_question_is_well(driver: StubDriver) -> None:
    """Some counters are for administrators; one that is lost is sick at once."""
    made, telemetry = assembled(flags=Flags(on=frozenset({"pcie"})))
    refused = pynvml.NVML_ERROR_NO_PERMISSION
    driver.fail(ONE, "DeviceGetPcieThroughput", refused)
    made.file_watcher.look()
    made.sampler.look_once()
    made.sampler.sample_once("pcie")
    assert series(made, "DCGM_FI_DEV_PCIE_TX_THROUGHPUT").keys() == {OTHER}
    assert series(made, "vcuda_card_healthy") == {ONE: 1.0, OTHER: 1.0}
    assert not series(made, "vcuda_exporter_unsupported")
    driver.lose(ONE)
    made.sampler.sample_once("memory")
    assert series(made, "vcuda_card_healthy") == {ONE: 0.0, OTHER: 1.0}
    telemetry.close()


def test_a_driver_that_comes_late_is_found(
    driver: StubDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """No restart; the absence is said on the page, and in one warning."""
    driver.unload()
    with exporting(driver) as made:
        trouble = {"cards": 1.0}
        wait_until(
            lambda: series(made, "vcuda_exporter_trouble", "about") == trouble, "a word"
        )
        assert not series(made, GPU_UTIL)
        driver.load()
        wait_until(lambda: series(made, GPU_UTIL).keys() == {ONE, OTHER}, "both cards")
        assert not series(made, "vcuda_exporter_trouble", "about")
    told = [one for one in caplog.records if one.message == "no cards to read yet"]
    assert len(told) == 1


def test_a_driver_that_is_loaded_anew_is_opened_anew(driver: StubDriver) -> None:
    """While it is away there are no values."""
    with exporting(driver) as made:
        wait_until(lambda: series(made, GPU_UTIL).keys() == {ONE, OTHER}, "both")
        driver.unload()
        wait_until(lambda: not series(made, GPU_UTIL), "nothing")
        driver.load()
        wait_until(lambda: series(made, GPU_UTIL).keys() == {ONE, OTHER}, "both again")


def test_the_page_tells_when_the_api_server_last_spoke() -> None:
    """From the reflector itself, as soon as it has listed the pods."""
    made = assemble(quiet(pods=True), ScriptedTelemetry(), Embedded())
    made.file_watcher.look()
    name, stop = "vcuda_collect_timestamp_seconds", Event()
    assert "allotment" not in series(made, name, "group")
    follow = made.loops["follow pods"]
    # A daemon: its watch looks up only at the next word.
    thread = Thread(target=follow, args=(stop,), daemon=True)
    thread.start()
    wait_until(lambda: "allotment" in series(made, name, "group"), "the first list")
    stop.set()


def test_a_fault_is_counted_and_stays(driver: StubDriver) -> None:
    """Zero before, the last one after; of that card alone."""
    with exporting(driver) as made:
        wait_until(lambda: series(made, XID_ERRORS) == {ONE: 0.0, OTHER: 0.0}, "zeros")
        driver.xid(ONE, 31)
        driver.xid(ONE, 79)
        wait_until(lambda: series(made, XID_ERRORS) == {ONE: 79.0, OTHER: 0.0}, "it")
        counted = {
            (one.labels["UUID"], one.labels["xid"]): one.value
            for one in samples(made, "vcuda_xid_errors_total")
            if one.value
        }
        assert counted == {(ONE, "31"): 1.0, (ONE, "79"): 1.0}


def test_a_file_of_fields_is_heeded_while_it_runs(
    driver: StubDriver, tmp_path: Path
) -> None:
    """Fields come and go; a broken one is a metric, and changes nothing else."""
    path = tmp_path / "fields.csv"
    ok = "vcuda_exporter_config_ok"
    with exporting(driver, fields_file=path) as made:
        wait_until(lambda: series(made, GPU_UTIL), "the default")
        path.write_text("DCGM_FI_DEV_PCIE_TX_THROUGHPUT, gauge, Sent here.\n")
        sent = "DCGM_FI_DEV_PCIE_TX_THROUGHPUT"
        wait_until(lambda: series(made, sent), "a slow field")
        assert not series(made, GPU_UTIL)
        assert f"# HELP {sent} Sent here.\n" in page(made)
        path.write_text("broken\n")
        wait_until(lambda: series(made, ok, "NodeName") == {"n": 0.0}, "the trouble")
        assert series(made, sent)
        path.unlink()
        wait_until(lambda: series(made, GPU_UTIL), "the default again")
        wait_until(lambda: series(made, ok, "NodeName") == {"n": 1.0}, "its word")


def test_nothing_runs_until_it_is_started(driver: StubDriver) -> None:
    """Putting it together asks nobody."""
    before = driver.calls()
    made, telemetry = assembled()
    assert driver.calls() == before
    assert made.store.read().found is None
    telemetry.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_half_an_exporter_ends() -> None:
    """A thread that is gone would be missed by nobody: a new process is whole."""
    telemetry = ScriptedTelemetry()
    telemetry.exits = True
    stop = Event()
    assert run(quiet(), telemetry, None, stop) == 1
    assert stop.is_set()


def test_it_ends_well_when_it_is_told_to() -> None:
    """And its addresses are free."""
    settings, stop = quiet(), Event()
    stop.set()
    assert run(settings, ScriptedTelemetry(), None, stop) == 0
    assert not why_not_listen(settings.listen)


def quiet(*, pods: bool = False) -> ExporterSettings:
    return ExporterSettings(
        NodeName("n"), pods=pods, listen=free_address(), collect_listen=None
    )


TEMP, UTIL = f"{GPU_TEMP}, gauge, warm\n", f"{GPU_UTIL}, gauge, busy\n"
DEFAULT = {one.name for one in choose(Flags()).fields}


class FieldFileFixture:
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
        fixture = FieldFileFixture(given)
        assert fixture.shown == DEFAULT
        assert not fixture.trouble


def test_a_file_is_heeded_as_it_comes_and_changes_and_goes(path: Path) -> None:
    """Without a restart."""
    fixture = FieldFileFixture(path)
    for text, shown in ((TEMP, {GPU_TEMP}), (TEMP + UTIL, {GPU_TEMP, GPU_UTIL})):
        path.write_text(text)
        fixture.look()
        assert fixture.shown == shown
    path.unlink()
    fixture.look()
    assert fixture.shown == DEFAULT


def test_a_change_within_one_tick_and_of_one_length_is_seen(path: Path) -> None:
    """Neither time nor size tells it."""
    path.write_text(TEMP)
    fixture = FieldFileFixture(path)
    before = path.stat()
    path.write_text(f"{FB_USED},  gauge, warm\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    fixture.look()
    assert fixture.shown == {FB_USED}


def test_a_configmap_s_link_is_followed(tmp_path: Path) -> None:
    """kubelet swaps ``..data`` to a new folder; the file's own path never changes."""
    for name, text in (("..1", TEMP), ("..2", UTIL)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "fields.csv").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "fields.csv").symlink_to("..data/fields.csv")
    fixture = FieldFileFixture(tmp_path / "fields.csv")
    assert fixture.shown == {GPU_TEMP}
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    fixture.look()
    assert fixture.shown == {GPU_UTIL}


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
    fixture = FieldFileFixture(path)
    path.write_bytes(raw)
    for _ in range(3):
        fixture.look()
    assert fixture.shown == {GPU_UTIL}
    assert fixture.trouble == f"{path}: {because}; the fields chosen before stay"
    assert told(caplog, "the file of fields is not valid") == 1
    path.write_text(TEMP)
    fixture.look()
    assert fixture.shown == {GPU_TEMP}
    assert not fixture.trouble


def test_a_file_that_is_put_back_is_no_trouble(path: Path) -> None:
    """Though what is chosen stays the same, bytes and all."""
    path.write_text(UTIL)
    fixture = FieldFileFixture(path)
    path.write_text("nonsense")
    fixture.look()
    path.write_text(UTIL)
    fixture.look()
    assert (fixture.shown, fixture.trouble) == ({GPU_UTIL}, "")
    aside = path.rename(path.with_suffix(".aside"))
    path.mkdir()
    fixture.look()
    assert fixture.trouble
    path.rmdir()
    aside.rename(path)
    fixture.look()
    assert (fixture.shown, fixture.trouble) == ({GPU_UTIL}, "")


def test_a_file_that_cannot_be_read_is_bad(path: Path) -> None:
    """A folder in its place: nobody can have meant no file by that."""
    path.mkdir()
    fixture = FieldFileFixture(path)
    assert fixture.shown == DEFAULT
    assert f"{path}: it cannot be read (Is a directory)" in fixture.trouble


def test_a_bad_file_at_the_start_leaves_defaults_and_flags(path: Path) -> None:
    """It starts all the same."""
    path.write_text("nonsense")
    fixture = FieldFileFixture(path, Flags(off=frozenset({NVLINK})))
    assert fixture.shown == DEFAULT - {
        one.name for one in FIELDS if one.group == NVLINK
    }
    assert fixture.trouble


def test_unknown_names_are_skipped_and_told_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file made for dcgm-exporter may list what only DCGM knows."""
    path.write_text(TEMP + "DCGM_FI_DEV_FAN_SPEED, gauge, fan\n")
    fixture = FieldFileFixture(path)
    for _ in range(3):
        fixture.look()
    assert (fixture.shown, fixture.trouble) == ({GPU_TEMP}, "")
    (line,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert line.fields == "DCGM_FI_DEV_FAN_SPEED"  # type: ignore[attr-defined]


def test_an_unchanged_file_is_no_news(path: Path) -> None:
    """No round is thrown away for it."""
    path.write_text(TEMP)
    fixture = FieldFileFixture(path)
    before = fixture.board.read()
    fixture.look()
    assert fixture.board.read() is before


def test_it_looks_while_it_runs(path: Path) -> None:
    """Every so often, until it is stopped."""
    fixture, stop = FieldFileFixture(path), Event()
    thread = Thread(target=fixture.watcher.run, args=(stop, 0.01))
    thread.start()
    try:
        path.write_text(UTIL)
        wait_until(lambda: fixture.shown == {GPU_UTIL}, "the file's fields")
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
