"""Telemetry of cards that tell their memory in use, at most."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from exporter.telemetry.base import CardAnswer, PlainTelemetry, ProcessesAnswer
from exporter.telemetry.fields import (
    FB_FREE,
    FB_TOTAL,
    FB_USED,
    FIELDS,
    MEMORY,
    UTILIZATION,
)
from gpushare.cards.inventory import InventoryCards, read_inventory
from gpushare.cards.source import CardReading, NoCardsYet, XidEvent
from gpushare.domain.model import CardUUID
from tests.gpushare.cards.test_combined import Played

NAMES = frozenset(field.name for field in FIELDS)
TOLD = frozenset({FB_USED, FB_FREE, FB_TOTAL})
ONE = CardUUID("one")


def inventory(folder: Path, more: str) -> PlainTelemetry:
    path = folder / "inventory.yaml"
    path.write_text(f"cards:\n- {{uuid: one, memory_mib: 1024, {more}}}\n")
    cards = read_inventory(path)
    assert isinstance(cards, tuple), cards
    return PlainTelemetry(InventoryCards(cards))


@pytest.mark.parametrize("used", ["0", "300", "1024", "?"])
def test_memory_is_told_and_nothing_else(tmp_path: Path, used: str) -> None:
    """Of unused memory the users are known: there are none."""
    path = tmp_path / "used"
    telemetry = inventory(tmp_path, f"used_mib_file: {path}")
    path.write_text(used)
    values = {FB_TOTAL: 1024}
    if used.isdecimal():
        values |= {FB_USED: int(used), FB_FREE: 1024 - int(used)}
    wanted = CardAnswer(values, NAMES - values.keys())
    assert telemetry.read(MEMORY, NAMES) == {ONE: wanted}
    assert telemetry.processes() == {ONE: ProcessesAnswer(known=used == "0")}


def test_a_card_that_fails_fails(tmp_path: Path) -> None:
    telemetry = inventory(tmp_path, f"nodes: [{tmp_path}/accel0]")
    missing = f"{tmp_path}/accel0 is missing"
    for group in (MEMORY, UTILIZATION):
        assert telemetry.read(group, NAMES) == {ONE: CardAnswer(failure=missing)}
    assert telemetry.processes() == {ONE: ProcessesAnswer.failed(missing)}


def test_a_source_without_cards_has_none() -> None:
    """It says why, and recovers; its events come through."""
    source = Played("a", 0)
    source.away = "no driver"
    telemetry = PlainTelemetry(source)
    for ask in (
        telemetry.cards,
        telemetry.processes,
        lambda: telemetry.read(MEMORY, TOLD),
    ):
        with pytest.raises(NoCardsYet, match=r"^no driver$"):
            ask()
    source.away = ""
    assert telemetry.cards() == source.found
    event = XidEvent(None, 79)
    source.faults.append(event)
    assert telemetry.wait_for_event(600.0) == event


class Growing(Played):
    """A source that finds one more card between two questions."""

    def readings(self) -> Sequence[CardReading]:
        return [*super().readings(), CardReading(CardUUID("new"), 0)]


def test_a_card_that_came_between_two_questions_waits() -> None:
    assert set(PlainTelemetry(Growing("a", 0)).read(MEMORY, TOLD)) == {"a0"}
