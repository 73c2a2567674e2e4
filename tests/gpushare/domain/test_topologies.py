"""Nodes as they are built, by a name or by rows of pair scores."""

from itertools import combinations

import pytest

from gpushare.domain.topologies import TOPOLOGIES, score_topology
from tests.topologies import dgx_1_scores


def test_the_hybrid_cube_mesh() -> None:
    assert score_topology("dgx-1", 8) == tuple(dgx_1_scores())


@pytest.mark.parametrize(
    ("name", "pair", "processor", "far"),
    [
        ("pcie", 50, 30, 10),
        ("nvlink-bridges", 1250, 30, 10),
        ("nvswitch", 1250, 1230, 1210),
    ],
)
def test_two_cards_a_switch_and_a_half_a_processor(
    name: str, pair: int, processor: int, far: int
) -> None:
    scored = score_topology(name, 8)
    assert not isinstance(scored, str)
    given = dict(zip(combinations(range(8), 2), scored, strict=True))
    assert (given[0, 1], given[0, 3], given[3, 4], given[6, 7]) == (
        pair,
        processor,
        far,
        pair,
    )


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_of_one_card_there_is_nothing_to_say(name: str) -> None:
    """The mesh is of eight cards and no others."""
    assert score_topology(name, 1) == () or name == "dgx-1"


WRONG = {
    "name": ("dgx-2", 'is "dgx-2"; known are pcie, nvlink-bridges, dgx-1, nvswitch'),
    "number": ("dgx-1", 'is "dgx-1", which has 8 cards; here are 3'),
    "word": (7, "is not a name or a list of rows; give a row of scores for each card"),
    "row": (
        [1, 2, 3],
        "is not a name or a list of rows; give a row of scores for each",
    ),
    "few": ([[0, 1], [1, 0]], "has another size; 3 cards need 3 rows of 3 scores"),
    "short": ([[0, 1, 2], [1, 0, 3], [2, 3]], "has another size; 3 cards need 3 rows"),
    "uneven": (
        [[0, 1, 2], [1, 0, 3], [2, 4, 0]],
        "says 3 for cards 1 and 2, and 4 for 2 and 1",
    ),
    "negative": (
        [[0, 1, -2], [1, 0, 3], [-2, 3, 0]],
        "says -2 for cards 0 and 2; give a number of 0 to 10000",
    ),
    "text": (
        [[0, "x", 2], ["x", 0, 3], [2, 3, 0]],
        "says x for cards 0 and 1; give a number of 0 to 10000",
    ),
}


@pytest.mark.parametrize(("given", "words"), WRONG.values(), ids=WRONG)
def test_complaints_say_what_to_give(given: object, words: str) -> None:
    complaint = score_topology(given, 3)
    assert isinstance(complaint, str)
    assert complaint.startswith(words)


def test_rows_are_of_three_cards() -> None:
    """What a card has with itself does not matter."""
    assert score_topology([[9, 250, 10], [250, "x", 20], [10, 20, 0]], 3) == (
        250,
        10,
        20,
    )
