"""AMD's cards from a tree of files."""

import shutil
from pathlib import Path

import pytest

from exporter.telemetry import fields
from exporter.telemetry.amd import AmdTelemetry
from exporter.telemetry.base import CardAnswer, ProcessesAnswer, ProcessUse, SmSource
from exporter.telemetry.fields import FB_TOTAL, FIELDS, GPU_UTIL
from gpushare.cards.source import LeftOut, NoCardsYet
from gpushare.domain.model import CardUUID
from tests.exporter.amd_tree import UNIQUE, AmdFiles, AmdTree, full_card
from tests.gpushare.cards.nvml_fixture import wait_found
from tests.testbed.waiting import wait_until

FIRST = CardUUID("AMD-0000:03:00.0")
SECOND = CardUUID("AMD-0000:04:00.0")
NAMES = frozenset(field.name for field in FIELDS)
ENERGY = fields.TOTAL_ENERGY_CONSUMPTION
HANGS = "it did not answer within 0.5 s"


class Host(AmdTree):
    """A host's files, and the telemetry of its cards."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.telemetry = AmdTelemetry(root)


@pytest.fixture
def tree(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def hasty(tree: AmdTree) -> AmdTelemetry:
    """A busy machine may miss this deadline, too."""
    return AmdTelemetry(tree.root, deadline_s=0.5)


def says(telemetry: AmdTelemetry, *names: str) -> CardAnswer:
    [found] = telemetry.read("any", names or NAMES).values()
    return found


def failures(telemetry: AmdTelemetry, name: str = FB_TOTAL) -> list[str]:
    return [says.failure for says in telemetry.read(name, [name]).values()]


def test_a_card_is_described(tree: Host) -> None:
    """As rocminfo names it, and under no number of NVIDIA's."""
    full_card(tree)
    [card] = tree.telemetry.cards().cards
    assert (card.uuid, card.model) == (f"GPU-{UNIQUE}", "AMD Instinct MI210")
    assert (card.index, card.memory_mib) == (0, 65520)
    assert (card.bus, card.minor) == ("0000:03:00.0", None)
    assert card.device_nodes == ("/dev/dri/renderD128",)
    assert not card.known_to_driver
    assert not card.offered


@pytest.mark.parametrize("unique", ["", "0000000000000000", "unknown"])
def test_a_card_without_a_number_goes_by_its_address(tree: Host, unique: str) -> None:
    """Older cards and desktop ones tell none, or zero, and no name either."""
    tree.card(0, unique=unique)
    [card] = tree.telemetry.cards().cards
    assert (card.uuid, card.model) == (FIRST, "AMD 73bf")


def test_parts_of_a_card_are_told_apart(tree: Host) -> None:
    """They tell one number, the whole card's: the later ones go by their address."""
    tree.card(0, unique=UNIQUE)
    tree.card(1, unique=UNIQUE)
    uuids = [card.uuid for card in tree.telemetry.cards().cards]
    assert uuids == [f"GPU-{UNIQUE}", SECOND]


def test_a_card_that_hangs_drops_out_alone(tree: AmdTree, hasty: AmdTelemetry) -> None:
    card = tree.card(0)
    tree.card(1)
    card.hang("gpu_busy_percent")
    for name, wanted in ((GPU_UTIL, [HANGS, ""]), (FB_TOTAL, ["", ""])):
        wait_until(lambda name=name: failures(hasty, name), name, accept=wanted.__eq__)
    wait_until(lambda: not hasty.processes()[FIRST].failure, "processes")
    card.let_go("gpu_busy_percent")


