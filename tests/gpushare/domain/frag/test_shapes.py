"""What a pod asks, what a node has free, and sums over the cluster."""

import pytest

from gpushare.domain.frag.shapes import PodShape
from tests.gpushare.domain.frag.invented import pool, state


@pytest.mark.parametrize(
    ("milli", "cards", "cpu"),
    [(0, 1, 0), (1001, 1, 0), (10, 0, 0), (500, 2, 0), (0, -1, 0), (0, 0, -1)],
)
def test_what_no_pod_can_ask_is_refused(milli: int, cards: int, cpu: int) -> None:
    with pytest.raises(ValueError, match=f"milli={milli}, cards={cards}"):
        PodShape(milli, cards, cpu, 0)


def test_what_idles_where() -> None:
    capacity = pool(
        [
            state(1000, 1000, 1000, -40, model="T4"),
            state(1000, 1000, 1000, 1000, 1000, 300, model="T4"),
            state(500, model="A10"),
            state(),
        ],
        11,
    )
    assert capacity.idle == {"T4": 8300, "A10": 500, "": 0}
    assert capacity.idle_cards == 8.8
    assert capacity.idle_of(["A10", "unheard of"]) == 0.5
    assert [capacity.blocks(cards) for cards in (1, 2, 3, 4, 5, 6)] == [
        8,
        3,
        2,
        1,
        1,
        0,
    ]
    assert (capacity.cards, capacity.cpu_milli, capacity.memory_mib) == (11, None, None)
