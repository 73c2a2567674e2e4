"""The whole exporter over the stub driver: what a driver does to it, pages survive."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pynvml
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from deviceplugin.cards.nvml_cards import NvmlCards
from deviceplugin.exporter.http import Request
from deviceplugin.exporter.run import ExporterParts, assemble, run, start
from deviceplugin.exporter.sampler import groups_read
from deviceplugin.exporter.selection import Flags
from deviceplugin.exporter.settings import ExporterSettings
from deviceplugin.telemetry.amd import AmdTelemetry
from deviceplugin.telemetry.combined import CombinedTelemetry
from deviceplugin.telemetry.fields import GPU_UTIL, XID_ERRORS
from deviceplugin.telemetry.nvml import NvmlTelemetry
from gpushare.addresses import free_address, why_not_listen
from gpushare.domain.model import NodeName
from gpushare.fakeapi.cluster import Embedded
from tests.deviceplugin.amd_tree import AmdTree
from tests.deviceplugin.nvml_pair import FOREVER_S
from tests.deviceplugin.scriptedtelemetry import ScriptedTelemetry
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
    answer = made.pages.every(Request(path))
    assert answer.status == 200
    return answer.body.decode()


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
    follow = dict(made.loops)["follow pods"]
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
