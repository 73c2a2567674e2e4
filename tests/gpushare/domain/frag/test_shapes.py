"""What a pod asks, and what a node has left."""

import pytest

from gpushare.domain.frag.shapes import Shape
from tests.gpushare.domain.frag.invented import no_card, share, state, whole


@pytest.mark.parametrize(
    ("milli", "cards", "cpu"),
    [(0, 1, 0), (1001, 1, 0), (10, 0, 0), (500, 2, 0), (0, -1, 0), (0, 0, -1)],
)
def test_what_no_pod_can_ask_is_refused(milli: int, cards: int, cpu: int) -> None:
    with pytest.raises(ValueError, match=f"milli={milli}, cards={cards}"):
        Shape(milli, cards, cpu, 0)


def test_demand_is_over_all_cards() -> None:
    assert [each.demand for each in (share(300), whole(4), no_card(8000))] == [
        *(300, 4000, 0)
    ]


def test_a_card_with_more_held_than_it_has_is_not_idle() -> None:
    node = state(1000, -5, 700, 1000, 0)
    assert (node.untouched, node.idle) == (2, 2700)
