"""The GPU of a Jetson from a tree of files, and with the stub of NVML beside it."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.http import collect_page
from exporter.snapshot import Round, TelemetrySnapshot
from exporter.telemetry import fields
from exporter.telemetry.base import (
    CardAnswer,
    ProcessesAnswer,
    ProcessUse,
    SmSource,
    Telemetry,
)
from exporter.telemetry.combined import CombinedTelemetry
from exporter.telemetry.fields import FIELDS, GPU_TEMP, GPU_UTIL, MEMORY
from exporter.telemetry.nvml import NvmlTelemetry
from exporter.telemetry.tegra import TegraTelemetry, host_memory_mib
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.cards.source import LeftOut, NoCardsYet
from tests.exporter.tegra_tree import TegraTree, orin
from tests.nvml.build import the_stub
from tests.nvml.driver import NOT_SUPPORTED, StubDriver, stub_card, stub_driver
from tests.testbed.waiting import wait_until

ORIN = "TEGRA-17000000.gpu"
NAMES = frozenset(field.name for field in FIELDS)
UNKNOWN = ProcessesAnswer(sm_source=SmSource.CARD, known=False)


@pytest.fixture
def tree(tmp_path: Path) -> TegraTree:
    return TegraTree(tmp_path)


def says(telemetry: Telemetry, *names: str) -> CardAnswer:
    [found] = telemetry.read("any", names or NAMES).values()
    return found


def lists(telemetry: Telemetry) -> ProcessesAnswer:
    [found] = telemetry.processes().values()
    return found


def test_a_jetson_is_described_and_read(tmp_path: Path) -> None:
    """The load is in per mille, the memory in use is all that is not available."""
    orin(tmp_path)
    telemetry = TegraTelemetry(tmp_path)
    [card] = telemetry.cards().cards
    assert (card.uuid, card.index, card.memory_mib) == (ORIN, 0, 62840)
    assert card.model == "NVIDIA Jetson AGX Orin Developer Kit"
    assert card.integrated
    assert not card.known_to_driver
    answer = says(telemetry)
    assert answer.values == {
        fields.GPU_UTIL: 43.7,
        fields.GPU_TEMP: 48.5,
        fields.FB_TOTAL: 62840,
        fields.FB_FREE: 50000,
        fields.FB_USED: 12840,
    }
    assert answer.unsupported == NAMES - answer.values.keys()
    assert lists(telemetry) == ProcessesAnswer(
        (ProcessUse(2651, 18), ProcessUse(1792595, 4000)), SmSource.CARD
    )


@pytest.mark.parametrize(
    ("node", "link", "name"),
    [
        ("platform/gpu.0", "", "gpu.0"),
        ("platform/17000000.gpu", "", "17000000.gpu"),
        ("platform/17000000.ga10b", "platform/gpu.0", "17000000.ga10b"),
        ("17000000.gv11b", "gpu.0", "17000000.gv11b"),
        ("17000000.gp10b", "", "17000000.gp10b"),
        ("platform/host1x/57000000.gpu", "gpu.0", "57000000.gpu"),
    ],
)
@pytest.mark.parametrize("zone", ["gpu-thermal", "GPU-therm"])
def test_each_generation_has_its_names(
    tree: TegraTree, node: str, link: str, name: str, zone: str
) -> None:
    tree.gpu(node, 1000, link=link)
    tree.zones(**{"CPU-therm": 40000, zone: 61250})
    tree.memory(3964, 1000)
    telemetry = TegraTelemetry(tree.root)
    assert [card.uuid for card in telemetry.cards().cards] == [f"TEGRA-{name}"]
    assert says(telemetry, GPU_UTIL, GPU_TEMP).values == {
        GPU_UTIL: 100,
        GPU_TEMP: 61.25,
    }


def test_other_machines_are_no_jetsons(tree: TegraTree) -> None:
    """Nor is one whose GPU of the same kind of name tells no load: it is no nvgpu."""
    tree.gpu("platform/gpu.0", None)
    tree.gpu("platform/fb000000.gpu", 5)
    tree.memory(8000, 4000)
    telemetry = TegraTelemetry(tree.root)
    for ask in (telemetry.cards, telemetry.processes, lambda: says(telemetry)):
        with pytest.raises(NoCardsYet, match=r"^this node is no Jetson$"):
            ask()


def test_what_a_file_does_not_tell_is_absent(tree: TegraTree) -> None:
    """Thor's driver writes no load; a container sees neither debugfs nor the model."""
    (tree.root / "sys/class/devfreq/gpu-gpc-0").mkdir(parents=True)
    tree.write("proc/meminfo", "MemTotal:  125829120 kB")
    telemetry = TegraTelemetry(tree.root)
    [card] = telemetry.cards().cards
    assert (card.uuid, card.model) == ("TEGRA-gpu-gpc-0", "NVIDIA Jetson")
    answer = says(telemetry)
    assert answer.values == {fields.FB_TOTAL: 122880}
    assert answer.unsupported == NAMES - {fields.FB_TOTAL}
    assert lists(telemetry) == UNKNOWN


