"""What each field is on AMD's cards."""


import pytest

from deviceplugin.telemetry import fields
from deviceplugin.telemetry.amd import AmdTelemetry
from deviceplugin.telemetry.base import CardAnswer
from deviceplugin.telemetry.fields import FIELDS
from gpushare.domain.model import CardUUID
from tests.deviceplugin.amd_tree import AmdTree, full_card

NAMES = frozenset(one.name for one in FIELDS)
ON_THE_CARD = CardUUID("AMD-0000:03:00.0")


def says(telemetry: AmdTelemetry, *names: str) -> CardAnswer:
    """What the only card says to some fields, or to all."""
    [found] = telemetry.read("any", names or NAMES).values()
    return found


def test_each_field_is_read_in_its_own_unit(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """Whatever unit the kernel has."""
    full_card(tree)
    found = says(telemetry)
    assert found.failure == ""
    assert found.values == {
        fields.GPU_UTIL: 87,
        fields.MEM_COPY_UTIL: 12,
        fields.FB_USED: 1024,
        fields.FB_FREE: 64496,
        fields.FB_TOTAL: 65520,
        fields.GPU_TEMP: 41,
        fields.MEMORY_TEMP: 47,
        fields.POWER_USAGE: 215,
        fields.TOTAL_ENERGY_CONSUMPTION: 5000,
        fields.SM_CLOCK: 1700,
        fields.MEM_CLOCK: 1600,
        fields.PCIE_REPLAY_COUNTER: 3,
        fields.ECC_SBE_VOL_TOTAL: 22,
        fields.ECC_DBE_VOL_TOTAL: 1,
        fields.RETIRED_DBE: 2,
        fields.RETIRED_PENDING: 1,
    }
    assert found.unsupported == NAMES - set(found.values)


def test_what_a_card_has_no_file_for_is_unsupported(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """Unsupported, not 0; and what is 0 is 0."""
    tree.card(0)
    found = says(telemetry)
    told = {fields.GPU_UTIL, fields.FB_USED, fields.FB_FREE, fields.FB_TOTAL}
    assert set(found.values) == told
    assert found.values[fields.GPU_UTIL] == found.values[fields.FB_USED] == 0
    assert found.unsupported == NAMES - told


@pytest.mark.parametrize("text", ["", "n/a", "12 %"])
def test_what_is_no_number_is_unsupported(
    tree: AmdTree, telemetry: AmdTelemetry, text: str
) -> None:
    """It is not made into one."""
    tree.card(0).write("gpu_busy_percent", text)
    found = says(telemetry, fields.GPU_UTIL)
    assert (found.values, found.unsupported) == ({}, {fields.GPU_UTIL})


def test_the_newest_cards_tell_other_sensors(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """The hottest point instead of the edge, power of the moment, and below zero."""
    card = tree.card(0)
    card.write("hwmon/hwmon11/temp2_input", -3000)
    card.write("hwmon/hwmon11/power1_input", 90_500_000)
    found = says(telemetry, fields.GPU_TEMP, fields.POWER_USAGE)
    assert found.values == {fields.GPU_TEMP: -3, fields.POWER_USAGE: 90.5}


@pytest.mark.parametrize(
    ("revision", "at", "energy", "told"),
    [
        ((1, 1), 24, 65536, {1000.0}),
        ((1, 4), 24, 0, {0.0}),
        ((1, 5), 88, 2**63, {2**63 * 1000 / 65536}),
        ((1, 3), 24, 2**64 - 1, set()),
        ((1, 0), 24, 65536, set()),
        ((2, 3), 24, 65536, set()),
        ((1, 9), 24, 65536, set()),
    ],
)
def test_energy_is_read_from_the_tables_we_know(
    tree: AmdTree,
    telemetry: AmdTelemetry,
    revision: tuple[int, int],
    at: int,
    energy: int,
    told: set[float],
) -> None:
    """By the table's revision; where a card counts none, or in another way: nothing."""
    tree.card(0).metrics(revision, at, energy)
    found = says(telemetry, fields.TOTAL_ENERGY_CONSUMPTION)
    assert set(found.values.values()) == told
    assert found.unsupported == (set() if told else {fields.TOTAL_ENERGY_CONSUMPTION})


@pytest.mark.parametrize("length", [0, 1, 3, 4, 24, 31])
def test_a_table_cut_short_tells_no_energy(
    tree: AmdTree, telemetry: AmdTelemetry, length: int
) -> None:
    """Whatever is missing of it."""
    card = tree.card(0)
    card.metrics((1, 3), 24, 65536)
    path = card.device / "gpu_metrics"
    path.write_bytes(path.read_bytes()[:length])
    found = says(telemetry, fields.TOTAL_ENERGY_CONSUMPTION)
    assert found == CardAnswer({}, frozenset({fields.TOTAL_ENERGY_CONSUMPTION}))


def test_a_field_that_fails_now_is_missing(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """Neither a value nor unsupported, and no failure of a card that tells others."""
    card = tree.card(0)
    card.spoil("gpu_busy_percent")
    found = says(telemetry, fields.GPU_UTIL, fields.FB_TOTAL)
    assert found == CardAnswer({fields.FB_TOTAL: 16384}, frozenset(), "")


def test_a_card_that_tells_nothing_now_fails(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """With the reason; the other card does not, and it may recover."""
    card = tree.card(0)
    tree.card(1)
    card.spoil("gpu_busy_percent")
    found = telemetry.read("utilization", [fields.GPU_UTIL])
    reason = f"{card.device}/gpu_busy_percent: Is a directory"
    assert found[ON_THE_CARD] == CardAnswer(failure=reason)
    assert found[CardUUID("AMD-0000:04:00.0")].values == {fields.GPU_UTIL: 0}
    (card.device / "gpu_busy_percent").rmdir()
    card.write("gpu_busy_percent", 5)
    again = telemetry.read("utilization", [fields.GPU_UTIL])
    assert again[ON_THE_CARD].values == {fields.GPU_UTIL: 5}


def test_errors_are_not_counted_in_part(tree: AmdTree, telemetry: AmdTelemetry) -> None:
    """A counter that falls and rises again would look like new errors."""
    card = full_card(tree)
    card.write("ras/umc_err_count", "Query currently inaccessible")
    names = (fields.ECC_SBE_VOL_TOTAL, fields.ECC_DBE_VOL_TOTAL, fields.GPU_UTIL)
    found = says(telemetry, *names)
    assert found == CardAnswer({fields.GPU_UTIL: 87}, frozenset(), "")
