"""NVIDIA's cards at work when they are lost, hang, or lose their driver."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.telemetry import fields as f
from exporter.telemetry.nvml import NvmlTelemetry
from tests.gpushare.cards.nvml_fixture import (
    CARD,
    OTHER,
    Watch,
    says,
    wait_found,
    watch,
)
from tests.nvml.driver import NOT_SUPPORTED
from tests.testbed.waiting import wait_until

SHORT_S = 0.5
HANGS = f"it did not answer within {SHORT_S:g} s"
LOST = "the driver has lost it (GPU is lost)"
GROUPS = [
    group.name for group in f.GROUPS if group.name not in (f.ALLOTMENT, f.KUBELET)
]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Watch]:
    """Two cards, and all the time that they may want."""
    with watch(tmp_path, CARD, OTHER) as found:
        yield found


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Watch]:
    """Two cards, which are not waited for long."""
    with watch(tmp_path, CARD, OTHER, deadline_s=SHORT_S) as found:
        yield found


def failures(telemetry: NvmlTelemetry, group: str) -> dict[str, str]:
    told = (
        telemetry.processes()
        if group == f.PROCESSES
        else telemetry.read(
            group, [field.name for field in f.FIELDS if field.group == group]
        )
    )
    return {uuid: says.failure for uuid, says in told.items()}


@pytest.mark.parametrize("group", GROUPS)
def test_a_lost_card_fails_alone(
    two: Watch, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In every group, not field by field; and it is read again when it is back."""
    two.driver.values("*", gpm=1)
    two.telemetry.cards()
    two.driver.lose(CARD.uuid)
    assert failures(two.telemetry, group) == {CARD.uuid: LOST, OTHER.uuid: ""}
    assert caplog.records == []
    two.driver.find(CARD.uuid)
    assert failures(two.telemetry, group) == {CARD.uuid: "", OTHER.uuid: ""}


def test_a_group_that_hangs_leaves_the_others(hasty: Watch) -> None:
    """The same card still tells of its memory and of its processes."""
    wait_found(hasty.telemetry, 2)
    hasty.driver.hang(CARD.uuid, "DeviceGetEncoderUtilization")
    hasty.driver.hang("*", "SystemGetDriverVersion")
    assert says(hasty.telemetry, f.UTILIZATION).failure == HANGS
    assert hasty.telemetry.driver_version() == ""
    assert says(hasty.telemetry, f.UTILIZATION).failure == HANGS
    told = {CARD.uuid: "", OTHER.uuid: ""}
    for group in (f.MEMORY, f.PROCESSES):
        wait_until(
            lambda group=group: failures(hasty.telemetry, group),
            group,
            accept=told.__eq__,
        )


def test_the_driver_is_opened_where_need_be(two: Watch) -> None:
    """And once: that opening it would hang by then, nobody notices."""
    assert failures(two.telemetry, f.MEMORY) == {CARD.uuid: "", OTHER.uuid: ""}
    two.driver.hang("*", "Init")
    for group in GROUPS:
        assert failures(two.telemetry, group) == {CARD.uuid: "", OTHER.uuid: ""}


def test_the_drivers_version_is_told(two: Watch) -> None:
    assert two.telemetry.driver_version() == ""
    two.telemetry.cards()
    assert two.telemetry.driver_version() == "550.54.15"
    two.driver.set_version("535.161.08")
    assert two.telemetry.driver_version() == "535.161.08"
    two.driver.fail("*", "SystemGetDriverVersion", NOT_SUPPORTED)
    assert two.telemetry.driver_version() == ""
