"""The book of use: what is remembered, and worked out anew only where it must be."""

from dataclasses import replace

from deviceplugin.cards.source import FoundCard
from deviceplugin.exporter.run import Tenants
from deviceplugin.exporter.snapshot import Snapshot
from deviceplugin.exporter.snapshot_store import UsageBook
from deviceplugin.telemetry.fields import FB_USED
from gpushare.kube.cluster import Json
from tests.builders import event, page, pod_json
from tests.deviceplugin.house import NODE, found_card
from tests.deviceplugin.scene import (
    AT,
    BLIND,
    A,
    held,
    of,
    owner,
    processes,
    snapshot,
    use,
    with_ids,
)


class Moving:
    """A snapshot that changes as a test tells it."""

    def __init__(self, *cards: FoundCard) -> None:
        self.now = snapshot(*(cards or (found_card(0),)), round_=processes({}))

    def read(self) -> Snapshot:
        return self.now

    def work(self, sm: float | None, at: float) -> None:
        running = [] if sm == 0 else [use(1, 10, sm)]
        round_ = processes({A: running}, {1: owner("a")}, at=at)
        self.now = snapshot(found_card(0), round_=round_)


def book_of(moving: Moving, *pods: Json) -> tuple[UsageBook, Tenants]:
    tenants = Tenants()
    tenants.replace(iter([page(*pods)]))
    return UsageBook(moving.read, tenants.current), tenants


def test_the_last_work_is_remembered() -> None:
    """Since it was first seen; moved on by work alone, not by a silent driver."""
    moving = Moving()
    book, _ = book_of(moving, held("a"))
    seen = []
    for sm, after_s in ((0, 0), (0, 5), (30, 10), (None, 15), (0, 20)):
        moving.work(sm, AT + after_s)
        last = of(book.now(), "a").last_busy
        assert last is not None
        seen.append(last - AT)
    assert seen == [0, 0, 10, 10, 10]


def test_a_pod_of_the_same_name_begins_anew() -> None:
    """It is another pod by its UID."""
    moving = Moving()
    moving.work(30, AT)
    book, tenants = book_of(moving, held("a"))
    assert of(book.now(), "a").last_busy == AT
    moving.work(0, AT + 60)
    new = pod_json("a", uid="second", units=8, node=NODE)
    old = held("a")
    notes = old["metadata"]["annotations"]
    new["metadata"]["annotations"] = {
        key: text.replace("uid-a", "second") for key, text in notes.items()
    }
    tenants.replace(iter([page(with_ids(new))]))
    assert of(book.now(), "a").last_busy == AT + 60


def test_nothing_is_worked_out_twice() -> None:
    """The same objects give the same usage; a new round or pod another."""
    moving = Moving()
    book, tenants = book_of(moving, held("a"))
    first = book.now()
    assert book.now() is first
    moving.work(30, AT + 5)
    second = book.now()
    assert second is not first
    tenants.apply(event("ADDED", held("b")))
    third = book.now()
    assert third is not second
    assert [one.pod for one in third.containers] == ["a", "b"]


def test_what_else_is_worked_out_anew() -> None:
    """Memory in use, and whether owners can be told, change what a card comes to."""
    moving = Moving()
    book, _ = book_of(moving, held("a"))
    assert book.now().cards[A].unattributed_mib is None
    memory = snapshot(values={A: {FB_USED: 9.0}}).rounds
    moving.now = replace(moving.now, rounds=memory)
    assert book.now().cards[A].unattributed_mib == 9
    moving.now = replace(moving.now, troubles=BLIND)
    assert book.now().cards[A].unattributed_mib is None


def test_a_book_without_pods() -> None:
    """Cards are told of."""
    book = UsageBook(Moving().read)
    assert (book.has_pods, book.tenancy()) == (False, None)
    assert book.now().cards.keys() == {A}
