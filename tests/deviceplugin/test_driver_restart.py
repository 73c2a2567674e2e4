"""The whole plugin and the whole exporter under a driver that serves them no more."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pynvml
import pytest

from deviceplugin.serve import serve_kubelet as serve
from deviceplugin.settings import DevicePluginSettings
from exporter import run
from exporter.settings import ExporterSettings
from exporter.telemetry.combined import CombinedTelemetry
from exporter.telemetry.nvml import NvmlTelemetry
from gpushare.addresses import find_free_address
from gpushare.cards.combined import CombinedCards
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.kube.cluster import Kind
from gpusharectl.demo.devices import Devices
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import node_json
from tests.deviceplugin.node_fixture import NODE, C, M, because
from tests.gpushare.cards.nvml_fixture import FOREVER_S, Clock
from tests.nvml.build import the_stub
from tests.nvml.driver import StubDriver, stub_card, stub_driver
from tests.testbed.waiting import wait_until

CARDS = (stub_card(0), stub_card(1))
MISMATCH = "libnvidia-ml.so.1 is of another version than the loaded driver"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[StubDriver]:
    with stub_driver(the_stub(), tmp_path, CARDS) as made:
        yield made


def wait_for_the_mismatch(caplog: pytest.LogCaptureFixture) -> None:
    """From the first such word on the time counts."""
    wait_until(
        lambda: [getattr(line, "because", "") for line in list(caplog.records)],
        "a word of the library",
        accept=lambda said: any("another version" in message for message in said),
    )


@contextmanager
def plugin(folder: Path, clock: Clock) -> Iterator[tuple[Devices, Thread, list[int]]]:
    """A plugin at work, kubelet's likeness, and the status with which it ends."""
    stop, status = Event(), list[int]()
    cluster = Embedded()
    cluster.create(Kind.NODES, node_json(NODE))
    source = CombinedCards([NvmlCards(deadline_s=FOREVER_S, clock=clock)])
    settings = DevicePluginSettings(
        NODE,
        kubelet_dir=folder,
        state_dir=folder / "vcuda",
        inject="env",
        look_every_s=0.05,
        listen=find_free_address(),
    )

    def run() -> None:
        status.append(serve(settings, source, cluster, stop))

    with Devices(folder) as devices:
        thread = Thread(target=run)
        thread.start()
        try:
            yield devices, thread, status
        finally:
            stop.set()
            thread.join(60)


@pytest.mark.parametrize("at_first", [False, True])
def test_the_plugin_ends_for_a_driver_upgrade(
    driver: StubDriver, tmp_path: Path, caplog: pytest.LogCaptureFixture, at_first: bool
) -> None:
    """With status 1, so that it is restarted; it may have begun amid the upgrade."""
    clock = Clock()
    if at_first:
        driver.unload(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with plugin(tmp_path, clock) as (devices, thread, status):
        if not at_first:
            wait_until(devices.allocatable, "all", accept={M: 58, C: 200}.__eq__)
            driver.upgrade()
            wait_until(devices.allocatable, "none", accept={M: 0, C: 0}.__eq__)
        wait_for_the_mismatch(caplog)
        clock.now += 59
        wait_until(driver.calls, "more looks", accept=driver.calls().__lt__)
        assert thread.is_alive()
        clock.now += 2
        thread.join(60)
        assert status == [1]
    words = "cannot serve" if at_first else "driver lost, the process ends"
    assert because(caplog, words) == [f"{MISMATCH}, for 61 s"]


def test_the_exporter_ends_for_a_driver_upgrade(
    driver: StubDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """Likewise: it would say nothing of any card for ever."""
    caplog.set_level(logging.INFO)
    clock, stop, status = Clock(), Event(), list[int]()
    settings = ExporterSettings(
        NODE,
        pods=False,
        look_every_s=0.05,
        listen=find_free_address(),
        collect_listen=None,
    )
    telemetry = CombinedTelemetry(
        [NvmlTelemetry(NvmlCards(deadline_s=FOREVER_S, clock=clock))]
    )

    def export() -> None:
        status.append(run.run_exporter(settings, telemetry, None, stop))

    thread = Thread(target=export)
    thread.start()
    wait_until(driver.calls, "a look")
    driver.upgrade()
    wait_for_the_mismatch(caplog)
    clock.now += 61
    thread.join(60)
    stop.set()
    assert status == [1]
    assert because(caplog, "driver lost, the process ends") == [f"{MISMATCH}, for 61 s"]
