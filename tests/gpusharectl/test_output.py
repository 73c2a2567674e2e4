"""Data, bars, numbers in columns, and ages."""

import io
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gpushare.domain.model import Amount
from gpusharectl.output import (
    HIDDEN,
    INLINE,
    UNKNOWN,
    Hanging,
    draw_bar,
    draw_legend,
    encode,
    fit_column,
    format_age,
    format_size,
    gib,
    plain_gib,
    rounded,
)


@pytest.mark.parametrize(
    ("capacity", "units", "drawn"),
    [
        pytest.param(10, [], "··········", id="empty"),
        pytest.param(10, [5, 5], "█████▓▓▓▓▓", id="full-of-two"),
        pytest.param(10, [2, 2, 2, 2, 2], "██▓▓▒▒▚▚██", id="fills-come-round"),
        pytest.param(10, [1, 8], "█▓▓▓▓▓▓▓▓·", id="one-left"),
        # One unit of a hundred has a cell all the same; the largest gives it up.
        pytest.param(100, [97, 1, 1], "███████▓▒·", id="a-small-one"),
        pytest.param(100, [98, 1, 1], "████████▓▒", id="a-small-one-and-full"),
        # Its fill stays its own, so that two bars of the same pods look alike.
        pytest.param(10, [5, 0, 2], "█████▒▒···", id="one-of-nothing"),
        pytest.param(300, [1] * 200, "█▓▒▚█·", id="more-pods-than-cells"),
        pytest.param(200, [1] * 200, "█▓▒▚█▓", id="more-pods-and-full"),
        pytest.param(0, [], "····", id="a-card-without-memory"),
        pytest.param(0, [3], "████", id="without-memory-and-held"),
    ],
)
def test_a_bar_shows_what_each_pod_holds(
    capacity: int, units: list[int], drawn: str
) -> None:
    assert draw_bar(capacity, units, width=len(drawn)).plain == drawn


def test_colour_only_adds() -> None:
    drawn, told = draw_bar(10, [5, 2], width=10), draw_legend({"p0": 5, "p1": 2})
    assert told.plain == "█ p0 5  ▓ p1 2"
    colours = [span.style for span in drawn.spans][:2]
    assert colours == [span.style for span in told.spans]


@example(units=[1, 1], free=0, width=13)
@given(
    st.lists(st.integers(1, 50), max_size=12), st.integers(0, 60), st.integers(13, 60)
)
def test_a_bar_is_as_wide_as_it_should_be(
    units: list[int], free: int, width: int
) -> None:
    """Every pod has a cell; a dot is there exactly while something is free."""
    capacity = max(1, sum(units) + free)
    drawn = draw_bar(capacity, units, width).plain
    assert len(drawn) == width
    runs = [char for i, char in enumerate(drawn) if i == 0 or char != drawn[i - 1]]
    assert len([char for char in runs if char != "·"]) == len(units)
    assert ("·" in drawn) == (capacity > sum(units))


@pytest.mark.parametrize(
    ("mib", "in_column", "in_words"),
    [
        (0, "0", "1 MiB"),
        (3, "<0.01", "3 MiB"),
        (10.3, "0.01", "10 MiB"),
        (1023, "1.00", "1023 MiB"),
        (12800, "12.50", "12.5 GiB"),
        (143771, "140.40", "140.4 GiB"),
    ],
)
def test_memory(mib: float, in_column: str, in_words: str) -> None:
    assert (gib(mib), format_size(mib)) == (in_column, in_words)


def test_numbers() -> None:
    assert [rounded(n) for n in (None, 0, 0.2, 22.6)] == ["n/a", "0", "<1", "23"]
    assert [plain_gib(n) for n in (38 * 1024, 12800, 0)] == ["38", "12.5", "0"]
    assert gib(None) == "n/a"


@pytest.mark.parametrize(
    ("text", "width", "tail", "found"),
    [
        ("a", 3, None, "a  "),
        ("bert-7b5f9c6d4b-x2x7k", 12, None, "bert-7…x2x7k"),
        ("ip-10-0-12-34.internal 0", 16, 2, "ip-10-0-12-34… 0"),
        ("Tesla P100", 6, 0, "Tesla…"),
        ("显卡显卡", 6, 0, "显卡… "),
        ("显卡显卡", 6, 2, "显…卡 "),
    ],
)
def test_long_names_are_cut(
    text: str, width: int, tail: int | None, found: str
) -> None:
    assert fit_column(text, width, tail) == found


@given(
    st.text(st.characters(categories=["L", "N", "P"])),
    st.integers(4, 40),
    st.none() | st.integers(0, 50),
)
def test_a_column_is_exactly_so_wide(text: str, width: int, tail: int | None) -> None:
    assert cell_len(fit_column(text, width, tail)) == width


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (timedelta(seconds=-5), "0s"),
        (timedelta(seconds=119), "119s"),
        (timedelta(seconds=200), "3m20s"),
        (timedelta(minutes=4), "4m"),
        (timedelta(minutes=90), "90m"),
        (timedelta(hours=3, minutes=5), "3h5m"),
        (timedelta(hours=20), "20h"),
        (timedelta(days=3, hours=4), "3d4h"),
        (timedelta(days=100), "100d"),
        (timedelta(days=800), "2y"),
    ],
)
def test_age(ago: timedelta, text: str) -> None:
    """The longer ago, the coarser (``k8s.io/apimachinery/pkg/util/duration``)."""
    assert format_age((NOW - ago).strftime("%Y-%m-%dT%H:%M:%SZ"), NOW) == text
    for moment in ("", "yesterday", "2026-01-02"):
        assert format_age(moment, NOW) == UNKNOWN


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (80, ["a card  one two three four five"]),
        (28, ["a card  one two three four", "        five"]),
        (20, ["a card", "      one two three", "      four five"]),
    ],
)
def test_a_text_hangs_below_itself(width: int, lines: list[str]) -> None:
    """Without blanks at the ends of lines; on the next line where there is no room."""
    page = io.StringIO()
    console = Console(file=page, width=width)
    console.print(Hanging(Text("a card  "), Text("one two three four five")))
    assert page.getvalue().splitlines() == lines


@dataclass(frozen=True)
class _Inner:
    amount: Amount = field(metadata=INLINE)
    claim: str = ""


@dataclass(frozen=True)
class _Outer:
    inner: _Inner | None = field(metadata=INLINE)
    names: tuple[str, ...]
    width: int = field(default=80, metadata=HIDDEN)


def test_a_view_is_its_data() -> None:
    """Inline fields give their keys, hidden ones none; an empty text is null."""
    assert encode(_Outer(_Inner(Amount(1, 4)), ("", "a"))) == {
        "cores": 1,
        "units": 4,
        "memory_mib": 1024,
        "claim": None,
        "names": ["", "a"],
    }
    assert encode(_Outer(None, ())) == {"names": []}