def test_a_card_that_is_gone_stays_listed(tree: Host) -> None:
    """Under its index, and fails; it is well when it is back, wherever it comes up."""
    tree.card(0)
    other = tree.card(1)
    before = tree.telemetry.cards()
    shutil.rmtree(tree.drm / "card0")
    assert tree.telemetry.cards() == before
    gone = "0000:03:00.0 is not there any more"
    assert failures(tree.telemetry) == [gone, ""]
    assert [says.failure for says in tree.telemetry.processes().values()] == [gone, ""]
    shutil.rmtree(other.root.parent)
    with pytest.raises(NoCardsYet, match="no card of the amdgpu driver"):
        tree.telemetry.cards()
    tree.card(7, bus=4)
    tree.card(8, bus=3)
    tree.telemetry.cards()
    assert failures(tree.telemetry) == ["", ""]


def test_a_card_found_later_takes_no_other_s_index(tree: Host) -> None:
    tree.card(0, bus=9)
    tree.telemetry.cards()
    tree.card(1, bus=3)
    found = [(card.index, card.bus) for card in tree.telemetry.cards().cards]
    assert found == [(0, "0000:09:00.0"), (1, "0000:03:00.0")]


def test_other_makers_cards_are_none_of_ours(tree: Host) -> None:
    """Nor is a node without any AMD card a failure: there is nothing to ask yet."""
    tree.card(0, driver="nvidia")
    tree.card(1, driver="ast")
    nowhere = AmdTelemetry(tree.root / "nowhere")
    for ask in (tree.telemetry.cards, tree.telemetry.processes, nowhere.cards):
        with pytest.raises(NoCardsYet, match=r"sys/class/drm shows no card"):
            ask()
    tree.card(2, bus=3)
    assert [card.uuid for card in tree.telemetry.cards().cards] == [FIRST]


def test_a_card_without_memory_is_left_out(tree: Host) -> None:
    tree.card(0, memory_mib=0)
    tree.card(1)
    (tree.card(2).root / "mem_info_vram_total").unlink()
    found = tree.telemetry.cards()
    assert [card.uuid for card in found.cards] == [SECOND]
    because = "amdgpu does not report its memory"
    left_out = [LeftOut(f"0000:0{bus}:00.0", because) for bus in (3, 5)]
    assert found.left_out == tuple(left_out)


def test_compute_processes_are_listed(tree: Host) -> None:
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
    assert list(tree.telemetry.processes().values()) == [
        ProcessesAnswer((ProcessUse(700, 512), ProcessUse(800, 1.5)), SmSource.CARD),
        ProcessesAnswer((ProcessUse(800, 384),), SmSource.CARD),
    ]
    shutil.rmtree(tree.kfd / "proc" / "800")
    assert tree.telemetry.processes()[SECOND] == ProcessesAnswer((), SmSource.CARD)


def test_amdkfd_writes_an_address_as_a_number(tree: Host) -> None:
    slot = "0001:c3:1f.7"
    tree.card(0).write("uevent", f"DRIVER=amdgpu\nPCI_SLOT_NAME={slot}")
    tree.start_kfd()
    place = 0xC3 << 8 | 0x1F << 3 | 7
    tree.kfd_node(1, 51, f"simd_count 320\nlocation_id {place}\ndomain 1\n")
    tree.process(700, id_51=512)
    [told] = tree.telemetry.processes().values()
    assert told.processes == (ProcessUse(700, 512),)


def test_the_processes_of_all_partitions_are_the_card_s(tree: Host) -> None:
    """The last bits of amdkfd's address are the partition, as an MI300X writes them.

    Unless a card has just that address.
    """
    for number, slot in enumerate(("0000:0a:00.0", "0000:0a:00.2", "0000:0b:00.0")):
        uevent = f"DRIVER=amdgpu\nPCI_SLOT_NAME={slot}"
        tree.card(number).write("uevent", uevent)
    tree.start_kfd()
    for node, place in enumerate((2560, 2561, 2562, 2563, 2816), 1):
        tree.kfd_node(
            node, 50 + node, f"simd_count 304\nlocation_id {place}\ndomain 0\n"
        )
        tree.process(700 + node, **{f"id_{50 + node}": node})
    answers = tree.telemetry.processes().values()
    assert [tuple(process.pid for process in told.processes) for told in answers] == [
        (701, 702, 704),
        (703,),
        (705,),
    ]


