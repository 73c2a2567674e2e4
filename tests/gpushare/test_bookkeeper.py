"""What the API server says, written into the ledger."""

import logging
from collections.abc import Iterator

import pytest

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, Placement, PodUID
from gpushare.domain.policies import Choice
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.bookkeeper import NodeBook, PodBook
from gpushare.kube.cluster import Json, Page
from gpushare.kube.errors import Unavailable
from tests.builders import (
    AT,
    FIRST_FIT,
    bound_json,
    card,
    cards,
    event,
    ledger_of,
    left,
    node_json,
    page,
    placement,
    pod_json,
    ref,
    request,
)

N = NodeName("n")


class Office:
    """A ledger of one node of two cards, its book of pods, and a clock."""

    def __init__(self) -> None:
        self.ledger = ledger_of(*cards(29, 29))
        self.now = 0.0
        self.gone: list[PodUID] = []
        self.pods = PodBook(
            self.ledger, Choice(), on_gone=self.gone.append, clock=lambda: self.now
        )

    def hear(self, *pods: Json) -> None:
        for pod in pods:
            self.pods.apply(event("MODIFIED", pod))

    def relist(self, *pods: Json) -> None:
        self.pods.replace(iter([page(*pods[:1], token="t"), page(*pods[1:])]))

    def free(self, index: int = 0) -> int:
        return left(self.ledger.node(N), index).units

    def overdue_at(self, *times: float) -> list[str]:
        for self.now in times:
            late = self.pods.overdue()
        return [placement.pod.name for placement, _ in late]


@pytest.fixture
def office() -> Office:
    return Office()


def half_a_list(*items: Json) -> Iterator[Page]:
    yield page(*items, token="more")
    raise Unavailable("gone dark")


def test_a_bound_pod_is_charged(office: Office) -> None:
    """By its placement, on its card."""
    office.hear(bound_json(placement("a", 1, 20)))
    assert (office.free(0), office.free(1)) == (29, 9)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminal_phase_frees(office: Office, phase: str) -> None:
    """Its containers have ended for good."""
    office.hear(bound_json(placement("a", 0, 20)))
    office.hear(bound_json(placement("a", 0, 20), phase=phase))
    assert office.free() == 29
    assert office.pods.records() == ()


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_any_other_phase_is_charged(office: Office, phase: str) -> None:
    """Also one that the node has not been heard of."""
    office.hear(bound_json(placement("a", 0, 20), phase=phase))
    assert office.free() == 9


def test_a_deletion_timestamp_frees_nothing(office: Office) -> None:
    """The containers still run; only the object's end counts."""
    office.hear(bound_json(placement("a", 0, 20), terminating=True))
    assert office.free() == 9
    office.pods.apply(event("DELETED", bound_json(placement("a", 0, 20))))
    assert office.free() == 29


def test_deleted_twice_is_deleted_once(office: Office) -> None:
    """A watch may repeat itself."""
    for _ in range(2):
        office.pods.apply(event("DELETED", bound_json(placement("a", 0, 20))))
    office.hear(bound_json(placement("a", 0, 20)))
    for _ in range(2):
        office.pods.apply(event("DELETED", bound_json(placement("a", 0, 20))))
    assert office.free() == 29
    assert office.gone == [ref("a").uid]


@pytest.mark.parametrize("node", ["", "n"], ids=["not yet bound", "bound"])
def test_an_event_without_our_annotation_erases_no_reservation(
    office: Office, node: str
) -> None:
    """The watch may be behind our own bind, or somebody took the annotation off."""
    office.ledger.reserve(request("a", 20), N, FIRST_FIT)
    office.hear(pod_json("a", units=20, node=node))
    assert office.free() == 9


def test_an_annotation_taken_off_erases_no_placement(office: Office) -> None:
    """The pod still uses the card."""
    office.hear(bound_json(placement("a", 0, 20)))
    office.hear(pod_json("a", units=20, node="n", phase="Running"))
    assert office.free() == 9


def test_the_actual_card_is_charged(office: Office) -> None:
    """And the planned one is free again."""
    office.hear(bound_json(placement("a", 0, 20)))
    actual = bound_json(placement("a", 1, 20), key=names.ACTUAL)
    planned = encode_placement(placement("a", 0, 20), AT)
    actual["metadata"]["annotations"][names.PLACEMENT] = planned
    office.hear(actual)
    assert (office.free(0), office.free(1)) == (29, 9)


def test_a_relist_drops_what_is_gone(office: Office) -> None:
    """And keeps what is there, on whichever page."""
    held = [bound_json(placement(name, 0, 5)) for name in "abc"]
    office.hear(*held)
    office.relist(held[0], held[2])
    assert office.free() == 19
    assert office.gone == [ref("b").uid]


