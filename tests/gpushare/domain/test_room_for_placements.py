"""Whether there is room for a card that somebody else has chosen, and why not."""

import pytest

from gpushare.domain.node import Node, why_no_room
from tests.builders import card, node, placement, request, share

HELD = placement("held", 0, 11, 30)


@pytest.mark.parametrize(
    ("there", "asked", "complaint"),
    [
        (node(card(0, 20)), (10, 20), ""),
        (node(card(0, 20), holds=[HELD]), (70, 9), ""),
        (node(card(0, 20), holds=[HELD]), (1, 10), "has 9 units left, not 10"),
        (node(card(0, 20), holds=[HELD]), (71, 1), "has 70 cores left, not 71"),
        (
            node(card(0, 20), holds=[HELD]),
            (80, 20),
            "has 9 units left, not 20 and 70 cores left, not 80",
        ),
        (node(card(0, 8), holds=[HELD]), (1, 1), "has 0 units left, not 1"),
        (node(card(0, 20), nominated=[HELD]), (1, 10), "has 9 units left, not 10"),
        (
            node(card(0, 20), unplaced=[request("u", 15, 1)]),
            (1, 6),
            "has 5 units left, not 6",
        ),
        (node(card(0, 20, healthy=False)), (1, 1), "is sick"),
        (node(card(0, 20, healthy=False, reason="XID 79")), (1, 1), "is sick: XID 79"),
        (node(card(0, 20, cordoned=True)), (1, 1), "is cordoned"),
        (node(card(0, 20)), (100, 1), ""),
        (
            node(card(0, 20), holds=[placement("h", 0, 1, 0)]),
            (100, 1),
            "is in use, and 100 cores need a card alone",
        ),
    ],
)
def test_one_card(there: Node, asked: tuple[int, int], complaint: str) -> None:
    """All that is charged or kept counts; the sentence says what is left."""
    wanted = placement("c", 0, asked[1], asked[0])
    assert why_no_room(there, wanted) == (
        complaint and f"card GPU-0 of node n {complaint}"
    )


def test_nobody_shares_a_card_with_100_cores() -> None:
    """However few units were asked beside them."""
    whole = placement("w", 0, 1, 100)
    complaint = why_no_room(node(holds=[whole]), placement("c", 0, 1))
    assert complaint.endswith("has 0 units left, not 1")


def test_parts_that_make_100_cores_need_no_card_alone() -> None:
    """One request of 100 cores does; two of a claim may be beside memory of others."""
    page = node(card(0, 29), holds=[placement("p", 0, 8)])
    parts = placement("c", shares=[share(0, 4, 50), share(0, 4, 50)])
    assert why_no_room(page, parts) == ""
    assert "need a card alone" in why_no_room(page, placement("c", 0, 8, 100))


def test_its_own_share_does_not_count() -> None:
    """A claim that is asked about again holds what it asks for."""
    assert why_no_room(node(card(0, 11), holds=[HELD]), HELD) == ""


def test_shares_of_one_card_are_added_up() -> None:
    """Two requests of a claim may get the same card."""
    wanted = placement(shares=[share(0, 15, 1), share(0, 15, 1)])
    assert "has 29 units left, not 30" in why_no_room(node(card(0, 29)), wanted)


def test_unknown_cards_and_nodes() -> None:
    """Each is named; all cards of the claim are judged."""
    wanted = placement(shares=[share(7, 1, 1), share(0, 30, 1)])
    assert why_no_room(node(), wanted) == (
        "node n has no card GPU-7; card GPU-0 of node n has 29 units left, not 30"
    )
    empty = Node(wanted.node)
    assert "shares no cards" in why_no_room(empty, wanted)