def test_a_processor_s_gpu_has_no_memory_that_could_be_full(tree: Host) -> None:
    """What the BIOS keeps for it is always nearly full: it takes the host's too."""
    tree.card(0, memory_mib=512, used_mib=500).write("hwmon/hwmon4/in1_label", "vddnb")
    [card] = tree.telemetry.cards().cards
    assert card.integrated
    told = says(tree.telemetry, fields.FB_USED, fields.FB_FREE, fields.FB_TOTAL)
    unknown = frozenset({fields.FB_FREE, fields.FB_TOTAL})
    assert told == CardAnswer({fields.FB_USED: 500}, unknown)


def test_without_amdkfd_processes_are_unknown(tree: Host) -> None:
    """Unknown, not none: also for a card that amdkfd does not drive."""
    tree.card(0)
    unknown = ProcessesAnswer(known=False, sm_source=SmSource.CARD)
    assert tree.telemetry.processes()[FIRST] == unknown
    tree.start_kfd()
    tree.kfd_card(1, 51, bus=9)
    assert tree.telemetry.processes()[FIRST] == unknown


def test_a_card_that_hangs_while_it_is_looked_for_hides_no_other(
    tree: AmdTree, hasty: AmdTelemetry
) -> None:
    """It has its index once it answers; a known one that hangs then stays listed."""
    card = tree.card(0)
    tree.card(1)
    card.hang("mem_info_vram_total")
    found = wait_found(hasty, 1)
    assert [card.index for card in found.cards] == [1]
    assert found.left_out == (LeftOut("0000:03:00.0", HANGS),)
    assert failures(hasty) == [""]
    card.let_go("mem_info_vram_total")
    (card.root / "mem_info_vram_total").unlink()
    card.write("mem_info_vram_total", 16384 * 2**20)
    before = wait_found(hasty, 2)
    assert [card.index for card in before.cards] == [0, 1]
    card.hang("unique_id")
    assert wait_found(hasty, 2) == before
    assert failures(hasty, GPU_UTIL) == ["", ""]
    card.let_go("unique_id")


def test_a_list_of_cards_that_hangs_is_none_yet(
    tree: AmdTree, hasty: AmdTelemetry
) -> None:
    """And the driver's version that hangs is none; the kernel's own has none."""
    card = tree.card(0)
    wait_found(hasty, 1)
    version = AmdFiles(tree.root / "sys/module/amdgpu")
    assert hasty.driver_version() == ""
    version.write("version", "6.3.6")
    wait_until(hasty.driver_version, "the version", accept="6.3.6".__eq__)
    version.hang("version")
    assert hasty.driver_version() == ""
    card.hang("uevent")
    with pytest.raises(NoCardsYet, match="it did not answer within"):
        hasty.cards()
    card.let_go("uevent")
    version.let_go("version")


def test_each_field_is_read_in_its_own_unit(tree: Host) -> None:
    full_card(tree)
    found = says(tree.telemetry)
    assert found.failure == ""
    assert found.values == {
        GPU_UTIL: 87,
        fields.MEM_COPY_UTIL: 12,
        fields.FB_USED: 1024,
        fields.FB_FREE: 64496,
        FB_TOTAL: 65520,
        fields.GPU_TEMP: 41,
        fields.MEMORY_TEMP: 47,
        fields.POWER_USAGE: 215,
        ENERGY: 5000,
        fields.SM_CLOCK: 1700,
        fields.MEM_CLOCK: 1600,
        fields.PCIE_REPLAY_COUNTER: 3,
        fields.ECC_SBE_VOL_TOTAL: 22,
        fields.ECC_DBE_VOL_TOTAL: 1,
        fields.RETIRED_DBE: 2,
        fields.RETIRED_PENDING: 1,
    }
    assert found.unsupported == NAMES - set(found.values)


