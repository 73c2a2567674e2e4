"""The offer of cards, and the node's annotation that follows it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest

from deviceplugin.cards import advertised
from deviceplugin.cards.advertised import Offer, OwnNode, Publisher
from deviceplugin.cards.source import FoundCard
from gpushare.domain.model import CardUUID
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.annotations import decode_cards
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import Forbidden, Unavailable
from gpushare.kube.reflector import Reflector
from tests.builders import event, node_json, page
from tests.deviceplugin.node_fixture import NODE, UUIDS, found_card
from tests.testbed.waiting import wait_until

M, C = names.MEMORY, names.CORE


def offer(*cards: FoundCard, reserve_mib: int = 0) -> Offer:
    made = Offer(reserve_mib)
    made.set_found(cards or (found_card(0, 2), found_card(1, 3)))
    return made


def healthy(made: Offer, resource: str = M) -> dict[str, bool]:
    return dict(made.devices(resource))


def test_ids_of_all_cards() -> None:
    made = offer()
    assert list(healthy(made)) == [
        "aaaaaaaa-m0000",
        "aaaaaaaa-m0001",
        *(f"bbbbbbbb-m000{i}" for i in range(3)),
    ]
    assert len(healthy(made, C)) == 200
    assert all(healthy(made, C).values())


def test_a_card_without_a_unit_has_no_cores_either() -> None:
    """A pod of cores alone would be placed on a card whose memory is all reserved."""
    made = offer(found_card(0, 2), found_card(1, 3), reserve_mib=2 * 256 + 100)
    assert [card.uuid for card in made.cards.all] == [UUIDS[1]]
    assert {one[:8] for one in healthy(made, C)} == {"bbbbbbbb"}
    too_small = made.too_small([found_card(0, 2), found_card(1, 3)])
    assert "612 MiB less a reserve of 612 MiB are less than" in too_small[UUIDS[0]]
    assert len(too_small) == 1


def test_a_card_that_vanished_stays_sick() -> None:
    made = offer()
    before = list(healthy(made))
    made.set_found([found_card(1, 3)])
    assert list(healthy(made)) == before
    assert list(healthy(made).values()) == [False] * 2 + [True] * 3
    assert made.sick() == {UUIDS[0]: "it is not found any more"}
    made.set_sick({UUIDS[0]: "XID 79"})
    assert made.sick() == {UUIDS[0]: "XID 79"}
    made.set_sick({})
    made.set_found([found_card(0, 2), found_card(1, 3)])
    assert all(healthy(made).values())
    assert made.sick() == {}


def test_a_cordoned_cards_devices_are_healthy() -> None:
    """What runs there goes on; nothing new is placed there. A card may come later."""
    made = Offer(0)
    made.set_cordoned({UUIDS[0], CardUUID("none")})
    made.set_found([found_card(1, 3), found_card(0, 2)])
    assert all(healthy(made).values())
    assert [card.open for card in made.cards.all] == [False, True]


def test_a_change_is_told_once() -> None:
    made = offer()
    version = made.version
    made.set_found([found_card(1, 3), found_card(0, 2)])
    made.set_sick({})
    made.set_cordoned([])
    assert made.version == version
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
        assert (version := version + 1) == made.version


class Counting(Embedded):
    """Counts the writes, tells of each, and fails as often as it is told to."""

    def __init__(self) -> None:
        super().__init__(bookmark_every_s=0.05)
        self.writes = 0
        self.tell = lambda: None
        self.failures: list[Exception] = []

    def annotate(self, *what: Any) -> None:
        self.writes += 1
        if self.failures:
            raise self.failures.pop(0)
        super().annotate(*what)
        self.tell()


class PublisherFixture:
    """A publisher over a cluster of one node, watched as the plugin watches it."""

    def __init__(self) -> None:
        self.cluster = Counting()
        self.node = OwnNode()
        self.offer = Offer(0)
        self.publisher = Publisher(
            self.cluster, NODE, self.node, self.offer, look_s=0.05
        )

    def there(self) -> list[tuple[str, bool]]:
        notes = self.cluster.get(Kind.NODES, "", NODE)["metadata"].get("annotations")
        found = decode_cards((notes or {}).get(names.CARDS, '{"v":1,"cards":[]}'))
        return [(card.uuid, card.healthy) for card in found]

    def make_node(self) -> None:
        self.cluster.create(Kind.NODES, node_json(NODE))

    def hear(self) -> None:
        """Let the publisher know the node as it is now."""
        self.node.replace(iter([page(self.cluster.get(Kind.NODES, "", NODE))]))

    def wait_there(self, *cards: tuple[str, bool]) -> None:
        wait_until(self.there, "annotation", accept=lambda seen: seen == list(cards))


@contextmanager
def running(
    fixture: PublisherFixture, *, at_once: bool = False
) -> Iterator[PublisherFixture]:
    """With a real watch, or with one that tells at once.

    What a late one has not told of is written again: then nobody can count writes.
    """
    stop = Event()
    loops = [fixture.publisher.run]
    if at_once:
        fixture.cluster.tell = fixture.hear
        fixture.hear()
    else:
        loops.append(Reflector(fixture.cluster, Kind.NODES, fixture.node).run)
    threads = [Thread(target=one, args=(stop,)) for one in loops]
    for thread in threads:
        thread.start()
    try:
        yield fixture
    finally:
        stop.set()
        fixture.offer.set_cordoned(["wake"])  # type: ignore[list-item]
        for thread in threads:
            thread.join()


@pytest.fixture
def fixture() -> PublisherFixture:
    made = PublisherFixture()
    made.make_node()
    made.offer.set_found([found_card(0)])
    return made


ONE = (UUIDS[0], True)


def test_written_once(fixture: PublisherFixture) -> None:
    with running(fixture, at_once=True):
        fixture.wait_there(ONE)
        fixture.offer.set_cordoned([UUIDS[0]])
        fixture.offer.set_sick({UUIDS[0]: "lost"})
        fixture.wait_there((UUIDS[0], False))
        fixture.offer.set_sick({UUIDS[0]: "XID 79"})
        fixture.offer.set_found([found_card(0), found_card(1)])
        fixture.wait_there((UUIDS[0], False), (UUIDS[1], True))
    # A restart of the plugin wakes no pod.
    Publisher(fixture.cluster, NODE, fixture.node, fixture.offer).publish()
    assert fixture.cluster.writes == 3


@pytest.mark.parametrize("text", [None, "", '{"v":1,"cards":[]}', "junk"])
def test_who_changes_it_is_overruled(
    fixture: PublisherFixture, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with running(fixture, at_once=True):
        fixture.wait_there(ONE)
        Embedded.annotate(fixture.cluster, Kind.NODES, "", NODE, {names.CARDS: text})
        fixture.hear()
        wait_until(lambda: fixture.cluster.writes == 2, "a second write")
        fixture.wait_there(ONE)
    removed = "the annotation of the cards was removed; writing it again"
    assert (removed in caplog.messages) is (text is None)


def test_the_node_may_come_later_and_again() -> None:
    late = PublisherFixture()
    late.offer.set_found([found_card(0)])
    late.publisher.publish()
    with running(late):
        assert late.cluster.writes == 0
        late.make_node()
        late.wait_there(ONE)
        late.cluster.delete(Kind.NODES, "", NODE)
        wait_until(lambda: not late.node.exists(), "its end")
        late.make_node()
        late.wait_there(ONE)


def test_errors_are_retried(
    fixture: PublisherFixture,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(advertised, "_FIRST_WAIT_S", 0.01)
    fixture.cluster.failures = [Unavailable("no answer"), Forbidden("not yours")]
    with running(fixture):
        fixture.wait_there(ONE)
    told = [one for one in caplog.records if one.message == "cards not published"]
    facts = [(one.because, one.wait_s) for one in told]  # type: ignore[attr-defined]
    assert facts == [("no answer", 0.01), ("not yours", 0.02)]
    assert "cards published" in caplog.messages


def test_what_operators_wrote() -> None:
    node = OwnNode()
    assert node.uuids(names.CORDON) == frozenset()
    assert node.status() == {}
    made = node_json(NODE, annotations={names.CORDON: " A ,B,, "})
    node.apply(event("ADDED", made | {"status": {"nodeInfo": {}}}))
    assert node.uuids(names.CORDON) == {"A", "B"}
    assert node.status() == {"nodeInfo": {}}
    node.apply(event("DELETED", made))
    assert not node.exists()
    assert node.annotation(names.CORDON) is None
    for items in ([made], []):
        node.replace(iter([page(*items)]))
        assert node.exists() is bool(items)
