"""Where the contract of telemetries is tried: one on each kind of card."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exporter.telemetry.amd import AmdTelemetry
from exporter.telemetry.base import PlainTelemetry, Telemetry
from exporter.telemetry.combined import CombinedTelemetry
from exporter.telemetry.nvml import NvmlTelemetry
from exporter.telemetry.tegra import TegraTelemetry
from gpushare.cards.nvml_cards import NvmlCards
from tests.contract.card_seats import inventory, simulated
from tests.exporter.amd_tree import UNIQUE, AmdTree
from tests.exporter.tegra_tree import orin
from tests.nvml.build import the_stub
from tests.nvml.driver import stub_card, stub_driver


def amd(folder: Path) -> Telemetry:
    """Two cards, one of which tells more; a process on each."""
    tree = AmdTree(folder / "host")
    card = tree.card(0, unique=UNIQUE, used_mib=600)
    card.write("hwmon/hwmon1/temp1_input", 41000)
    card.write("ras/umc_err_count", "ue: 0\nce: 2")
    tree.card(1)
    tree.start_kfd()
    tree.kfd_card(1, 51, bus=3)
    tree.kfd_card(2, 52, bus=4)
    tree.process(700, id_51=512, id_52=0)
    tree.process(800, id_51=0, id_52=256)
    return AmdTelemetry(tree.root)


@contextmanager
def nvml(folder: Path, *, old: bool) -> Iterator[Telemetry]:
    """Two cards, one with processes, and one in MIG mode."""
    cards = [
        stub_card(0, used_mib=900, reserved_mib=200),
        stub_card(1, mig=True),
        stub_card(2, memory_mib=24259),
    ]
    with stub_driver(the_stub(), folder, cards, old=old) as driver:
        driver.values(cards[0].uuid, gpu_util=60, power=70_500)
        driver.process(cards[0].uuid, 700, mib=512)
        driver.process(cards[0].uuid, 800, mib=None)
        driver.busy(cards[0].uuid, 700, sm=55)
        yield NvmlTelemetry(NvmlCards())


@contextmanager
def seat_of(kind: str, folder: Path) -> Iterator[Telemetry]:
    """The telemetry of a kind; it is closed afterwards."""
    if kind in ("nvml", "nvml-old", "joined"):
        with nvml(folder, old=kind == "nvml-old") as found:
            plain = PlainTelemetry(inventory(folder))
            joined = CombinedTelemetry([found, plain, amd(folder)])
            yield joined if kind == "joined" else found
            joined.close()
    else:
        made = {
            "simulated": lambda: PlainTelemetry(simulated()),
            "inventory": lambda: PlainTelemetry(inventory(folder)),
            "amd": lambda: amd(folder),
            "tegra": lambda: TegraTelemetry(orin(folder / "jetson").root),
            "real": lambda: NvmlTelemetry(NvmlCards()),
        }[kind]()
        yield made
        made.close()
