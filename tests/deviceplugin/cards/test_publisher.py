"""The node's annotation, and what operators write beside it."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from deviceplugin.cards.advertised import Offer, OwnNode, Publisher
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.annotations import decode_cards
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import Forbidden, Unavailable
from gpushare.kube.reflector import Reflector
from tests.builders import event, node_json, page
from tests.deviceplugin.house import NODE, UUIDS, found_card
from tests.testbed.waiting import wait_until


class Counting(Embedded):
    """Counts the writes, tells of each, and fails as often as it is told to."""

    def __init__(self) -> None:
        super().__init__(bookmark_every_s=0.05)
        self.writes = 0
        self.tell: Callable[[], None] = lambda: None
        self.failures: list[Exception] = []

    def annotate(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
    ) -> None:
        self.writes += 1
        if self.failures:
            raise self.failures.pop(0)
        super().annotate(kind, namespace, name, annotations)
        self.tell()


class Desk:
    """A publisher over a cluster of one node, watched as the plugin watches it."""

    def __init__(self) -> None:
        self.cluster = Counting()
        self.node = OwnNode(NODE)
        self.offer = Offer(0)
        self.publisher = Publisher(
            self.cluster, NODE, self.node, self.offer, look_s=0.05
        )

    def there(self) -> list[tuple[str, bool]]:
        made = self.cluster.get(Kind.NODES, "", NODE)
        text = (
            made["metadata"]
            .get("annotations", {})
            .get(names.CARDS, '{"v":1,"cards":[]}')
        )
        return [(card.uuid, card.healthy) for card in decode_cards(text)]

    def make_node(self) -> None:
        self.cluster.create(Kind.NODES, node_json(NODE))

    def hear(self) -> None:
        """Let the publisher know the node as it is now."""
        self.node.replace(iter([page(self.cluster.get(Kind.NODES, "", NODE))]))

    def wait_there(self, *cards: tuple[str, bool]) -> None:
        wait_until(self.there, "annotation", accept=lambda seen: seen == list(cards))


@contextmanager
def running(desk: Desk, *, at_once: bool = False) -> Iterator[Desk]:
    """With a real watch, or with one that tells at once.

    What a late one has not told of is written again: then nobody can count writes.
    """
    stop = Event()
    loops = [desk.publisher.run]
    if at_once:
        desk.cluster.tell = desk.hear
        desk.hear()
    else:
        loops.append(Reflector(desk.cluster, Kind.NODES, desk.node).run)
    threads = [Thread(target=one, args=(stop,)) for one in loops]
    for thread in threads:
        thread.start()
    try:
        yield desk
    finally:
        stop.set()
        desk.offer.set_cordoned(["wake"])  # type: ignore[list-item]
        for thread in threads:
            thread.join()


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    made.make_node()
    made.offer.set_found([found_card(0)])
    return made


ONE = (UUIDS[0], True)


def test_written_once(desk: Desk) -> None:
    """And again only for a change; a cordon is none of its business."""
    with running(desk, at_once=True):
        desk.wait_there(ONE)
        desk.offer.set_cordoned([UUIDS[0]])
        desk.offer.set_sick({UUIDS[0]: "lost"})
        desk.wait_there((UUIDS[0], False))
        desk.offer.set_sick({UUIDS[0]: "XID 79"})
        desk.offer.set_found([found_card(0), found_card(1)])
        desk.wait_there((UUIDS[0], False), (UUIDS[1], True))
    assert desk.cluster.writes == 3


def test_what_is_there_already_is_not_written(desk: Desk) -> None:
    """A restart of the plugin wakes no pod."""
    with running(desk, at_once=True):
        desk.wait_there(ONE)
    again = Desk()
    again.cluster, again.offer = desk.cluster, desk.offer
    again.hear()
    Publisher(again.cluster, NODE, again.node, again.offer).publish()
    assert desk.cluster.writes == 1


@pytest.mark.parametrize("text", [None, "", '{"v":1,"cards":[]}', "junk"])
def test_who_changes_it_is_overruled(
    desk: Desk, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """By hand removed or changed: written again, and a removal is told."""
    with running(desk, at_once=True):
        desk.wait_there(ONE)
        Embedded.annotate(desk.cluster, Kind.NODES, "", NODE, {names.CARDS: text})
        desk.hear()
        wait_until(lambda: desk.cluster.writes == 2, "a second write")
        desk.wait_there(ONE)
    removed = "the annotation of the cards was removed; writing it again"
    assert (removed in caplog.messages) is (text is None)


def test_the_node_may_come_later(desk: Desk) -> None:
    """kubelet registers it; until then nothing is written."""
    late = Desk()
    late.offer.set_found([found_card(0)])
    late.publisher.publish()
    with running(late):
        assert late.cluster.writes == 0
        late.make_node()
        late.wait_there(ONE)


def test_a_node_made_anew_is_written_on(desk: Desk) -> None:
    """Deleted and registered again: it has no annotation."""
    with running(desk):
        desk.wait_there(ONE)
        desk.cluster.delete(Kind.NODES, "", NODE)
        wait_until(lambda: not desk.node.exists(), "its end")
        desk.make_node()
        desk.wait_there(ONE)


def test_errors_are_retried(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Each is told with the words of the API server, and the wait grows."""
    caplog.set_level(logging.INFO)
    desk.cluster.failures = [Unavailable("no answer"), Forbidden("not yours")]
    with running(desk):
        desk.wait_there(ONE)
    told = [one for one in caplog.records if one.message == "cards not published"]
    facts = [(one.because, one.wait_s) for one in told]  # type: ignore[attr-defined]
    assert facts == [("no answer", 0.5), ("not yours", 1.0)]
    assert "cards published" in caplog.messages


def test_what_operators_wrote() -> None:
    """UUIDs with commas and blanks; absent, empty and of no text count as none."""
    node = OwnNode(NODE)
    assert node.uuids(names.CORDON) == frozenset()
    assert node.status() == {}
    made = node_json(NODE, annotations={names.CORDON: " A ,B,, "})
    node.apply(event("ADDED", made | {"status": {"nodeInfo": {}}}))
    assert node.uuids(names.CORDON) == {"A", "B"}
    assert node.status() == {"nodeInfo": {}}
    node.apply(event("DELETED", made))
    assert not node.exists()
    assert node.annotation(names.CORDON) is None


def test_an_empty_list_of_nodes_is_no_node() -> None:
    """Where one was, it has gone."""
    node = OwnNode(NODE)
    node.replace(iter([page(node_json(NODE))]))
    assert node.exists()
    node.replace(iter([page()]))
    assert not node.exists()
