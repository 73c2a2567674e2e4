"""Readings of a real card, beside those of nvidia-smi and of a known load."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from exporter.telemetry import fields as f
from exporter.telemetry.base import CardAnswer, ProcessUse, SmSource
from exporter.telemetry.nvml import NvmlTelemetry
from gpushare.cards.nvml_cards import NvmlCards
from tests.gpu.cuda import command, running
from tests.machine import needs
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.gpu

LOAD_MIB = 2048
GROUPS = (f.UTILIZATION, f.MEMORY, f.ENVIRONMENT, f.FAULTS, f.NVLINK, f.RETIRED, f.PCIE)
SAME = {
    f.FB_TOTAL: ("memory.total", 1),
    f.FB_USED: ("memory.used", 64),
    f.FB_FREE: ("memory.free", 64),
    f.FB_RESERVED: ("memory.reserved", 1),
    f.GPU_TEMP: ("temperature.gpu", 5),
    f.MEMORY_TEMP: ("temperature.memory", 5),
    f.POWER_USAGE: ("power.draw.average", 60),
    f.ECC_SBE_VOL_TOTAL: ("ecc.errors.corrected.volatile.total", 0),
    f.ECC_DBE_VOL_TOTAL: ("ecc.errors.uncorrected.volatile.total", 0),
    f.ECC_SBE_AGG_TOTAL: ("ecc.errors.corrected.aggregate.total", 0),
    f.ECC_DBE_AGG_TOTAL: ("ecc.errors.uncorrected.aggregate.total", 0),
    f.MEM_CLOCK: ("clocks.mem", 100),
}
"""By field: nvidia-smi's name, in the same unit, and how far they may be apart."""


@pytest.fixture
def telemetry() -> Iterator[NvmlTelemetry]:
    needs(shutil.which("nvidia-smi") is not None, "nvidia-smi", "a machine with a card")
    made = NvmlTelemetry(NvmlCards())
    made.cards()
    yield made
    made.close()


def smi(*fields: str) -> list[str]:
    """What nvidia-smi says of the first card."""
    question = [f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    told = subprocess.run(
        ["nvidia-smi", "-i", "0", *question], check=True, capture_output=True, text=True
    ).stdout
    return [word.strip() for word in told.splitlines()[0].split(",")]


def first(telemetry: NvmlTelemetry, group: str) -> CardAnswer:
    names = [field.name for field in f.FIELDS if field.group == group]
    card = telemetry.cards().cards[0]
    return telemetry.read(group, names)[card.uuid]


def everything(telemetry: NvmlTelemetry) -> dict[str, float]:
    told: dict[str, float] = {}
    for group in GROUPS:
        answer = first(telemetry, group)
        assert answer.failure == ""
        told |= answer.values
    return told


def load() -> AbstractContextManager[int]:
    """A process that keeps the first card busy."""
    return running(command("busy", str(LOAD_MIB)))


def test_the_card_is_nvidia_smis(telemetry: NvmlTelemetry) -> None:
    card = telemetry.cards().cards[0]
    uuid, name, bus, version = smi("uuid", "name", "pci.bus_id", "driver_version")
    assert (card.uuid, card.model, card.bus) == (uuid, name, bus)
    assert telemetry.driver_version() == version


def test_an_idle_card_reads_as_nvidia_smi_says(telemetry: NvmlTelemetry) -> None:
    """Field by field, and what nvidia-smi calls N/A has no value."""
    wanted = smi(*(name for name, _ in SAME.values()))
    told = everything(telemetry)
    for (field, (_, apart)), word in zip(SAME.items(), wanted, strict=True):
        print(f"{field}: nvidia-smi {word}, read {told.get(field)}")
        try:
            number = float(word)
        except ValueError:
            assert field not in told
            continue
        assert told[field] == pytest.approx(number, abs=apart)


def test_a_load_is_seen(telemetry: NvmlTelemetry) -> None:
    """On the card, in its memory, and by GPM where the card has it."""
    before = first(telemetry, f.MEMORY).values[f.FB_USED]
    with load():
        busy = wait_until(
            lambda: first(telemetry, f.UTILIZATION).values,
            "load",
            accept=lambda values: values.get(f.GPU_UTIL, 0) > 50,
        )
        used = first(telemetry, f.MEMORY).values[f.FB_USED]
        first(telemetry, f.PROFILING)
        gpm = wait_until(
            lambda: first(telemetry, f.PROFILING),
            "GPM under load",
            accept=lambda told: (
                not told.values or told.values[f.GR_ENGINE_ACTIVE] > 0.5
            ),
        )
    print(f"utilization {busy}\nmemory {before} -> {used} MiB\nGPM {gpm}")
    assert used - before >= LOAD_MIB
    assert all(0 <= value <= 100 for value in busy.values())
    shares = {name: gpm.values.get(name, 0.0) for name in (f.SM_ACTIVE, f.DRAM_ACTIVE)}
    assert all(0 <= share <= 1 for share in shares.values())


def test_a_process_is_seen(telemetry: NvmlTelemetry) -> None:
    """With its memory and its work; this process counts pids as the host does, or not.

    In a namespace of its own the load has another pid here, so it is found by what it
    takes.
    """
    with load():
        card = telemetry.cards().cards[0]

        def theirs() -> list[ProcessUse]:
            told = telemetry.processes()[card.uuid]
            print(told)
            assert told.failure == ""
            return [one for one in told.processes if (one.memory_mib or 0) >= LOAD_MIB]

        wait_until(
            theirs, "busy process", accept=lambda ones: any(one.sm for one in ones)
        )
        assert telemetry.processes()[card.uuid].sm_source in (
            SmSource.SAMPLES,
            SmSource.INFO,
        )
