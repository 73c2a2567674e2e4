"""The cluster's sums."""

from gpushare.domain.frag.shapes import Pool
from tests.gpushare.domain.frag.invented import state


def test_what_idles_where() -> None:
    """A card with more held than it has counts none; blocks lie within one node."""
    pool = Pool.of(
        [
            state(1000, 1000, 1000, -40, model="T4"),
            state(1000, 1000, 1000, 1000, 1000, 300, model="T4"),
            state(500, model="A10"),
            state(),
        ],
        cards=11,
    )
    assert pool.idle == {"T4": 8300, "A10": 500, "": 0}
    assert pool.idle_cards == 8.8
    assert pool.idle_of(["A10", "unheard of"]) == 0.5
    assert [pool.blocks(cards) for cards in (1, 2, 3, 4, 5, 6)] == [8, 3, 2, 1, 1, 0]
    assert (pool.cards, pool.cpu_milli, pool.memory_mib) == (11, None, None)
