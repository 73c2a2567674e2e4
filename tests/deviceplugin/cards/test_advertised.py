"""What this node offers, and who hears of a change."""

from threading import Thread

import pytest

from deviceplugin.cards.advertised import Offer
from deviceplugin.cards.source import FoundCard
from gpushare.domain.model import CardUUID
from gpushare.kube import names
from tests.deviceplugin.house import UUIDS, found_card

M, C = names.MEMORY, names.CORE


def offer(*cards: FoundCard, reserve_mib: int = 0) -> Offer:
    made = Offer(reserve_mib)
    made.set_found(cards or (found_card(0, 2), found_card(1, 3)))
    return made


def healthy(made: Offer, resource: str = M) -> dict[str, bool]:
    return dict(made.devices(resource))


def test_ids_of_all_cards() -> None:
    """Units of memory and hundredths of compute, by card."""
    made = offer()
    assert list(healthy(made)) == [
        "aaaaaaaa-m0000",
        "aaaaaaaa-m0001",
        *(f"bbbbbbbb-m000{i}" for i in range(3)),
    ]
    assert len(healthy(made, C)) == 200
    assert all(healthy(made, C).values())


def test_the_reserve_is_not_offered() -> None:
    """One unit less of each card with a reserve of more than its odd 100 MiB."""
    made = offer(reserve_mib=101)
    assert [card.units for card in made.cards().all] == [1, 2]


def test_a_card_without_a_unit_has_no_cores_either() -> None:
    """A pod of cores alone would be placed on a card whose memory is all reserved."""
    made = offer(found_card(0, 2), found_card(1, 3), reserve_mib=2 * 256 + 100)
    assert [card.uuid for card in made.cards().all] == [UUIDS[1]]
    assert {one[:8] for one in healthy(made, C)} == {"bbbbbbbb"}
    assert made.too_small([found_card(0, 2), found_card(1, 3)]) == {
        UUIDS[
            0
        ]: "its 612 MiB less a reserve of 612 MiB are less than one unit of 256 MiB"
    }


def test_a_card_that_vanished_stays_sick() -> None:
    """Its ids are there as before, and it is well when it is found again."""
    made = offer()
    before = list(healthy(made))
    made.set_found([found_card(1, 3)])
    assert list(healthy(made)) == before
    assert list(healthy(made).values()) == [False] * 2 + [True] * 3
    assert made.sick() == {UUIDS[0]: "it is not found any more"}
    made.set_found([found_card(0, 2), found_card(1, 3)])
    assert all(healthy(made).values())
    assert made.sick() == {}


def test_a_readings_words_outweigh_not_found() -> None:
    """It says more."""
    made = offer()
    made.set_found([])
    made.set_sick({UUIDS[0]: "XID 79"})
    assert made.sick() == {UUIDS[0]: "XID 79", UUIDS[1]: "it is not found any more"}


def test_a_cordoned_cards_devices_are_healthy() -> None:
    """What runs there goes on; nothing new is placed there."""
    made = offer()
    made.set_cordoned({UUIDS[0]})
    assert all(healthy(made).values())
    assert [card.open for card in made.cards().all] == [False, True]


def test_a_cordon_may_come_before_its_card() -> None:
    """And of cards that nobody knows it says nothing."""
    made = Offer(0)
    made.set_cordoned({UUIDS[0], CardUUID("none")})
    made.set_found([found_card(0)])
    assert [card.cordoned for card in made.cards().all] == [True]


def test_cards_come_by_index() -> None:
    """However they were found."""
    made = offer(found_card(2), found_card(0))
    made.set_found([found_card(1)])
    assert [card.index for card in made.cards().all] == [0, 1, 2]


def test_a_change_is_told_once() -> None:
    """What is set again as it was is none."""
    made = offer()
    version = made.version()
    made.set_found([found_card(1, 3), found_card(0, 2)])
    made.set_sick({})
    made.set_cordoned([])
    assert made.version() == version
    assert not made.wait_for_change(version, 0)
    for change in (
        lambda: made.set_sick({UUIDS[0]: "lost"}),
        lambda: made.set_sick({UUIDS[0]: "XID 79"}),
        lambda: made.set_sick({}),
        lambda: made.set_cordoned([UUIDS[1]]),
        lambda: made.set_found([]),
        lambda: made.set_found([found_card(0, 5), found_card(1, 3)]),
    ):
        change()
        assert made.wait_for_change(version, 0)
        assert (version := version + 1) == made.version()


def test_who_waits_is_woken() -> None:
    """As a stream to kubelet does."""
    made = offer()
    told: list[bool] = []
    version = made.version()
    waiter = Thread(target=lambda: told.append(made.wait_for_change(version, 60)))
    waiter.start()
    made.set_sick({UUIDS[0]: "lost"})
    waiter.join()
    assert told == [True]


@pytest.mark.parametrize("uuid", [UUIDS[0], CardUUID("none")])
def test_a_found_card_keeps_what_its_source_knows(uuid: CardUUID) -> None:
    """For what its container needs; a stranger is none."""
    found = offer(found_card(0)).cards().as_found([uuid])
    assert found == ((found_card(0),) if uuid == UUIDS[0] else ())