def test_a_load_out_of_range_is_a_failure_and_no_value(tree: TegraTree) -> None:
    orin(tree.root)
    tree.gpu("platform/bus@0/17000000.gpu", 1001)
    telemetry = TegraTelemetry(tree.root)
    assert "1001 is no load in per mille" in says(telemetry, GPU_UTIL).failure
    assert says(telemetry, GPU_UTIL, GPU_TEMP) == CardAnswer({GPU_TEMP: 48.5})


def test_a_sensor_without_power_tells_no_temperature(tree: TegraTree) -> None:
    """It is unknown now, and neither a failure nor -256 degrees."""
    orin(tree.root)
    tree.zones(gpu_thermal=-256000)
    answer = says(TegraTelemetry(tree.root), GPU_UTIL, GPU_TEMP)
    assert answer == CardAnswer({GPU_UTIL: 43.7})


def test_a_node_without_known_memory_has_no_card(tree: TegraTree) -> None:
    tree.gpu("platform/17000000.gpu")
    telemetry = TegraTelemetry(tree.root)
    because = "proc/meminfo has no MemTotal"
    assert telemetry.cards().left_out == (LeftOut(ORIN, because),)
    assert telemetry.read(MEMORY, NAMES) == {}


@pytest.mark.parametrize(
    ("lines", "uses"),
    [
        (["user   nvargus-daemon  1012  64K  2048K"], {1012: 2}),
        (["user  a b 12  7  1M", "user  x  7  1024K", "fsi  x  7  512K"], {7: 2.5}),
        (["user  big  8  2G", "user  9", "total   2097152K"], {8: 2048}),
    ],
    ids=["with-pss", "several-clients", "gib"],
)
def test_processes_are_read_from_any_layout(
    tree: TegraTree, lines: list[str], uses: dict[int, float]
) -> None:
    """Blanks are possible in names; the size is the last column."""
    orin(tree.root)
    tree.clients(*lines)
    listed = lists(TegraTelemetry(tree.root))
    assert {process.pid: process.memory_mib for process in listed.processes} == uses


def test_a_list_without_memory_says_nothing_about_processes(tree: TegraTree) -> None:
    """So it is where the driver allocates without nvmap: 0 would be wrong."""
    orin(tree.root)
    tree.clients("user  Xorg  2651  0K", "total  0K")
    assert lists(TegraTelemetry(tree.root)) == UNKNOWN


def test_a_file_that_hangs_delays_its_group_alone(tree: TegraTree) -> None:
    orin(tree.root)
    telemetry = TegraTelemetry(tree.root, deadline_s=0.5)
    telemetry.cards()
    zone = "sys/class/thermal/thermal_zone1/temp"
    tree.hang(zone)
    hanging = telemetry.read(fields.ENVIRONMENT, [GPU_TEMP])[ORIN]
    assert hanging.failure == "it did not answer within 0.5 s"
    wait_until(
        lambda: telemetry.read(fields.UTILIZATION, [GPU_UTIL])[ORIN].values,
        "the load",
        accept={GPU_UTIL: 43.7}.__eq__,
    )
    tree.let_go(zone)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[StubDriver]:
    with stub_driver(the_stub(), tmp_path) as driver:
        yield driver