@pytest.mark.parametrize("text", ["", "n/a", "12 %"])
def test_what_is_no_number_is_unsupported(tree: Host, text: str) -> None:
    """It is not made into one; so is what a card has no file for. What is 0 is 0."""
    tree.card(0).write("gpu_busy_percent", text)
    found = says(tree.telemetry)
    told = {fields.FB_USED: 0, fields.FB_FREE: 16384, FB_TOTAL: 16384}
    assert found == CardAnswer(told, NAMES - told.keys())


def test_the_newest_cards_tell_other_sensors(tree: Host) -> None:
    card = tree.card(0)
    card.write("hwmon/hwmon11/temp2_input", -3000)
    card.write("hwmon/hwmon11/power1_input", 90_500_000)
    found = says(tree.telemetry, fields.GPU_TEMP, fields.POWER_USAGE)
    assert found.values == {fields.GPU_TEMP: -3, fields.POWER_USAGE: 90.5}


@pytest.mark.parametrize(
    ("revision", "at", "energy", "told"),
    [
        ((1, 1), 24, 65536, 1000.0),
        ((1, 4), 24, 0, 0.0),
        ((1, 5), 88, 2**63, 2**63 * 1000 / 65536),
        ((1, 6), 16, 65536, 1000.0),
        ((1, 7), 24, 65536, 1000.0),
        ((1, 8), 24, 65536, 1000.0),
        ((1, 3), 24, 2**64 - 1, None),
        ((1, 0), 24, 65536, None),
        ((2, 3), 24, 65536, None),
        ((1, 9), 24, 65536, None),
    ],
)
def test_energy_is_read_from_the_tables_we_know(
    tree: Host, revision: tuple[int, int], at: int, energy: int, told: float | None
) -> None:
    """By the table's revision; where a card counts none, or in another way: nothing."""
    card = tree.card(0)
    card.metrics(revision, at, energy)
    unsupported = CardAnswer({}, frozenset({ENERGY}))
    wanted = unsupported if told is None else CardAnswer({ENERGY: told})
    assert says(tree.telemetry, ENERGY) == wanted
    table = (card.root / "gpu_metrics").read_bytes()
    for cut in (0, 1, 3, 4, at, at + 7):
        (card.root / "gpu_metrics").write_bytes(table[:cut])
        assert says(tree.telemetry, ENERGY) == unsupported


def test_a_field_that_fails_now_is_missing(tree: Host) -> None:
    """One that tells nothing fails, with the reason; it may recover."""
    card = tree.card(0)
    tree.card(1)
    card.spoil("gpu_busy_percent")
    found = tree.telemetry.read("any", [GPU_UTIL, FB_TOTAL])
    assert found[FIRST] == CardAnswer({FB_TOTAL: 16384}, frozenset(), "")
    found = tree.telemetry.read("utilization", [GPU_UTIL])
    reason = f"{card.root}/gpu_busy_percent: Is a directory"
    assert found[FIRST] == CardAnswer(failure=reason)
    assert found[SECOND].values == {GPU_UTIL: 0}
    (card.root / "gpu_busy_percent").rmdir()
    card.write("gpu_busy_percent", 5)
    again = tree.telemetry.read("utilization", [GPU_UTIL])
    assert again[FIRST].values == {GPU_UTIL: 5}


def test_errors_are_not_counted_in_part(tree: Host) -> None:
    """A counter that falls and rises again would look like new errors."""
    full_card(tree).write("ras/umc_err_count", "Query currently inaccessible")
    names = (fields.ECC_SBE_VOL_TOTAL, fields.ECC_DBE_VOL_TOTAL, GPU_UTIL)
    assert says(tree.telemetry, *names) == CardAnswer({GPU_UTIL: 87}, frozenset(), "")
