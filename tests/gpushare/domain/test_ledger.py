"""The book of all nodes."""

import pytest

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import Amount, NodeName, Placement
from gpushare.domain.refusal import Reason, Refusal
from tests.builders import (
    FIRST_FIT,
    card,
    cards,
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
    """What is reserved is charged at once, and known to be unconfirmed."""
    ledger = ledger_of()
    decision = ledger.reserve(request("a", 20), N, FIRST_FIT)
    assert decision == placement("a", 0, 20)
    assert ledger.placement(ref("a").uid) == decision
    assert left(ledger.node(N)) == Amount(100, 9)
    assert ledger.reservations() == {ref("a").uid}


def test_a_second_reserve_changes_nothing() -> None:
    """A replayed bind gets the very same placement, charged once."""
    ledger = ledger_of(*cards(29, 29))
    first = ledger.reserve(request("a", 20), N, FIRST_FIT)
    position = now(ledger)
    assert ledger.reserve(request("a", 20), N, FIRST_FIT) == first
    assert changes(ledger, position) == set()


def test_a_plan_for_a_pod_that_is_there_already_counts_for_nothing() -> None:
    """Its bind may have come while this one was on its way."""
    ledger = ledger_of(*cards(29, 29))
    ledger.reserve(request("a", 20), N, FIRST_FIT)
    plan = placement("a", 1, 20)
    found = ledger.reserve(request("b", 20), N, FIRST_FIT, [plan])
    assert found == placement("b", 1, 20)


def test_a_plan_for_a_pod_of_unknown_card_counts_for_nothing() -> None:
    """It is charged on every card."""
    ledger = ledger_of(*cards(29, 29))
    ledger.record_unplaced(request("a", 20), N)
    plan = placement("a", 1, 20)
    found = ledger.reserve(request("b", 20), N, FIRST_FIT, [plan])
    assert found == Refusal(Reason.MEMORY)


def test_a_refused_reserve_leaves_nothing() -> None:
    """No half-made reservation, no word in the journal."""
    ledger = ledger_of()
    position = now(ledger)
    assert ledger.reserve(request("a", 30), N, FIRST_FIT) == Refusal(Reason.MEMORY)
    assert ledger.placement(ref("a").uid) is None
    assert not ledger.reservations()
    assert changes(ledger, position) == set()


def test_an_unknown_node_has_no_cards() -> None:
    """And asking does not make it known."""
    ledger = Ledger()
    assert ledger.reserve(request("a", 1), N, FIRST_FIT) == Refusal(Reason.NO_CARDS)
    assert ledger.node(N) is None


def test_what_the_api_server_holds_is_confirmed() -> None:
    """A placement seen back is no reservation any more, and cannot be cancelled."""
    ledger = ledger_of()
    held = ledger.reserve(request("a", 20), N, FIRST_FIT)
    assert isinstance(held, Placement)
    ledger.record(held)
    assert not ledger.reservations()
    assert ledger.cancel(ref("a").uid) is None
    assert ledger.placement(ref("a").uid) == held


def test_record_is_idempotent() -> None:
    """The same placement twice is one change."""
    ledger = ledger_of()
    ledger.record(placement("a", 0, 20))
    position = now(ledger)
    ledger.record(placement("a", 0, 20))
    assert changes(ledger, position) == set()
    assert left(ledger.node(N)).units == 9


def test_record_takes_what_is_so() -> None:
    """It may exceed the card, name an unknown card or an unknown node."""
    ledger = ledger_of()
    ledger.record(placement("a", 0, 99))
    ledger.record(placement("b", "GPU-gone", 5))
    ledger.record(placement("c", 0, 5, node="m"))
    assert left(ledger.node(N)).units == -70
    assert ledger.placement(ref("b").uid) == placement("b", "GPU-gone", 5)
    assert ledger.placement(ref("c").uid) == placement("c", 0, 5, node="m")


def test_a_placement_that_moves_to_another_card() -> None:
    """The actual one takes the place of the planned one."""
    ledger = ledger_of(*cards(29, 29))
    ledger.record(placement("a", 0, 20))
    ledger.record(placement("a", 1, 20))
    assert left(ledger.node(N), 0).units == 29
    assert left(ledger.node(N), 1).units == 9


def test_a_placement_that_moves_to_another_node() -> None:
    """The API server's word on where the pod is frees what we had thought."""
    ledger = ledger_of()
    ledger.set_cards(M, [card()])
    ledger.record(placement("a", 0, 20))
    position = now(ledger)
    ledger.record(placement("a", 0, 20, node="m"))
    assert left(ledger.node(N)).units == 29
    assert left(ledger.node(M)).units == 9
    assert changes(ledger, position) == {N, M}


def test_release_frees_and_gives_what_was_held() -> None:
    """The second time there is nothing to free, and nothing is credited."""
    ledger = ledger_of()
    ledger.record(placement("a", 0, 20))
    assert ledger.release(ref("a").uid) == placement("a", 0, 20)
    assert ledger.release(ref("a").uid) is None
    assert left(ledger.node(N)) == Amount(100, 29)


def test_cancel_frees_a_reservation_once() -> None:
    """For a bind that failed."""
    ledger = ledger_of()
    held = ledger.reserve(request("a", 20), N, FIRST_FIT)
    assert ledger.cancel(ref("a").uid) == held
    assert ledger.cancel(ref("a").uid) is None
    assert left(ledger.node(N)).units == 29


def test_cards_may_change_under_placements() -> None:
    """What is held stays held; the new size counts from now on."""
    ledger = ledger_of()
    ledger.record(placement("a", 0, 20))
    ledger.set_cards(N, [card(units=16)])
    assert left(ledger.node(N)).units == -4


def test_cards_that_did_not_change_are_no_change() -> None:
    """A node's heartbeat costs nothing."""
    ledger = ledger_of()
    position = now(ledger)
    ledger.set_cards(N, [card()])
    assert changes(ledger, position) == set()
    ledger.set_cards(N, [card(healthy=False)])
    assert changes(ledger, position) == {N}


def test_a_node_without_cards_is_known_all_the_same() -> None:
    """It is refused with ``No shared cards``."""
    ledger = Ledger()
    ledger.set_cards(N, [])
    assert [page.name for page in ledger.nodes()] == [N]


def test_pods_may_outlast_their_node() -> None:
    """They stay charged, nothing is placed there, and the node may come back."""
    ledger = ledger_of()
    ledger.record(placement("a", 0, 20))
    ledger.forget(N)
    assert ledger.reserve(request("b", 1), N, FIRST_FIT) == Refusal(Reason.NO_CARDS)
    ledger.set_cards(N, [card()])
    assert left(ledger.node(N)).units == 9


def test_a_node_that_is_gone_leaves_no_page() -> None:
    """Nor one of which the last pod has gone: nodes come and go for years."""
    ledger = ledger_of()
    ledger.forget(N)
    assert ledger.nodes() == ()
    ledger.set_cards(N, [card()])
    ledger.record(placement("a", 0, 20))
    ledger.forget(N)
    ledger.release(ref("a").uid)
    assert ledger.nodes() == ()


def test_a_node_that_never_was_leaves_no_page() -> None:
    """The API server binds to any name; the pod is counted under it until it goes."""
    ledger = Ledger()
    ledger.record(placement("a", 0, 20, node="typo"))
    assert [page.name for page in ledger.nodes()] == ["typo"]
    ledger.release(ref("a").uid)
    assert ledger.nodes() == ()


def test_forgetting_an_unknown_node_is_nothing() -> None:
    """A watch may repeat itself."""
    ledger = Ledger()
    ledger.forget(N)
    assert ledger.changed_since(0) == (0, [])


def test_a_nomination_keeps_room_from_others() -> None:
    """But not from its own pod, nor from pods of higher priority."""
    ledger = ledger_of()
    kept = placement("kept", 0, 20, priority=5)
    ledger.nominate(N, {kept.pod.uid: kept})
    assert ledger.nominated() == {N}
    equal = request("equal", 10, priority=5)
    assert ledger.reserve(equal, N, FIRST_FIT) == Refusal(Reason.MEMORY)
    own = request("kept", 20, priority=5)
    assert isinstance(ledger.reserve(own, N, FIRST_FIT), Placement)
    ledger.release(own.pod.uid)
    higher = request("higher", 29, priority=6)
    assert isinstance(ledger.reserve(higher, N, FIRST_FIT), Placement)


def test_nominations_of_a_node_are_replaced_together() -> None:
    """None at all ends the keeping; the same again is no change."""
    ledger = ledger_of()
    kept = placement("kept", 0, 20)
    ledger.nominate(N, {kept.pod.uid: kept})
    position = now(ledger)
    ledger.nominate(N, {kept.pod.uid: kept})
    assert changes(ledger, position) == set()
    ledger.nominate(N, {})
    assert changes(ledger, position) == {N}
    assert ledger.nominated() == frozenset()
    assert left(ledger.node(N)).units == 29


def test_nothing_can_be_kept_on_an_unknown_node() -> None:
    """And asking does not make it known."""
    ledger = Ledger()
    ledger.nominate(N, {ref("a").uid: placement("a")})
    assert ledger.nominated() == frozenset()
    assert ledger.nodes() == ()


@pytest.mark.parametrize("with_pods", [True, False], ids=["pods left", "empty"])
def test_a_node_that_is_gone_keeps_room_for_nobody(with_pods: bool) -> None:
    """Its nominations go with its cards."""
    ledger = ledger_of()
    if with_pods:
        ledger.record(placement("a", 0, 1))
    ledger.nominate(N, {ref("kept").uid: placement("kept", 0, 20)})
    ledger.forget(N)
    assert ledger.nominated() == frozenset()


def test_the_journal_names_what_changed_after_a_position() -> None:
    """And nothing that was changed before it."""
    ledger = ledger_of()
    first = now(ledger)
    ledger.set_cards(M, [card()])
    second, changed = ledger.changed_since(first)
    assert changed == [M]
    assert ledger.changed_since(second) == (second, [])


def test_a_position_before_the_journal_tells_nothing() -> None:
    """Look at all nodes then."""
    assert ledger_of().changed_since(-1) == (1, None)


def test_the_journals_older_half_goes_when_it_gets_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Late readers are told so; those who keep up notice nothing."""
    monkeypatch.setattr("gpushare.domain.ledger._LONGEST_JOURNAL", 65)
    ledger = Ledger()
    for turn in range(70):
        ledger.set_cards(NodeName(f"n{turn % 7}"), [card(units=turn)])
        if turn == 59:
            recent = now(ledger)
    assert ledger.changed_since(0) == (70, None)
    position, changed = ledger.changed_since(recent)
    assert (position, len(changed or ())) == (70, 10)


def test_a_page_in_hand_never_changes() -> None:
    """Readers take no lock, since a node is replaced whole."""
    ledger = ledger_of()
    page = ledger.node(N)
    ledger.record(placement("a", 0, 20))
    assert left(page).units == 29


def room(ledger: Ledger, name: NodeName = N) -> list[int]:
    page = ledger.node(name)
    assert page is not None
    return [free.units for free in page.free.values()]


def test_a_pod_on_no_card_is_charged_on_every_card_of_its_node() -> None:
    """Until a placement is recorded; each change is in the journal."""
    ledger = ledger_of(*cards(29, 16))
    position = now(ledger)
    ledger.record_unplaced(request("a", 9), N)
    assert room(ledger) == [20, 7]
    assert changes(ledger, position) == {N}
    position = now(ledger)
    ledger.record(placement("a", 1, 9))
    assert room(ledger) == [29, 7]
    assert changes(ledger, position) == {N}
    ledger.release(ref("a").uid)
    assert room(ledger) == [29, 16]


def test_a_pod_on_no_card_frees_all_when_it_ends() -> None:
    """It is among the holders till then, and has no placement."""
    ledger = ledger_of(*cards(29, 16))
    ledger.record_unplaced(request("a", 9), N)
    assert ledger.holders() == {ref("a").uid}
    assert ledger.placement(ref("a").uid) is None
    assert ledger.release(ref("a").uid) is None
    assert room(ledger) == [29, 16]
    assert ledger.holders() == frozenset()


def test_a_pod_on_no_card_told_twice_is_charged_once() -> None:
    """And nobody is woken for it."""
    ledger = ledger_of()
    ledger.record_unplaced(request("a", 9), N)
    position = now(ledger)
    ledger.record_unplaced(request("a", 9), N)
    assert room(ledger) == [20]
    assert changes(ledger, position) == set()


def test_what_a_pod_holds_goes_before_what_is_unknown() -> None:
    """A reservation whose binding is on its way, and a placement seen before."""
    ledger = ledger_of(*cards(29, 29))
    held = ledger.reserve(request("a", 9), N, FIRST_FIT)
    ledger.record_unplaced(request("a", 9), N)
    assert room(ledger) == [20, 29]
    assert isinstance(held, Placement)
    ledger.record(held)
    ledger.record_unplaced(request("a", 9), N)
    assert room(ledger) == [20, 29]
    ledger.release(ref("a").uid)
    assert room(ledger) == [29, 29]


def test_a_reservation_given_up_leaves_the_pod_where_it_was_bound() -> None:
    """Somebody else bound it there meanwhile, on nobody knows which card."""
    ledger = ledger_of(*cards(29, 29))
    ledger.reserve(request("a", 9), N, FIRST_FIT)
    ledger.record_unplaced(request("a", 9), N)
    ledger.cancel(ref("a").uid)
    assert room(ledger) == [20, 20]
    assert not ledger.reservations()


def test_a_reservation_ends_when_the_pod_is_seen_bound_elsewhere() -> None:
    """A binding is for good."""
    ledger = ledger_of(*cards(29, 29))
    ledger.set_cards(M, cards(16))
    ledger.reserve(request("a", 9), N, FIRST_FIT)
    ledger.record_unplaced(request("a", 9), M)
    assert (room(ledger), room(ledger, M)) == ([29, 29], [7])
    assert not ledger.reservations()
    assert ledger.cancel(ref("a").uid) is None


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


def test_a_reservation_elsewhere_moves_the_charge_and_gives_it_back() -> None:
    """A bind that has not yet heard where the pod is; the API server will refuse it."""
    ledger = ledger_of(*cards(29))
    ledger.set_cards(M, cards(16))
    ledger.record_unplaced(request("a", 9), M)
    ledger.reserve(request("a", 9), N, FIRST_FIT)
    assert (room(ledger), room(ledger, M)) == ([20], [16])
    ledger.cancel(ref("a").uid)
    assert (room(ledger), room(ledger, M)) == ([29], [7])


def test_a_pod_on_no_card_may_come_before_its_node() -> None:
    """And stays while the node goes and comes back with other cards."""
    ledger = Ledger()
    ledger.record_unplaced(request("a", 9), N)
    ledger.set_cards(N, cards(29, 16))
    assert room(ledger) == [20, 7]
    ledger.forget(N)
    assert room(ledger) == []
    ledger.set_cards(N, cards(10, 11, 12))
    assert room(ledger) == [1, 2, 3]


def test_a_page_of_a_node_that_is_gone_ends_with_its_last_pod() -> None:
    """Also with one that was on no card."""
    ledger = ledger_of()
    ledger.record_unplaced(request("a", 9), N)
    ledger.forget(N)
    assert ledger.node(N) is not None
    ledger.release(ref("a").uid)
    assert ledger.node(N) is None
