"""AMD's cards from a tree of files."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from deviceplugin.cards.source import Found, LeftOut, NoCardsYet
from deviceplugin.telemetry import fields
from deviceplugin.telemetry.amd import AmdTelemetry
from deviceplugin.telemetry.base import (
    CardAnswer,
    ProcessesAnswer,
    ProcessUse,
    SmSource,
)
from deviceplugin.telemetry.fields import FIELDS
from gpushare.domain.model import CardUUID
from tests.deviceplugin.amd_tree import UNIQUE, AmdFiles, AmdTree, full_card
from tests.testbed.waiting import wait_until

ON_THE_CARD = CardUUID("AMD-0000:03:00.0")


@pytest.fixture
def tree(tmp_path: Path) -> AmdTree:
    return AmdTree(tmp_path)


@pytest.fixture
def telemetry(tree: AmdTree) -> AmdTelemetry:
    return AmdTelemetry(tree.root)


def test_a_card_is_described(tree: AmdTree, telemetry: AmdTelemetry) -> None:
    """As rocminfo names it, and under no number of NVIDIA's."""
    full_card(tree)
    [card] = telemetry.cards().cards
    assert (card.uuid, card.model) == (f"GPU-{UNIQUE}", "AMD Instinct MI210")
    assert (card.index, card.memory_mib) == (0, 65520)
    assert (card.bus, card.minor) == ("0000:03:00.0", None)
    assert card.nodes == ("/dev/dri/renderD128",)
    assert not card.known_to_driver


@pytest.mark.parametrize("unique", ["", "0000000000000000", "unknown"])
def test_a_card_without_a_number_goes_by_its_address(
    tree: AmdTree, telemetry: AmdTelemetry, unique: str
) -> None:
    """Older cards and desktop ones tell none, or zero, and no name either."""
    tree.card(0, unique=unique)
    [card] = telemetry.cards().cards
    assert (card.uuid, card.model) == (ON_THE_CARD, "AMD 73bf")


def test_a_card_that_hangs_drops_out_alone(tree: AmdTree) -> None:
    """After the deadline, in the group that hangs and in no other."""
    telemetry = AmdTelemetry(tree.root, deadline_s=0.5)
    card = tree.card(0)
    tree.card(1)
    card.hang("gpu_busy_percent")

    def comes_to(group: str, name: str, *failures: str) -> None:
        """A busy machine may miss the deadline, too."""
        wait_until(
            lambda: [one.failure for one in telemetry.read(group, [name]).values()],
            f"{group} {failures}",
            accept=list(failures).__eq__,
        )

    comes_to("utilization", fields.GPU_UTIL, "it did not answer within 0.5 s", "")
    comes_to("memory", fields.FB_TOTAL, "", "")
    wait_until(lambda: not telemetry.processes()[ON_THE_CARD].failure, "processes")
    card.let_go("gpu_busy_percent")


