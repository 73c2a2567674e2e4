"""What a bound pod is charged, as far as it can be believed."""

from collections.abc import Iterable
from itertools import permutations

import pytest

from gpushare.cache.nodes import NodeBook
from gpushare.cache.pods import PodBook
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Card, NodeName, Placement
from gpushare.domain.policies import Choice
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json
from tests.builders import (
    AT,
    FIRST_FIT,
    card,
    cards,
    event,
    node_json,
    placement,
    pod_json,
    ref,
    request,
)

N = NodeName("n")
TWO = node_json("n", *cards(29, 29))
PLAN = placement("a", 0, 20)
ACTUAL = placement("a", 1, 20)
IMPOSSIBLE = placement("a", "GPU-9", 20)


class Office:
    """A ledger with its two books."""

    def __init__(self, *things: Json, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self.pods = PodBook(self.ledger, Choice())
        self.nodes = NodeBook(self.ledger, set_cards=self.pods.set_cards)
        self.hear(*things)

    def hear(self, *things: Json) -> None:
        for thing in things:
            book = self.nodes if thing["kind"] == "Node" else self.pods
            book.apply(event("MODIFIED", thing))

    @property
    def free(self) -> list[int]:
        page = self.ledger.node(N)
        assert page is not None
        return [room.units for room in page.free.values()]


class Hasty(Ledger):
    """A ledger that is asked for room as soon as a node's cards are written down."""

    def set_cards(self, name: NodeName, cards: Iterable[Card]) -> None:
        super().set_cards(name, cards)
        self.reserve(request("hasty", 20), name, FIRST_FIT)


def pod(plan: Placement | None = None, actual: Placement | None = None) -> Json:
    both = ((names.PLACEMENT, plan), (names.ACTUAL, actual))
    notes = {key: encode_placement(one, AT) for key, one in both if one is not None}
    return pod_json("a", units=20, node="n", annotations=notes)


def test_no_bind_comes_between_the_cards_and_what_is_held_of_them() -> None:
    """One that saw the plan would find room where the pod is in truth."""
    office = Office(pod(PLAN, ACTUAL), TWO, ledger=Hasty())
    assert office.free == [9, 9]


@pytest.mark.parametrize(
    ("plan", "actual", "free"),
    [
        (None, None, [9, 9]),
        (PLAN, None, [9, 29]),
        (PLAN, ACTUAL, [29, 9]),
        (None, ACTUAL, [29, 9]),
        (PLAN, IMPOSSIBLE, [9, 29]),
        (None, IMPOSSIBLE, [9, 9]),
        (None, placement("a", 0, 20, 200), [9, 9]),
    ],
    ids=[
        "nothing",
        "plan",
        "actual wins",
        "actual alone",
        "impossible beside a plan",
        "impossible alone",
        "more cores than a card has",
    ],
)
def test_the_most_believable_placement_is_charged(
    plan: Placement | None, actual: Placement | None, free: list[int]
) -> None:
    """In any order of pods and nodes, and however often they are told."""
    told = [pod(plan, actual), TWO, TWO]
    for things in permutations(told):
        office = Office(*things)
        assert office.free == free
        office.hear(*things)
        assert office.free == free


def test_the_charge_moves_when_the_actual_card_is_told() -> None:
    """By a word of the watch, as the device plugin writes it."""
    office = Office(TWO, pod(PLAN))
    assert office.free == [9, 29]
    office.hear(pod(PLAN, ACTUAL))
    assert office.free == [29, 9]


def test_an_impossible_card_frees_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Users may write into their own pods; what was wrong is told once."""
    office = Office(TWO, pod(PLAN))
    for _ in range(3):
        office.hear(pod(PLAN, IMPOSSIBLE), TWO)
        assert office.free == [9, 29]
    office.hear(pod(None, IMPOSSIBLE))
    assert office.free == [9, 29]
    assert [r.message for r in caplog.records] == [
        "actual placement is not possible there"
    ]


def test_a_card_that_comes_later_is_believed_then() -> None:
    """The device plugin writes a node's cards and a pod's card one after the other."""
    office = Office(TWO, pod(None, IMPOSSIBLE))
    assert office.free == [9, 9]
    office.hear(node_json("n", *cards(29, 29), card(9)))
    assert office.free == [29, 29, 9]


def test_a_card_that_goes_takes_its_pod_with_it() -> None:
    """The pod holds nothing of the cards that are left, whatever was planned."""
    office = Office(TWO, pod(PLAN, ACTUAL))
    office.hear(node_json("n", card(0)))
    assert office.free == [29]
    office.hear(TWO)
    assert office.free == [29, 9]


def test_a_broken_annotation_moves_no_charge() -> None:
    """When it is mended all is as before."""
    office = Office(TWO, pod(PLAN, ACTUAL))
    broken = node_json("n", annotations={names.CARDS: "{"})
    office.hear(broken, pod(PLAN, ACTUAL), TWO)
    assert office.free == [29, 9]


def test_a_pod_that_ends_is_not_charged_again() -> None:
    """Also when its node is told anew."""
    office = Office(TWO, pod(None, ACTUAL))
    office.pods.apply(event("DELETED", pod(None, ACTUAL)))
    office.hear(TWO)
    assert office.free == [29, 29]
    assert office.ledger.placement(ref("a").uid) is None


def test_a_cordoned_card_is_charged_as_before() -> None:
    """For what runs there, and for what may."""
    office = Office(TWO, pod(PLAN))
    closed = {names.CORDON: "GPU-0"}
    office.hear(node_json("n", *cards(29, 29), annotations=closed))
    assert office.free == [29]
    office.hear(TWO)
    assert office.free == [9, 29]
