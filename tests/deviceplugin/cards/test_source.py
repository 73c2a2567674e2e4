"""The ids of devices, and a card as it is offered."""

import pytest

from deviceplugin.cards.devices import (
    CORE_KIND,
    MEMORY_KIND,
    DeviceId,
    card_key,
    colliding,
    device_ids,
    shared_card,
)
from deviceplugin.cards.source import FoundCard
from gpushare.domain.model import CardUUID

P4 = FoundCard(
    CardUUID("GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"), 0, 7611, "Tesla P4"
)


@pytest.mark.parametrize(
    ("uuid", "key"),
    [
        ("GPU-9F12F917-e458-4bb8-3d9d-8dc7fd6cddf7", "9f12f917"),
        ("9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7", "9f12f917"),
        ("accelerator", "0bd36bfd"),
    ],
)
def test_the_key_is_of_the_uuid(uuid: str, key: str) -> None:
    """Eight hex digits, with or without a vendor's prefix; else of its hash."""
    assert card_key(CardUUID(uuid)) == key


def test_ids_are_read_as_they_are_written() -> None:
    """All ids of a card come back the same, are short and each other's equal never."""
    card = shared_card(P4, 0)
    for kind, count in ((CORE_KIND, 100), (MEMORY_KIND, 29)):
        ids = device_ids(card, kind)
        assert len(set(ids)) == len(ids) == count
        assert all(str(DeviceId.parse(one)) == one for one in ids)
        assert all(len(one) <= 16 for one in ids)
    assert device_ids(card, MEMORY_KIND)[17] == "9f12f917-m0017"
    assert device_ids(card, CORE_KIND)[42] == "9f12f917-c042"


@pytest.mark.parametrize(
    "text", ["", "9f12f917", "9f12f917-x017", "9f12f917-m17", "9F12F917-m0017", "GPU-1"]
)
def test_what_is_no_id_of_ours_is_none(text: str) -> None:
    """Another plugin's ids are told apart."""
    assert DeviceId.parse(text) is None


def test_the_reserve_is_taken_off_before_units() -> None:
    """7611 MiB are 29 units; 188 MiB less are 28; no card has less than none."""
    assert shared_card(P4, 0).units == 29
    assert shared_card(P4, 188).units == 28
    assert shared_card(P4, 9999).units == 0
    assert not shared_card(P4, 0, healthy=False).healthy


def test_cards_of_the_same_ids_are_named() -> None:
    """Two UUIDs that begin alike cannot be told apart by kubelet."""
    other = FoundCard(CardUUID("GPU-9f12f917-0000"), 1, 7611)
    assert colliding([P4]) == []
    [complaint] = colliding([P4, other])
    assert P4.uuid in complaint
    assert other.uuid in complaint
