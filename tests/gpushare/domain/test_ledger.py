"""The book of all nodes."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from threading import Thread

import pytest

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Amount, Card, NodeName, Placement, Reason, Refusal
from gpushare.domain.policies import Policy
from tests.builders import (
    FIRST_FIT,
    card,
    cards,
    claim,
    ledger_of,
    left,
    placement,
    ref,
    request,
)

N, M = NodeName("n"), NodeName("m")


def changes(ledger: Ledger, since: int) -> set[NodeName]:
    _, changed = ledger.changed_since(since)
    assert changed is not None
    return set(changed)


def now(ledger: Ledger) -> int:
    return ledger.changed_since(-1)[0]


def test_reserve_decides_and_writes_down() -> None:
    """A refused one leaves nothing, and no word in the journal."""
    ledger = ledger_of()
    position = now(ledger)
    assert ledger.reserve(request("a", 30), N, FIRST_FIT) == Refusal(Reason.MEMORY)
    assert ledger.placement(ref("a").uid) is None
    assert not ledger.reservations()
    assert changes(ledger, position) == set()
    decision = ledger.reserve(request("a", 20), N, FIRST_FIT)
    assert decision == placement("a", 0, 20)
    assert ledger.placement(ref("a").uid) == decision
    assert left(ledger.node(N)) == Amount(100, 9)
    assert ledger.reservations() == {ref("a").uid}


def test_the_same_again_changes_nothing() -> None:
    """A replayed bind, a heartbeat, a repeated watch event."""
    ledger = ledger_of(*cards(29, 29))
    kept = {ref("k").uid: placement("k")}
    steps = (
        lambda: ledger.reserve(request("a", 20), N, FIRST_FIT),
        lambda: ledger.record(placement("b", 1, 9)),
        lambda: ledger.record_unplaced(request("c", 1), N),
        lambda: ledger.set_cards(N, cards(29, 29)),
        lambda: ledger.nominate(N, kept),
    )
    for step in steps:
        first, position = step(), now(ledger)
        assert step() == first
        assert changes(ledger, position) == set()


def while_planned(step: Callable[[], object], times: int) -> Policy:
    """Return a policy that lets another thread change the ledger in its first plans."""
    left_over = [step] * times

    def key(_card: Card, _room: Amount) -> tuple[()]:
        if left_over:
            other = Thread(target=left_over.pop(), daemon=True)
            other.start()
            other.join(10)
            assert not other.is_alive(), "the plan holds the ledger's lock"
        return ()

    return replace(FIRST_FIT, card_key=key)


def test_others_go_on_while_a_pod_is_planned() -> None:
    """A plan takes milliseconds; what has come meanwhile is counted all the same."""
    ledger = ledger_of()
    other = placement("b", 0, 20)
    policy = while_planned(lambda: ledger.record(other), 1)
    assert ledger.reserve(request("a", 20), N, policy) == Refusal(Reason.MEMORY)
    assert ledger.reserve(request("a", 9), N, policy) == placement("a", 0, 9)
    assert left(ledger.node(N)) == Amount(100, 0)


def test_a_node_that_changes_all_the_time_is_refused() -> None:
    """Nothing is written down, and kube-scheduler tries the pod again."""
    ledger = ledger_of()
    sizes = itertools.count(30)
    policy = while_planned(lambda: ledger.set_cards(N, cards(next(sizes))), 100)
    assert ledger.reserve(request("a", 9), N, policy) == Refusal(Reason.CHANGING)
    assert not ledger.reservations()
    assert ledger.reserve(request("a", 9), N, policy) == placement("a", 0, 9)


def test_a_plan_for_a_pod_that_is_there_already_counts_for_nothing() -> None:
    """Its bind may have come meanwhile; on an unknown card it counts on every card."""
    for unplaced in (False, True):
        ledger = ledger_of(*cards(29, 29))
        if unplaced:
            ledger.record_unplaced(request("a", 20), N)
        else:
            ledger.reserve(request("a", 20), N, FIRST_FIT)
        placed = ledger.reserve(request("b", 20), N, FIRST_FIT, [placement("a", 1, 20)])
        assert placed == (Refusal(Reason.MEMORY) if unplaced else placement("b", 1, 20))


def test_what_is_asked_of_an_unknown_node_does_not_make_it_known() -> None:
    ledger = Ledger()
    assert ledger.reserve(request("a", 1), N, FIRST_FIT) == Refusal(Reason.NO_CARDS)
    ledger.nominate(N, {ref("a").uid: placement("a")})
    ledger.forget(N)
    assert (ledger.nodes(), ledger.nodes_with_nominations()) == ((), frozenset())
    assert ledger.changed_since(0) == (0, [])


def test_a_reservation_can_be_cancelled_until_it_is_confirmed() -> None:
    ledger = ledger_of()
    ledger.reserve(request("a", 20), N, FIRST_FIT)
    ledger.cancel(ref("a").uid)
    assert left(ledger.node(N)).units == 29
    placed = ledger.reserve(request("a", 20), N, FIRST_FIT)
    assert isinstance(placed, Placement)
    ledger.record(placed)
    assert not ledger.reservations()
    ledger.cancel(ref("a").uid)
    assert ledger.placement(ref("a").uid) == placed
    assert ledger.release(ref("a").uid) == placed
    assert ledger.release(ref("a").uid) is None
    assert left(ledger.node(N)) == Amount(100, 29)


def test_pods_may_outlast_their_node() -> None:
    """They stay charged, nothing is placed there, and the node may come back."""
    ledger = ledger_of()
    ledger.record(placement("a", 0, 20))
    ledger.nominate(N, {ref("kept").uid: placement("kept", 0, 2)})
    ledger.forget(N)
    assert ledger.nodes_with_nominations() == frozenset()
    assert ledger.reserve(request("b", 1), N, FIRST_FIT) == Refusal(Reason.NO_CARDS)
    ledger.set_cards(N, [card(units=16)])
    assert left(ledger.node(N)).units == -4


def test_a_node_that_is_gone_leaves_no_page() -> None:
    """Nor after its last pod, also of a node that never was: they come for years."""
    ledger = ledger_of()
    ledger.forget(N)
    assert ledger.nodes() == ()
    ledger.set_cards(N, [card()])
    ledger.record(placement("a", 0, 20))
    ledger.record_unplaced(request("b", 9), N)
    ledger.record(placement("c", 0, 20, node="typo"))
    ledger.forget(N)
    assert [page.name for page in ledger.nodes()] == ["n", "typo"]
    for name in "abc":
        ledger.release(ref(name).uid)
    assert ledger.nodes() == ()


def test_a_nomination_keeps_room_from_others() -> None:
    ledger = ledger_of()
    kept = placement("kept", 0, 20, priority=5)
    ledger.nominate(N, {kept.pod.uid: kept})
    assert ledger.nodes_with_nominations() == {N}
    equal = request("equal", 10, priority=5)
    assert ledger.reserve(equal, N, FIRST_FIT) == Refusal(Reason.MEMORY)
    own_placement = request("kept", 20, priority=5)
    assert isinstance(ledger.reserve(own_placement, N, FIRST_FIT), Placement)
    ledger.release(own_placement.pod.uid)
    higher = request("higher", 29, priority=6)
    assert isinstance(ledger.reserve(higher, N, FIRST_FIT), Placement)


def test_nominations_of_a_node_are_replaced_together() -> None:
    """They go with the node."""
    ledger = ledger_of()
    kept = placement("kept", 0, 20)
    for end in (lambda: ledger.nominate(N, {}), lambda: ledger.forget(N)):
        ledger.set_cards(N, [card()])
        ledger.nominate(N, {kept.pod.uid: kept})
        assert left(ledger.node(N)).units == 9
        end()
        assert ledger.nodes_with_nominations() == frozenset()
    ledger.set_cards(N, [card()])
    assert left(ledger.node(N)).units == 29


def test_the_journals_older_half_goes_when_it_gets_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpushare.domain.ledger._LONGEST_JOURNAL", 65)
    ledger = Ledger()
    for turn in range(70):
        ledger.set_cards(NodeName(f"n{turn % 7}"), [card(units=turn)])
        if turn == 59:
            recent = now(ledger)
    assert ledger.changed_since(0) == (70, None)
    position, changed = ledger.changed_since(recent)
    assert (position, len(changed or ())) == (70, 10)


def room(ledger: Ledger, name: NodeName = N) -> list[int]:
    page = ledger.node(name)
    return [free.units for free in page.free.values()]


def test_a_pod_on_no_card_is_charged_on_every_card_of_its_node() -> None:
    """Until a placement is recorded or it ends; each change is in the journal."""
    ledger = ledger_of(*cards(29, 16))
    for placed, rooms in ((True, [29, 7]), (False, [20, 7])):
        position = now(ledger)
        ledger.record_unplaced(request("a", 9), N)
        assert room(ledger) == [20, 7]
        assert ledger.holders() == {ref("a").uid}
        assert ledger.placement(ref("a").uid) is None
        if placed:
            ledger.record(placement("a", 1, 9))
        assert room(ledger) == rooms
        assert changes(ledger, position) == {N}
        ledger.release(ref("a").uid)
        assert room(ledger) == [29, 16]
        assert ledger.holders() == frozenset()


Step = Callable[[Ledger], object]
RESERVE: Step = lambda it: it.reserve(request("a", 9), N, FIRST_FIT)  # noqa: E731
CANCEL: Step = lambda it: it.cancel(ref("a").uid)  # noqa: E731
RELEASE: Step = lambda it: it.release(ref("a").uid)  # noqa: E731


def held(on: int | str, units: int, node: str = "n") -> Step:
    return lambda it: it.record(placement("a", on, units, node=node))


def lost(name: NodeName) -> Step:
    return lambda it: it.record_unplaced(request("a", 9), name)


@pytest.mark.parametrize(
    ("steps", "n", "m"),
    [
        pytest.param([held(0, 99)], [-70, 29], [16], id="above the card"),
        pytest.param([held("GPU-gone", 5)], [29, 29], [16], id="an unknown card"),
        pytest.param([held(0, 9), held(0, 9, "m")], [29, 29], [7], id="another node"),
        pytest.param([RESERVE, lost(N)], [20, 29], [16], id="held before unknown"),
        pytest.param([RESERVE, lost(N), RELEASE], [29, 29], [16], id="freed once"),
        pytest.param([RESERVE, lost(N), CANCEL], [20, 20], [16], id="bound meanwhile"),
        pytest.param(
            [held(0, 9), lost(N), CANCEL], [20, 29], [16], id="no reservation"
        ),
        pytest.param([RESERVE, lost(M)], [29, 29], [7], id="bound elsewhere"),
        pytest.param([RESERVE, lost(M), CANCEL], [29, 29], [7], id="it is for good"),
        pytest.param([lost(N), lost(M)], [29, 29], [7], id="unknown elsewhere"),
        pytest.param([held(0, 9), lost(M)], [29, 29], [7], id="no more where it was"),
        # A bind that has not yet heard where the pod is; the API server will refuse it.
        pytest.param([lost(M), RESERVE], [20, 29], [16], id="reserved elsewhere"),
        pytest.param([lost(M), RESERVE, CANCEL], [29, 29], [7], id="and given back"),
    ],
)
def test_where_a_pod_is_charged(steps: list[Step], n: list[int], m: list[int]) -> None:
    ledger = ledger_of(*cards(29, 29))
    ledger.set_cards(M, cards(16))
    for step in steps:
        step(ledger)
    assert (room(ledger), room(ledger, M)) == (n, m)
    if CANCEL in steps or m == [7]:
        assert not ledger.reservations()


def test_a_whole_card_that_grows_is_not_shared() -> None:
    """100 cores are all of the card, however many units it lists by now."""
    ledger = ledger_of(*cards(29, 29))
    ledger.reserve(request("whole", 29, 100), N, FIRST_FIT)
    ledger.reserve(request("share", 29, 99), N, FIRST_FIT)
    ledger.set_cards(N, cards(40, 40))
    assert room(ledger) == [0, 11]
    ledger.reserve(request("core", 0, 1), N, FIRST_FIT)
    assert ledger.reserve(request("a", 11), N, FIRST_FIT) == placement("a", 1, 11)
    assert ledger.reserve(request("b", 1), N, FIRST_FIT) == Refusal(Reason.MEMORY)


@pytest.mark.parametrize("first", ["parts", "stranger"])
def test_parts_of_100_cores_are_charged_their_own_memory(first: str) -> None:
    """A pod beside them has the rest of the card, whoever came first."""
    ledger = ledger_of(card(0, 16))
    parts = [claim(4, 60, container="x"), claim(4, 40, container="y")]
    both = [request("parts", claims=parts), request("stranger", 8)]
    for pending in both if first == "parts" else reversed(both):
        assert isinstance(ledger.reserve(pending, N, FIRST_FIT), Placement)
    assert left(ledger.node(N)) == Amount(0, 0)


def test_a_pod_on_no_card_may_come_before_its_node() -> None:
    ledger = Ledger()
    ledger.record_unplaced(request("a", 9), N)
    ledger.set_cards(N, cards(29, 16))
    assert room(ledger) == [20, 7]
    ledger.forget(N)
    assert room(ledger) == []
    ledger.set_cards(N, cards(10, 11, 12))
    assert room(ledger) == [1, 2, 3]