def test_a_list_that_fails_drops_nothing(office: Office) -> None:
    """What its missing pages would have held is not gone."""
    office.hear(bound_json(placement("a", 0, 5)), bound_json(placement("b", 0, 5)))
    with pytest.raises(Unavailable):
        office.pods.replace(half_a_list(bound_json(placement("b", 0, 5))))
    assert office.free() == 19
    assert office.gone == []


def test_a_pod_that_turns_up_after_half_a_list_can_still_go(office: Office) -> None:
    """The next whole list is compared with all that was heard."""
    with pytest.raises(Unavailable):
        office.pods.replace(half_a_list(bound_json(placement("a", 0, 5))))
    office.relist()
    assert office.free() == 29


def test_a_pod_bound_without_a_placement_is_counted(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """The sign that kube-scheduler does not ask us any more."""
    office.hear(pod_json("a", units=4, node="n"), pod_json("b", node="n"))
    office.hear(pod_json("z", units=0, node="n"), pod_json("p", units=4))
    assert [one.pod.name for one in office.pods.without_placement()] == ["a"]
    assert [r.message for r in caplog.records] == ["pod bound without a placement"]
    office.pods.apply(event("DELETED", pod_json("a", units=4, node="n")))
    assert office.pods.without_placement() == ()


def test_a_forged_placement_is_none(office: Office) -> None:
    """A UID of another pod: not charged, but counted as bound without us."""
    forged = pod_json(
        "a",
        units=4,
        node="n",
        annotations={names.PLACEMENT: encode_placement(placement("other"), AT)},
    )
    office.hear(forged)
    assert office.free() == 29
    assert len(office.pods.without_placement()) == 1


def test_a_pod_made_again_under_its_name_is_another(office: Office) -> None:
    """The old one's end does not hide the new one."""
    old = pod_json("a", uid="uid-1", units=4)
    office.hear(old, pod_json("a", uid="uid-2", units=4))
    office.pods.apply(event("DELETED", old))
    found = office.pods.find("default", "a")
    assert found is not None
    assert found.pod.uid == "uid-2"


def test_only_pods_that_ask_for_cards_are_kept(office: Office) -> None:
    """There may be 100,000 others."""
    office.hear(pod_json("plain"), pod_json("gpu", units=4), pod_json("z", units=0))
    assert [one.pod.name for one in office.pods.records()] == ["gpu", "z"]
    assert office.pods.find("default", "plain") is None


def test_a_pod_that_is_not_understood_is_left_out_and_logged(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on."""
    broken = pod_json("a", units=4, node="n")
    broken["metadata"]["labels"] = []
    office.hear(broken, bound_json(placement("b", 0, 5)))
    assert office.free() == 24
    assert [r.message for r in caplog.records] == ["pod not understood"]
    assert "metadata.labels" in vars(caplog.records[0])["because"]


def test_a_placement_that_is_not_understood_is_counted_and_logged(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """Its pod counts as bound without us."""
    broken = pod_json("a", units=4, node="n", annotations={names.PLACEMENT: "{"})
    office.hear(broken)
    assert [pod.pod.name for pod in office.pods.without_placement()] == ["a"]
    assert [r.message for r in caplog.records] == [
        "placement not understood",
        "pod bound without a placement",
    ]
    assert names.PLACEMENT in vars(caplog.records[0])["because"]


def test_a_broken_annotation_erases_no_placement(office: Office) -> None:
    """Nor does its pod's end leave the card charged."""
    office.hear(bound_json(placement("a", 0, 20)))
    broken = pod_json("a", units=20, node="n", annotations={names.ACTUAL: "{"})
    office.hear(broken)
    assert office.free() == 9
    broken["status"]["phase"] = "Succeeded"
    office.pods.apply(event("DELETED", broken))
    assert office.free() == 29


def test_a_reservation_is_overdue_after_thirty_seconds(office: Office) -> None:
    """Counted from when it was first noticed, not a moment before; it stays held."""
    office.ledger.reserve(request("a", 20), N, FIRST_FIT)
    assert office.overdue_at(0, 10, 30) == []
    assert office.overdue_at(30.1) == ["a"]
    assert office.free() == 9


def test_what_was_seen_back_is_never_overdue(office: Office) -> None:
    """It is a placement then, for as long as the pod lives."""
    held = office.ledger.reserve(request("a", 20), N, FIRST_FIT)
    assert isinstance(held, Placement)
    office.overdue_at(0)
    office.hear(bound_json(held))
    assert office.overdue_at(31, 1000) == []
    assert office.free() == 9


@pytest.mark.parametrize("cancelled", [True, False], ids=["failed", "unanswered"])
def test_a_reservation_made_anew_is_young_again(
    office: Office, *, cancelled: bool
) -> None:
    """A bind that was tried again has its own 30 seconds."""
    office.ledger.reserve(request("a", 20), N, FIRST_FIT)
    office.overdue_at(0, 25)
    if cancelled:
        office.ledger.cancel(ref("a").uid)
    office.ledger.reserve(request("a", 20), N, FIRST_FIT)
    assert office.overdue_at(31) == []


def test_a_placement_read_by_others_is_taken_unless_the_pod_has_ended(
    office: Office,
) -> None:
    """It would stay on the books for ever."""
    assert office.pods.settle(placement("a", 0, 5))
    assert office.free() == 24
    office.pods.apply(event("DELETED", bound_json(placement("a", 0, 5))))
    assert not office.pods.settle(placement("a", 0, 5))
    assert office.free() == 29


def test_a_holder_that_no_list_names_has_gone(office: Office) -> None:
    """Even one that was never on record."""
    office.ledger.reserve(request("a", 20), N, FIRST_FIT)
    office.pods.replace(iter([page()]))
    assert office.free() == 29


def test_a_pod_bound_without_us_is_logged_when_it_happens(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    """First seen Pending, as most pods are."""
    office.hear(pod_json("a", units=4))
    assert caplog.records == []
    office.hear(pod_json("a", units=4, node="n"))
    assert [r.message for r in caplog.records] == ["pod bound without a placement"]


def test_a_nodes_cards_are_written_down() -> None:
    """New ones, changed ones, and those of nodes that share none."""
    ledger = Ledger()
    book = NodeBook(ledger)
    book.replace(iter([page(node_json("n", card()), token="t"), page(node_json("m"))]))
    assert left(ledger.node(N)).units == 29
    book.apply(event("MODIFIED", node_json("n", card(units=16))))
    assert left(ledger.node(N)).units == 16
    assert book.knows(NodeName("m"))
    assert not book.knows(NodeName("x"))


def test_a_node_that_is_gone_is_forgotten() -> None:
    """By a watch, or by a list that names it no more."""
    ledger = Ledger()
    book = NodeBook(ledger)
    listed = [node_json(name, card()) for name in "abc"]
    book.replace(iter([page(*listed)]))
    book.apply(event("DELETED", listed[0]))
    book.replace(iter([page(listed[2])]))
    assert [one.name for one in ledger.nodes()] == ["c"]
    assert [book.knows(NodeName(name)) for name in "abc"] == [False, False, True]


def test_a_list_of_nodes_that_fails_drops_none() -> None:
    """Nodes are known as before."""
    ledger = Ledger()
    book = NodeBook(ledger)
    book.replace(iter([page(node_json("a", card()), node_json("b", card()))]))
    with pytest.raises(Unavailable):
        book.replace(half_a_list(node_json("b", card())))
    assert {one.name for one in ledger.nodes()} == {"a", "b"}
    assert book.knows(NodeName("a"))


def test_a_node_that_turns_up_after_half_a_list_can_still_go() -> None:
    """The next whole list is compared with all that was heard."""
    ledger = Ledger()
    book = NodeBook(ledger)
    with pytest.raises(Unavailable):
        book.replace(half_a_list(node_json("a", card())))
    book.replace(iter([page(node_json("b", card()))]))
    assert [one.name for one in ledger.nodes()] == ["b"]


def test_a_broken_node_shares_no_cards_until_it_is_mended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log says once which and why; the other nodes go on."""
    ledger = Ledger()
    book = NodeBook(ledger)
    twice = node_json("n", card(0), card(1, uuid="GPU-0"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            book.replace(iter([page(twice, node_json("m", card()))]))
    assert [r.message for r in caplog.records] == ["node annotation not understood"]
    assert vars(caplog.records[0])["node"] == "n"
    assert book.broken() == {"n": "baidu.com/vcuda-cards.cards: has GPU-0 twice"}
    page_of_n = ledger.node(N)
    assert page_of_n is not None
    assert page_of_n.cards == ()
    assert left(ledger.node(NodeName("m"))).units == 29
    book.apply(event("MODIFIED", node_json("n", card())))
    assert book.broken() == {}
    assert left(ledger.node(N)).units == 29


def test_a_broken_node_that_is_gone_is_no_worry_any_more() -> None:
    """Nor does it stay on the list of the broken."""
    book = NodeBook(Ledger())
    broken = node_json("n", annotations={names.CARDS: "{"})
    book.apply(event("ADDED", broken))
    assert set(book.broken()) == {"n"}
    book.apply(event("DELETED", broken))
    assert book.broken() == {}
