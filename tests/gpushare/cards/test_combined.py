"""The driver's cards and an inventory's as one source."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from exporter.telemetry.combined import CombinedTelemetry
from gpushare.cards.combined import CombinedCards
from gpushare.cards.source import (
    DriverLost,
    FoundCard,
    FoundCards,
    LeftOut,
    NoCardsYet,
    XidEvent,
)
from gpushare.domain.model import CardUUID
from tests.deviceplugin.node_fixture import ScriptedCards


class Played(ScriptedCards):
    """Cards whose driver may be lost for good."""

    def __init__(self, name: str, *indices: int) -> None:
        super().__init__(*(FoundCard(CardUUID(f"{name}{i}"), i, 1024) for i in indices))
        self.load, self.lost, self.closed = f"load of {name}", "", 0

    def cards(self) -> FoundCards:
        if self.lost:
            raise DriverLost(self.lost)
        return super().cards()

    def close(self) -> None:
        self.closed += 1


def indices(found: FoundCards) -> dict[str, int]:
    return {card.uuid: card.index for card in found.cards}


def test_the_first_keeps_its_indices() -> None:
    """A later one keeps those that are free; the rest come after all."""
    joined = CombinedCards([Played("a", 0, 2), Played("b", 0, 1, 5)])
    assert indices(joined.cards()) == {"a0": 0, "b1": 1, "a2": 2, "b5": 5, "b0": 6}
    assert joined.cards() == joined.cards()


def test_a_source_without_cards_hides_no_other() -> None:
    first, second = Played("a", 0), Played("b", 0)
    first.away = "no driver"
    joined = CombinedCards([first, second])
    assert indices(joined.cards()) == {"b0": 0}
    assert [reading.uuid for reading in joined.readings()] == ["b0"]
    first.away = ""
    assert indices(joined.cards()) == {"a0": 0, "b0": 1}


def test_no_card_anywhere_says_why() -> None:
    """An empty inventory does not make a node without a driver one without cards."""
    first, second = Played("a", 0), Played("b")
    first.away = "no driver"
    joined = CombinedCards([first, second])
    for ask in (joined.cards, joined.readings):
        with pytest.raises(NoCardsYet, match=r"^no driver$"):
            ask()
    first.away, first.found = "", FoundCards(())
    assert joined.cards() == FoundCards(())


@pytest.mark.parametrize("make", [CombinedCards, CombinedTelemetry])
def test_cards_that_are_left_out_are_the_reason(
    make: Callable[[list[Any]], CombinedCards | CombinedTelemetry],
) -> None:
    """Not that a source of another maker has none."""
    first, second = Played("a"), Played("b")
    first.found = FoundCards((), (LeftOut("a0", "it is in MIG mode"),))
    second.away = "no card of the amdgpu driver"
    joined = make([first, second])
    assert joined.cards() == first.found
    if isinstance(joined, CombinedCards):
        assert joined.readings() == []


def test_cards_stay_while_their_driver_is_gone() -> None:
    first, second = Played("a", 0), Played("b", 0)
    joined = CombinedCards([first, second])
    before = joined.cards()
    first.away = "the driver was unloaded"
    assert joined.cards() == before
    failures = {reading.uuid: reading.failure for reading in joined.readings()}
    assert failures == {"a0": "the driver was unloaded", "b0": ""}


@pytest.mark.parametrize("make", [CombinedCards, CombinedTelemetry])
@pytest.mark.parametrize(
    ("had", "others", "ends"), [(1, 0, True), (1, 1, True), (0, 0, True), (0, 1, False)]
)
def test_a_driver_that_is_lost(
    make: Callable[[list[Any]], CombinedCards | CombinedTelemetry],
    had: int,
    others: int,
    *,
    ends: bool,
) -> None:
    """A new process may have its cards; one that never had any serves the others."""
    first, second = Played("a", *range(had)), Played("b", *range(others))
    first.away = "" if had else "broken"
    second.away = "" if others else "none"
    joined = make([first, second])
    with nullcontext() if had or others else pytest.raises(NoCardsYet):
        joined.cards()
    first.lost = "broken, for 60 s"
    with pytest.raises(DriverLost) if ends else nullcontext():
        assert indices(joined.cards()) == {"b0": 0}


def test_a_card_of_two_sources_is_the_first_s() -> None:
    first, second = Played("a", 0), Played("a", 0, 1)
    joined = CombinedCards([first, second])
    found = joined.cards()
    assert indices(found) == {"a0": 0, "a1": 1}
    assert found.left_out == (LeftOut("a0", "another source has it already"),)
    assert sorted(reading.uuid for reading in joined.readings()) == ["a0", "a1"]


def test_events_come_from_any_and_the_loading_from_the_first() -> None:
    first, second = Played("a", 0), Played("b", 0)
    joined = CombinedCards([first, second])
    assert joined.driver_load() == "load of a"
    event = XidEvent(None, 79)
    for source in (second, first):
        source.faults.append(event)
        assert joined.wait_for_event(600.0) == event
    assert joined.wait_for_event(0.0) is None
    joined.close()
    assert (first.closed, second.closed) == (1, 1)
