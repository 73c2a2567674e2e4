"""The look-ups, held up against the sums that they stand for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.frag.prices import Ladder, Ramp
from tests.gpushare.domain.frag.invented import few

weights = st.integers(1, 100).map(float)
rooms = st.none() | st.integers(-1000, 100_000)


@few
@given(
    st.lists(st.tuples(st.integers(0, 20_000), weights), min_size=1, max_size=9),
    st.sampled_from([0.0, 0.25, 1.0, 3.5, 8.0]),
    rooms,
)
def test_a_ramp_is_its_sum(
    kinds: list[tuple[int, float]], cards: float, room: int | None
) -> None:
    """Σ w·min(G, X/a), and a kind that asks nothing is never limited."""
    free = math.inf if room is None else max(room, 0)
    plainly = sum(
        weight * (min(cards, free / asked) if asked else cards)
        for asked, weight in kinds
    )
    assert Ramp.of(kinds).worth(cards, room) == pytest.approx(plainly)


@few
@given(
    st.lists(st.tuples(st.integers(0, 20_000), weights), min_size=1, max_size=9),
    st.integers(0, 8),
    rooms,
)
def test_a_ladder_is_its_sum(
    kinds: list[tuple[int, float]], blocks: int, room: int | None
) -> None:
    """Σ w·min(B, ⌊X/c⌋)."""
    free = math.inf if room is None else max(room, 0)
    plainly = sum(
        weight * (min(blocks, free // asked) if asked else blocks)
        for asked, weight in kinds
    )
    assert Ladder.of(kinds).worth(blocks, room) == pytest.approx(plainly)