def with_nvml(tree: TegraTree) -> CombinedTelemetry:
    """As the exporter puts it together."""
    mib = host_memory_mib(tree.root)
    nvml = NvmlCards(root=tree.root, host_memory_mib=mib)
    jetson = TegraTelemetry(tree.root, nvml.integrated)
    return CombinedTelemetry([NvmlTelemetry(nvml), jetson])


def nvgpu(driver: StubDriver, model: str = "Orin (nvgpu)") -> str:
    """NVML on a Jetson: a name and nothing else."""
    card = stub_card(0, model=model)
    driver.set_cards([card])
    for name in ("GetMemoryInfo", "GetMemoryInfo_v2", "GetUtilizationRates"):
        driver.fail(card.uuid, f"Device{name}", NOT_SUPPORTED)
    for kind in ("Compute", "Graphics", "MPSCompute"):
        for version in ("", "_v2", "_v3"):
            name = f"DeviceGet{kind}RunningProcesses{version}"
            driver.fail(card.uuid, name, NOT_SUPPORTED)
    return card.uuid


@pytest.mark.parametrize("model", ["Orin (nvgpu)", "NVIDIA Thor", "Thor"])
def test_nvml_s_card_and_the_files_are_one(
    driver: StubDriver, tree: TegraTree, model: str
) -> None:
    """Under NVML's UUID, also if NVML comes later; each tells what the other cannot."""
    orin(tree.root)
    telemetry = with_nvml(tree)
    driver.unload()
    assert [card.uuid for card in telemetry.cards().cards] == [ORIN]
    uuid = nvgpu(driver, model)
    driver.values(uuid, power=15_500)
    driver.load()
    [card] = telemetry.cards().cards
    assert (card.uuid, card.model, card.memory_mib) == (uuid, model, 62840)
    assert card.integrated
    names = {GPU_UTIL, GPU_TEMP, fields.POWER_USAGE, fields.FB_USED, fields.FB_TOTAL}
    answer = says(telemetry, *names)
    assert answer.failure == ""
    assert answer.values[GPU_UTIL] == 43.7
    assert answer.values[fields.POWER_USAGE] == 15.5
    assert answer.values[fields.FB_USED] == 12840
    assert answer.unsupported == frozenset()
    assert [process.pid for process in lists(telemetry).processes] == [2651, 1792595]


def test_a_name_alone_is_enough(driver: StubDriver, tree: TegraTree) -> None:
    """Thor with JetPack 7.0 has no file of its GPU; NVML tells load and processes."""
    uuid = nvgpu(driver, "NVIDIA Thor")
    driver.values(uuid, gpu_util=60)
    driver.fail(uuid, "DeviceGetUtilizationRates", 0)
    tree.memory(125000, 100000)
    telemetry = with_nvml(tree)
    assert [card.uuid for card in telemetry.cards().cards] == [uuid]
    answer = says(telemetry, GPU_UTIL, fields.FB_USED)
    assert answer.values == {GPU_UTIL: 60, fields.FB_USED: 25000}


def test_it_is_not_offered_for_sharing(
    driver: StubDriver, tree: TegraTree, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where NVML reports memory: it is that of the whole node."""
    caplog.set_level(logging.INFO)
    card = stub_card(0, model="NVIDIA Thor", memory_mib=125000)
    driver.set_cards([card, stub_card(1)])
    found = NvmlCards(root=tree.root).cards()
    assert [card.index for card in found.cards] == [1]
    because = "it is the GPU of a Jetson, which shares the memory of the node"
    assert found.left_out == (LeftOut(card.uuid, because),)


def test_collect_has_a_jetson_s_memory(tmp_path: Path) -> None:
    """For BIE: the memory of the node, in use and in all."""
    orin(tmp_path)
    telemetry = TegraTelemetry(tmp_path)
    found = telemetry.cards()
    answers = telemetry.read(MEMORY, [fields.FB_USED, fields.FB_TOTAL])
    memory = Round(MEMORY, 1.0, 0.1, answers)
    page = collect_page(
        TelemetrySnapshot(found=found, rounds={MEMORY: memory}), "edge-1"
    )
    assert page["edge-1"]["deviceNum"] == 1
    assert page["edge-1"]["usedMemory"] == 12840
    assert page["edge-1"]["totalMemory"] == 62840
