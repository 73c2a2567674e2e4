"""What the commands draw."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpusharectl.output import Piece, bar, legend


def pieces(*units: int) -> list[Piece]:
    return [Piece(f"p{number}", size) for number, size in enumerate(units)]


@pytest.mark.parametrize(
    ("units", "drawn"),
    [
        pytest.param([], "··········", id="empty"),
        pytest.param([5], "█████·····", id="half"),
        pytest.param([10], "██████████", id="full"),
        pytest.param([5, 5], "█████▓▓▓▓▓", id="full-of-two"),
        pytest.param([2, 2, 2, 2, 2], "██▓▓▒▒▚▚██", id="fills-come-round"),
        pytest.param([1, 8], "█▓▓▓▓▓▓▓▓·", id="one-left"),
    ],
)
def test_a_bar_shows_what_each_pod_holds(units: list[int], drawn: str) -> None:
    """A fill for each, dots for what is free."""
    assert bar(10, pieces(*units), width=10).plain == drawn


def test_a_small_pod_is_not_lost() -> None:
    """One unit of a hundred has a cell all the same; the largest gives it up."""
    assert bar(100, pieces(97, 1, 1), width=10).plain == "███████▓▒·"
    assert bar(100, pieces(98, 1, 1), width=10).plain == "████████▓▒"


def test_who_has_nothing_has_no_cell() -> None:
    """Its fill stays its own, so that two bars of the same pods look alike."""
    assert bar(10, pieces(5, 0, 2), width=10).plain == "█████▒▒···"


def test_more_pods_than_cells() -> None:
    """The bar stays as wide as it is; the last ones are not seen in it."""
    assert bar(300, pieces(*[1] * 200), width=6).plain == "█▓▒▚█·"
    assert bar(200, pieces(*[1] * 200), width=6).plain == "█▓▒▚█▓"


def test_a_card_without_memory() -> None:
    """It has nothing to give, and an empty bar."""
    assert bar(0, [], width=4).plain == "····"
    assert bar(0, pieces(3), width=4).plain == "████"


def test_colour_only_adds() -> None:
    """The same pods have the same fills and colours in bar and legend."""
    drawn, told = bar(10, pieces(5, 2), width=10), legend(pieces(5, 2))
    assert told.plain == "█ p0 5  ▓ p1 2"
    colours = [span.style for span in drawn.spans][:2]
    assert colours == [span.style for span in told.spans]


def test_an_empty_legend_is_empty() -> None:
    """A card that nobody holds needs none."""
    assert legend([]).plain == ""


@example(units=[1, 1], free=0, width=13)
@given(
    st.lists(st.integers(1, 50), max_size=12), st.integers(0, 60), st.integers(13, 60)
)
def test_a_bar_is_as_wide_as_it_should_be(
    units: list[int], free: int, width: int
) -> None:
    """Every pod has a cell; a dot is there exactly while something is free."""
    capacity = max(1, sum(units) + free)
    drawn = bar(capacity, pieces(*units), width).plain
    assert len(drawn) == width
    runs = [char for i, char in enumerate(drawn) if i == 0 or char != drawn[i - 1]]
    assert len([char for char in runs if char != "·"]) == len(units)
    assert ("·" in drawn) == (capacity > sum(units))
