"""What a pod asks, what a node has left, and whether the one fits the other."""

import pytest
from hypothesis import given

from gpushare.domain.frag.shapes import Shape, State
from tests.gpushare.frag.invented import (
    few,
    no_card,
    shapes,
    share,
    state,
    states,
    whole,
)


@pytest.mark.parametrize(
    ("milli", "cards", "cpu"),
    [(0, 1, 0), (1001, 1, 0), (10, 0, 0), (500, 2, 0), (0, -1, 0), (0, 0, -1)],
)
def test_what_no_pod_can_ask_is_refused(milli: int, cards: int, cpu: int) -> None:
    with pytest.raises(ValueError, match=f"milli={milli}, cards={cards}"):
        Shape(milli, cards, cpu, 0)


@pytest.mark.parametrize(
    ("node", "asked", "cards"),
    [
        (state(300, 700, 300, 1000), share(300), (0, 1, 3)),
        (state(300, 700, 300, 1000), share(301), (1, 3)),
        (state(300, 1000, 1000), whole(1), (1,)),
        (state(300, 1000, 1000), whole(2), (1,)),
        (state(300, 1000, 1000), whole(3), ()),
        (state(-5, 0), share(1), ()),
        (state(), no_card(500), (-1,)),
        (state(), share(1), ()),
        (state(1000, cpu=999), share(10, 1000), ()),
        (state(1000, memory=9), share(10, 0, 10), ()),
        (state(1000, cpu=1000, memory=10), share(10, 1000, 10), (0,)),
        (state(1000, cpu=-5, memory=-5), share(10), (0,)),
        (state(1000, model="T4"), share(10, 0, 0, "A10"), ()),
        (state(1000, model="T4"), share(10, 0, 0, "A10", "T4"), (0,)),
    ],
)
def test_which_cards_would_do(
    node: State, asked: Shape, cards: tuple[int, ...]
) -> None:
    """One of each residual for a share; unknown CPU and memory limit nothing."""
    assert node.cards_for(asked) == cards


@few
@given(states, shapes)
def test_a_pod_takes_what_it_asks_and_no_more(node: State, asked: Shape) -> None:
    for card in node.cards_for(asked):
        after = node.after(asked, card)
        assert node.idle - after.idle == asked.demand
        if node.cpu_milli is not None and after.cpu_milli is not None:
            assert node.cpu_milli - after.cpu_milli == asked.cpu_milli
        assert (node.memory_mib is None) == (after.memory_mib is None)
        changed = sum(
            a != b for a, b in zip(node.residuals, after.residuals, strict=True)
        )
        assert changed == asked.cards
        assert all(
            left >= min(0, had)
            for had, left in zip(node.residuals, after.residuals, strict=True)
        )


def test_what_a_pod_leaves() -> None:
    """A share takes the card that is named, several whole cards the lowest."""
    node = state(300, 1000, 1000, 1000, cpu=8000, memory=64, model="T4")
    assert node.after(share(200, 2000, 16), 3) == state(
        *(300, 1000, 1000, 800), cpu=6000, memory=48, model="T4"
    )
    assert node.after(whole(2, 8000), 3) == state(
        *(300, 0, 0, 1000), cpu=0, memory=64, model="T4"
    )
    assert state(7).after(no_card(500, 1), -1) == state(7)
