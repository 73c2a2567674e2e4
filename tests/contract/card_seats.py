"""Where the contract of card sources is tried: one on each kind of card."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpushare.cards.combined import CombinedCards
from gpushare.cards.inventory import InventoryCards, read_inventory
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.cards.simulated import SimulatedCards, parse_spec
from gpushare.cards.source import CardSource, FoundCard
from tests.nvml.build import the_stub
from tests.nvml.driver import stub_card, stub_driver

INVENTORY = """
cards:
- {uuid: accel-one, memory_mib: 24576, nodes: [/dev/null], used_mib_file: USED}
- {uuid: accel-two, memory_mib: 8192, model: Accelerator, nodes: [/dev/zero]}
"""


def simulated() -> CardSource:
    cards = parse_spec("2x24GiB,1x7611MiB", "node")
    assert isinstance(cards, tuple)
    return SimulatedCards(cards)


def inventory(folder: Path) -> CardSource:
    used = folder / "used"
    used.write_text("512\n")
    path = folder / "inventory.yaml"
    path.write_text(INVENTORY.replace("USED", str(used)))
    cards = read_inventory(path)
    assert isinstance(cards, tuple), cards
    return InventoryCards(cards)


@contextmanager
def nvml_over_stub(folder: Path, *, old: bool = False) -> Iterator[CardSource]:
    """Three cards, one of them lost before anybody looked, and one in MIG mode."""
    cards = [
        stub_card(0, used_mib=300, reserved_mib=200),
        stub_card(1, mig=True),
        stub_card(2, memory_mib=24259),
        stub_card(3),
    ]
    with stub_driver(the_stub(), folder, cards, old=old) as driver:
        driver.lose(cards[3].uuid)
        yield NvmlCards()


@contextmanager
def seat_of(kind: str, folder: Path) -> Iterator[CardSource]:
    """The source of a kind; it is closed afterwards."""
    if kind in ("nvml", "nvml-old", "joined"):
        with nvml_over_stub(folder, old=kind == "nvml-old") as found:
            source = CombinedCards([found, inventory(folder)])
            yield source if kind == "joined" else found
            source.close()
    else:
        made = {"simulated": simulated, "real": NvmlCards}.get(kind)
        source_of_kind = made() if made else inventory(folder)
        yield source_of_kind
        source_of_kind.close()


def by_uuid(cards: tuple[FoundCard, ...]) -> dict[str, FoundCard]:
    return {card.uuid: card for card in cards}
