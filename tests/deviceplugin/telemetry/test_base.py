"""Telemetry of cards that tell their memory in use, at most."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from deviceplugin.cards.combined import CombinedCards
from deviceplugin.cards.inventory import InventoryCards, read_inventory
from deviceplugin.cards.simulated import SimulatedCards, parse_spec
from deviceplugin.cards.source import CardReading, NoCardsYet, XidEvent
from deviceplugin.telemetry import fields
from deviceplugin.telemetry.base import CardAnswer, PlainTelemetry, ProcessesAnswer
from deviceplugin.telemetry.fields import FIELDS, MEMORY, UTILIZATION
from gpushare.domain.model import CardUUID
from tests.deviceplugin.cards.test_combined import Played

NAMES = frozenset(one.name for one in FIELDS)
TOLD = frozenset({fields.FB_USED, fields.FB_FREE, fields.FB_TOTAL})
ONE = CardUUID("one")


def inventory(folder: Path, **more: str) -> PlainTelemetry:
    """One card of 1024 MiB, with these fields of the file beside."""
    lines = {"uuid": "one", "memory_mib": "1024", **more}
    path = folder / "inventory.yaml"
    path.write_text(
        "cards:\n- " + "\n  ".join(f"{name}: {lines[name]}" for name in lines)
    )
    cards = read_inventory(path)
    assert isinstance(cards, tuple), cards
    return PlainTelemetry(InventoryCards(cards))


def test_memory_is_told_and_nothing_else(tmp_path: Path) -> None:
    """Of a card with a file of its use; the rest it does not have."""
    used = tmp_path / "used"
    used.write_text("300\n")
    telemetry = inventory(tmp_path, used_mib_file=str(used))
    values = {fields.FB_USED: 300, fields.FB_FREE: 724, fields.FB_TOTAL: 1024}
    assert telemetry.read(MEMORY, NAMES) == {ONE: CardAnswer(values, NAMES - TOLD)}
    used.write_text("1024\n")
    found = telemetry.read(MEMORY, [fields.FB_FREE])
    assert found == {ONE: CardAnswer({fields.FB_FREE: 0}, frozenset())}


def test_an_unknown_use_is_unsupported_and_no_zero(tmp_path: Path) -> None:
    """The memory in all is known nonetheless; the use comes back with its file."""
    used = tmp_path / "used"
    telemetry = inventory(tmp_path, used_mib_file=str(used))
    unknown = frozenset({fields.FB_USED, fields.FB_FREE})
    found = telemetry.read(MEMORY, TOLD)
    assert found == {ONE: CardAnswer({fields.FB_TOTAL: 1024}, unknown)}
    used.write_text("0")
    assert telemetry.read(MEMORY, TOLD)[ONE].values[fields.FB_USED] == 0


def test_a_card_that_fails_fails(tmp_path: Path) -> None:
    """With its source's words, whatever is asked."""
    telemetry = inventory(tmp_path, nodes=f"[{tmp_path}/accel0]")
    missing = f"{tmp_path}/accel0 is missing"
    for group in (MEMORY, UTILIZATION):
        assert telemetry.read(group, NAMES) == {ONE: CardAnswer(failure=missing)}
    assert telemetry.processes() == {ONE: ProcessesAnswer(known=False, failure=missing)}


@pytest.mark.parametrize(("used", "known"), [("0", True), ("1", False), ("?", False)])
def test_only_of_unused_memory_the_users_are_known(
    tmp_path: Path, used: str, known: bool
) -> None:
    """There are none; else somebody uses it, and nobody tells who."""
    path = tmp_path / "used"
    path.write_text(used)
    telemetry = inventory(tmp_path, used_mib_file=str(path))
    assert telemetry.processes() == {ONE: ProcessesAnswer(known=known)}


def test_simulated_cards_are_idle() -> None:
    """Nothing of them is in use, by nobody."""
    cards = parse_spec("2x24GiB", "node")
    assert isinstance(cards, tuple)
    telemetry = PlainTelemetry(SimulatedCards(cards))
    values = {fields.FB_USED: 0, fields.FB_FREE: 24576, fields.FB_TOTAL: 24576}
    idle = CardAnswer(values, frozenset())
    assert telemetry.read(MEMORY, TOLD) == {card.uuid: idle for card in cards}
    nobody = ProcessesAnswer((), known=True)
    assert telemetry.processes() == {card.uuid: nobody for card in cards}


def test_a_source_without_cards_has_none() -> None:
    """It says why, and recovers."""
    source = Played("a", 0)
    source.gone = "no driver"
    telemetry = PlainTelemetry(source)
    for ask in (
        telemetry.cards,
        telemetry.processes,
        lambda: telemetry.read(MEMORY, TOLD),
    ):
        with pytest.raises(NoCardsYet, match=r"^no driver$"):
            ask()
    source.gone = ""
    assert telemetry.cards() == source.found
    assert set(telemetry.read(MEMORY, TOLD)) == {"a0"}


def test_the_source_s_events_come_through_and_it_is_closed() -> None:
    """Whatever source it is."""
    source = Played("a", 0)
    telemetry = PlainTelemetry(CombinedCards([source]))
    event = XidEvent(None, 79)
    source.events.append(event)
    assert telemetry.wait_for_event(600.0) == event
    telemetry.close()
    assert source.closed == 1


class Growing(Played):
    """A source that finds one more card between two questions."""

    def readings(self) -> Sequence[CardReading]:
        before = super().readings()
        return [*before, CardReading(CardUUID("new"), 0)]


def test_a_card_that_came_between_two_questions_waits() -> None:
    """It is told with the next round, when its size is known."""
    assert set(PlainTelemetry(Growing("a", 0)).read(MEMORY, TOLD)) == {"a0"}
