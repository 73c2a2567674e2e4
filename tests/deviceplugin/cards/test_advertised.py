"""The offer of cards, and the node's annotation that follows it."""

from dataclasses import replace
from threading import Event
from typing import cast
from unittest.mock import DEFAULT, Mock

import pytest

from deviceplugin.cards import advertised
from deviceplugin.cards.advertised import Offer, OwnNode, Publisher
from gpushare.cards.source import FoundCard
from gpushare.domain.model import CardUUID
from gpushare.kube import names
from gpushare.kube.annotations import decode_cards, decode_isolation
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import Forbidden, Unavailable
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import event, node_json, page
from tests.deviceplugin.node_fixture import NODE, UUIDS, found_card

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
    assert {device_id[:8] for device_id in healthy(made, C)} == {"bbbbbbbb"}
    too_small = made.too_small([found_card(0, 2), found_card(1, 3)])
    assert "612 MiB less GPUSHARE_RESERVE_MIB=612 are less than" in too_small[UUIDS[0]]
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


def reasons(made: Offer) -> list[str]:
    """What each card shows, by index."""
    return [card.reason for card in made.cards.all]


def test_a_sick_card_says_why() -> None:
    made = offer()
    made.set_sick({UUIDS[0]: "XID 79"})
    assert reasons(made) == ["XID 79", ""]
    made.set_found([found_card(0, 2)])
    assert reasons(made) == ["XID 79", "it is not found any more"]
    made.set_sick({})
    made.set_found([found_card(0, 2), found_card(1, 3)])
    assert reasons(made) == ["", ""]


def test_a_reason_that_comes_and_goes_is_not_shown() -> None:
    """Each change is a write that wakes all waiting pods; another one must stay."""
    made = offer()
    for why in ("no answer", "lost", "no answer", "lost", "lost"):
        made.set_sick({UUIDS[0]: why})
        assert reasons(made)[0] == "no answer"
    assert made.sick() == {UUIDS[0]: "lost"}
    made.set_sick({UUIDS[0]: "lost"})
    assert reasons(made)[0] == "lost"
    made.set_sick({})
    made.set_sick({UUIDS[0]: "no answer"})
    assert reasons(made)[0] == "no answer"


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        (f"{'a' * 100}; {'b' * 18}", f"{'a' * 100}; {'b' * 18}"),
        (f"{'a' * 100}; {'b' * 19}", "a" * 100),
        ("a" * 121, f"{'a' * 119}…"),
        (" two\nlines ", "two lines"),
    ],
    ids=["as long as may be", "whole clauses", "cut", "one line"],
)
def test_a_reason_is_short(why: str, shown: str) -> None:
    made = offer()
    made.set_sick({UUIDS[0]: why})
    assert reasons(made)[0] == shown


ONE = (UUIDS[0], True)


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """A publisher of one card; its writes are counted."""
    monkeypatch.setattr(advertised, "_LOOK_S", 0)
    cluster = Embedded()
    cluster.create(Kind.NODES, node_json(NODE))
    cluster.annotate = Mock(wraps=cluster.annotate)  # type: ignore[method-assign]
    return Publisher(OwnNode(cluster, NODE), offer(found_card(0)))


def published(publisher: Publisher) -> list[tuple[str, bool]]:
    """Publish, with the node as it is now; return what it has then."""
    for step in (publisher.publish, lambda: None):
        made = publisher.node.cluster.get(Kind.NODES, "", NODE)
        publisher.node.replace(iter([page(made)]))
        step()
    cards = decode_cards(publisher.node.annotation(names.CARDS) or "")
    return [(card.uuid, card.healthy) for card in cards]


def writes(publisher: Publisher) -> int:
    return int(publisher.node.cluster.annotate.call_count)  # type: ignore[attr-defined]


def test_written_once(publisher: Publisher) -> None:
    assert published(publisher) == [ONE]
    publisher.offer.set_cordoned([UUIDS[0]])
    assert published(publisher) == [ONE]
    publisher.offer.set_sick({UUIDS[0]: "lost"})
    assert published(publisher) == [(UUIDS[0], False)]
    publisher.offer.set_sick({UUIDS[0]: "XID 79"})
    publisher.offer.set_found([found_card(0), found_card(1)])
    # A restart of the plugin wakes no pod.
    for each in (publisher, replace(publisher, _written=None)):
        assert published(each) == [(UUIDS[0], False), (UUIDS[1], True)]
    assert writes(publisher) == 3


