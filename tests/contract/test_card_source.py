"""What every ``CardSource`` keeps to: made-up cards, a file's, NVML's, real ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.cards.devices import colliding_cards, shared_card
from gpushare.cards.source import CardSource
from tests.contract.card_seats import by_uuid, seat_of
from tests.contract.threads import asked_at_once, woken

SEATS = [
    *("simulated", "inventory", "nvml", "nvml-old", "joined"),
    pytest.param("real", marks=pytest.mark.gpu),
]


@pytest.fixture(params=SEATS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CardSource]:
    with seat_of(request.param, tmp_path) as found:
        yield found


def test_cards_are_told_apart(source: CardSource) -> None:
    """UUIDs, indices and device ids are each card's own; cards come by index."""
    cards = source.cards().cards
    assert cards
    assert len({card.uuid for card in cards}) == len(cards)
    indices = [card.index for card in cards]
    assert indices == sorted(set(indices))
    assert all(index >= 0 for index in indices)
    assert colliding_cards(cards) == []


def test_cards_have_memory_to_share(source: CardSource) -> None:
    """Each has at least one unit, the reserve taken off."""
    assert all(shared_card(card, 1024).units > 0 for card in source.cards().cards)


def test_what_is_left_out_has_a_reason(source: CardSource) -> None:
    """A card that cannot be shared is named with the reason, and is not among them."""
    found = source.cards()
    assert all(left.name and left.because for left in found.left_out)
    assert not {left.name for left in found.left_out} & set(by_uuid(found.cards))


def test_looking_again_finds_the_same(source: CardSource) -> None:
    """Nothing of a card changes while its driver is loaded."""
    assert source.cards() == source.cards()
    source.readings()
    assert source.cards() == source.cards()


def test_readings_are_of_the_cards_found(source: CardSource) -> None:
    """One each, and no more in use than there is."""
    cards = by_uuid(source.cards().cards)
    readings = source.readings()
    assert sorted(reading.uuid for reading in readings) == sorted(cards)
    for reading in readings:
        assert reading.failure == ""
        used = reading.used_mib
        assert used is None or 0 <= used <= cards[reading.uuid].memory_mib


def test_a_driver_s_cards_need_no_words_of_their_own(source: CardSource) -> None:
    """Device nodes and variables come with those cards that no driver knows."""
    for card in source.cards().cards:
        assert not (card.known_to_driver and (card.device_nodes or card.variables))
        assert all(node.startswith("/") for node in card.device_nodes)


def test_waiting_in_vain_ends(source: CardSource) -> None:
    """No fault: None, before the first look and after it, at once where so asked."""
    assert source.wait_for_event(0.0) is None
    source.cards()
    assert source.wait_for_event(0.0) is None
    assert source.wait_for_event(0.05) is None


def test_the_loading_keeps_its_name(source: CardSource) -> None:
    """Looking and reading load nothing anew."""
    name = source.driver_load()
    source.cards()
    source.readings()
    assert source.driver_load() == name


def test_any_thread_may_ask(source: CardSource) -> None:
    """Threads that look, read and wait at once all get the same."""

    def ask() -> object:
        found = source.cards()
        readings = source.readings()
        assert source.wait_for_event(0.01) is None
        return found, sorted(one.uuid for one in readings)

    seen = asked_at_once(ask)
    assert all(one == seen[0] for one in seen)


def test_closing_wakes_who_waits(source: CardSource) -> None:
    """A thread that waits for a fault comes back when the source is closed."""
    source.cards()
    assert woken(lambda: source.wait_for_event(600.0), source.close) is None


@pytest.mark.parametrize("looked", [False, True])
def test_closing_twice_is_harmless(source: CardSource, looked: bool) -> None:
    """Whether or not anybody looked before: the driver is let go of once."""
    if looked:
        source.cards()
    source.close()
    source.close()