def test_a_card_that_is_gone_stays_listed(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """Under its index, and fails; it is well when it is back, wherever it comes up."""
    tree.card(0)
    other = tree.card(1)
    before = telemetry.cards()
    shutil.rmtree(tree.drm / "card0")
    assert telemetry.cards() == before
    gone = "0000:03:00.0 is not there any more"
    told = telemetry.read("memory", [fields.FB_TOTAL])
    assert [one.failure for one in told.values()] == [gone, ""]
    assert [one.failure for one in telemetry.processes().values()] == [gone, ""]
    shutil.rmtree(other.device.parent)
    with pytest.raises(NoCardsYet, match="no card of the amdgpu driver"):
        telemetry.cards()
    tree.card(7, bus=4)
    tree.card(8, bus=3)
    telemetry.cards()
    told = telemetry.read("memory", [fields.FB_TOTAL])
    assert [one.failure for one in told.values()] == ["", ""]


def test_a_card_found_later_takes_no_other_s_index(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """Even where its address comes first."""
    tree.card(0, bus=9)
    telemetry.cards()
    tree.card(1, bus=3)
    assert [(one.index, one.bus) for one in telemetry.cards().cards] == [
        (0, "0000:09:00.0"),
        (1, "0000:03:00.0"),
    ]


def test_other_makers_cards_are_none_of_ours(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """Nor is a node without any AMD card a failure: there is nothing to ask yet."""
    tree.card(0, driver="nvidia")
    tree.card(1, driver="ast")
    for ask in (telemetry.cards, telemetry.processes):
        with pytest.raises(NoCardsYet, match=r"sys/class/drm shows no card"):
            ask()
    with pytest.raises(NoCardsYet):
        telemetry.read("memory", [fields.FB_USED])
    tree.card(2, bus=3)
    assert [one.uuid for one in telemetry.cards().cards] == [ON_THE_CARD]


def test_a_host_without_files_has_no_card(tmp_path: Path) -> None:
    """A root of nothing, or a wrong one."""
    with pytest.raises(NoCardsYet):
        AmdTelemetry(tmp_path / "nowhere").cards()


def test_a_card_without_memory_is_left_out(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """With the reason, beside those that have some."""
    tree.card(0, memory_mib=0)
    tree.card(1)
    (tree.card(2).device / "mem_info_vram_total").unlink()
    found = telemetry.cards()
    assert [one.bus for one in found.cards] == ["0000:04:00.0"]
    because = "amdgpu does not tell its memory"
    assert found.left_out == (
        LeftOut("0000:03:00.0", because),
        LeftOut("0000:05:00.0", because),
    )


def test_parts_of_a_card_are_told_apart(tree: AmdTree, telemetry: AmdTelemetry) -> None:
    """They tell one number, the whole card's: the later ones go by their address."""
    tree.card(0, unique=UNIQUE)
    tree.card(1, unique=UNIQUE)
    assert [one.uuid for one in telemetry.cards().cards] == [
        f"GPU-{UNIQUE}",
        "AMD-0000:04:00.0",
    ]


def test_compute_processes_are_listed(tree: AmdTree, telemetry: AmdTelemetry) -> None:
    """Each on the cards it has memory of, over all parts of a card."""
    tree.card(0)
    tree.card(1)
    tree.start_kfd()
    tree.kfd_card(1, 51, bus=3)
    tree.kfd_card(2, 52, bus=4)
    tree.kfd_card(3, 53, bus=4, part=1)
    tree.process(700, id_51=512, id_52=0, id_53=0)
    tree.process(800, id_51=1.5, id_52=256, id_53=128)
    tree.process(900)  # it has just begun, or is ending
    (tree.kfd / "proc" / "self").mkdir()
    assert list(telemetry.processes().values()) == [
        ProcessesAnswer((ProcessUse(700, 512), ProcessUse(800, 1.5)), SmSource.CARD),
        ProcessesAnswer((ProcessUse(800, 384),), SmSource.CARD),
    ]
    shutil.rmtree(tree.kfd / "proc" / "800")
    idle = ProcessesAnswer((), SmSource.CARD)
    assert telemetry.processes()[CardUUID("AMD-0000:04:00.0")] == idle


def test_amdkfd_writes_an_address_as_a_number(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """Bus, device and function in one, the domain beside."""
    slot = "0001:c3:1f.7"
    tree.card(0).write("uevent", f"DRIVER=amdgpu\nPCI_SLOT_NAME={slot}")
    tree.start_kfd()
    place = 0xC3 << 8 | 0x1F << 3 | 7
    tree.kfd_node(1, 51, f"simd_count 320\nlocation_id {place}\ndomain 1\n")
    tree.process(700, id_51=512)
    [told] = telemetry.processes().values()
    assert told.processes == (ProcessUse(700, 512),)


def test_without_amdkfd_processes_are_unknown(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """Unknown, not none: also for a card that amdkfd does not drive."""
    tree.card(0)
    unknown = ProcessesAnswer(known=False, sm_source=SmSource.CARD)
    assert telemetry.processes()[ON_THE_CARD] == unknown
    tree.start_kfd()
    tree.kfd_card(1, 51, bus=9)
    assert telemetry.processes()[ON_THE_CARD] == unknown


def test_the_driver_s_version_is_told_where_it_has_one(
    tree: AmdTree, telemetry: AmdTelemetry
) -> None:
    """The kernel's own has none."""
    assert telemetry.driver_version() == ""
    (tree.root / "sys/module/amdgpu/version").write_text("6.3.6\n")
    assert telemetry.driver_version() == "6.3.6"


def looks_on(telemetry: AmdTelemetry, wanted: int) -> Found:
    """Look until so many cards are found: a busy machine may miss the deadline."""

    def look() -> Found:
        with suppress(NoCardsYet):
            return telemetry.cards()
        return Found(())

    return wait_until(
        look, f"{wanted} cards", accept=lambda seen: len(seen.cards) == wanted
    )


def test_a_card_that_hangs_while_it_is_looked_for_hides_no_other(
    tree: AmdTree,
) -> None:
    """It is left out, and has its index once it answers."""
    telemetry = AmdTelemetry(tree.root, deadline_s=0.5)
    card = tree.card(0)
    tree.card(1)
    card.hang("mem_info_vram_total")
    found = looks_on(telemetry, 1)
    assert [one.index for one in found.cards] == [1]
    assert found.left_out == (
        LeftOut("0000:03:00.0", "it did not answer within 0.5 s"),
    )
    told = telemetry.read("memory", [fields.FB_TOTAL])
    assert [one.failure for one in told.values()] == [""]
    card.let_go("mem_info_vram_total")
    (card.device / "mem_info_vram_total").unlink()
    card.write("mem_info_vram_total", 16384 * 2**20)
    assert [one.index for one in looks_on(telemetry, 2).cards] == [0, 1]


def test_a_known_card_that_hangs_at_a_look_holds_up_nothing(tree: AmdTree) -> None:
    """It stays listed, and all cards are read meanwhile."""
    telemetry = AmdTelemetry(tree.root, deadline_s=0.5)
    card = tree.card(0)
    tree.card(1)
    before = looks_on(telemetry, 2)
    card.hang("unique_id")
    assert looks_on(telemetry, 2) == before
    told = telemetry.read("utilization", [fields.GPU_UTIL])
    assert [one.failure for one in told.values()] == ["", ""]
    card.let_go("unique_id")


def test_a_list_of_cards_that_hangs_is_none_yet(tree: AmdTree) -> None:
    """And the driver's version that hangs is none."""
    telemetry = AmdTelemetry(tree.root, deadline_s=0.5)
    card = tree.card(0)
    looks_on(telemetry, 1)
    os.mkfifo(tree.root / "sys/module/amdgpu/version")
    assert telemetry.driver_version() == ""
    card.hang("uevent")
    with pytest.raises(NoCardsYet, match="it did not answer within"):
        telemetry.cards()
    card.let_go("uevent")
    AmdFiles(tree.root / "sys/module/amdgpu").let_go("version")


NAMES = frozenset(one.name for one in FIELDS)


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