def test_what_the_extender_refuses_is_not_written(
    publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once; fewer cards are published again."""
    assert published(publisher) == [ONE]
    many = [replace(found_card(), uuid=CardUUID(f"GPU-x{i}")) for i in range(65)]
    publisher.offer.set_found([found_card(), *many[1:]])
    for _ in range(2):
        assert published(publisher) == [ONE]
        assert not publisher.is_published()
    assert caplog.messages.count("cards not published, no pod gets one here") == 1
    (said,) = (r for r in caplog.records if hasattr(r, "because"))
    assert said.because.startswith("the node has 65 cards; a node may share 64")


@pytest.mark.parametrize("text", [None, "", '{"v":1,"cards":[]}', "junk"])
def test_who_changes_it_is_overruled(
    publisher: Publisher, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    published(publisher)
    publisher.node.cluster.annotate(Kind.NODES, "", NODE, {names.CARDS: text})
    assert published(publisher) == [ONE]
    removed = "the annotation of the cards was removed; writing it again"
    assert (removed in caplog.messages) is (text is None)


def tiers(publisher: Publisher) -> tuple[str, str | None]:
    """The node's tier, by the annotation and by the label."""
    published(publisher)
    text = publisher.node.annotation(names.CARDS) or ""
    return decode_isolation(text), publisher.node.label(names.ISOLATION)


def test_the_tier_is_written_with_the_cards(publisher: Publisher) -> None:
    """In one write: annotation and label."""
    assert tiers(publisher) == ("", None)
    publisher.offer.set_isolation("none")
    publisher.offer.set_found([found_card(0), found_card(1)])
    assert tiers(publisher) == ("none", "none")
    publisher.offer.set_isolation("driver")
    assert tiers(publisher) == ("driver", "driver")
    assert tiers(replace(publisher, _written=None)) == ("driver", "driver")
    assert writes(publisher) == 3


@pytest.mark.parametrize("label", [None, "none"], ids=["removed", "changed"])
def test_who_changes_the_label_is_overruled(
    publisher: Publisher, label: str | None
) -> None:
    publisher.offer.set_isolation("driver")
    tiers(publisher)
    publisher.node.cluster.annotate(
        Kind.NODES, "", NODE, {}, labels={names.ISOLATION: label}
    )
    assert tiers(publisher) == ("driver", "driver")


def test_an_older_guard_refuses_the_label_only(
    publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    """The cards are offered all the same, and the label is not tried each second."""
    real = cast("Mock", publisher.node.cluster.annotate)

    def guarded(*_: object, labels: object = None) -> object:
        if labels:
            raise Forbidden("annotations only")
        return DEFAULT

    real.side_effect = guarded
    publisher.offer.set_isolation("driver")
    assert tiers(publisher) == tiers(publisher) == ("driver", None)
    assert writes(publisher) == 2
    assert "the label was refused" in caplog.text


def test_the_node_may_come_later_and_again(publisher: Publisher) -> None:
    publisher.publish()
    assert writes(publisher) == 0
    assert published(publisher) == [ONE]
    cluster = cast("Embedded", publisher.node.cluster)
    cluster.delete(Kind.NODES, "", NODE)
    cluster.create(Kind.NODES, node_json(NODE))
    assert published(publisher) == [ONE]


def test_errors_are_retried(
    publisher: Publisher,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published(publisher)
    publisher.offer.set_sick({UUIDS[0]: "lost"})
    stop, cluster = Event(), cast("Mock", publisher.node.cluster)
    cluster.annotate.side_effect = [
        Unavailable("no answer"),
        Forbidden("not yours"),
        DEFAULT,
    ]
    monkeypatch.setattr(advertised, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(publisher.offer, "wait_for_change", lambda *_: stop.set())
    publisher.run(stop)
    told = [line for line in caplog.records if line.message == "cards not published"]
    facts = [(line.because, line.wait_s) for line in told]  # type: ignore[attr-defined]
    assert facts == [("no answer", 0.01), ("not yours", 0.02)]
    assert writes(publisher) == 4


def test_what_operators_wrote() -> None:
    node = OwnNode(Embedded(), NODE)
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
