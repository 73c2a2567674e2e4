"""Numbers and names in top's columns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpusharectl.top.rows import column, gib, plain, size, whole


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
    """What is there is never shown as nothing."""
    assert (gib(mib), size(mib)) == (in_column, in_words)


def test_unknown_is_never_a_number() -> None:
    """Whatever it is that nobody knows."""
    assert (gib(None), whole(None)) == ("n/a", "n/a")


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (0.2, "<1"), (22.6, "23"), (100, "100")]
)
def test_percents(number: float, text: str) -> None:
    """Idle is 0, and what is not quite idle is not."""
    assert whole(number) == text


def test_sums_keep_no_needless_zeros() -> None:
    """As inspect writes them."""
    assert (plain(38 * 1024), plain(12800), plain(0)) == ("38", "12.5", "0")


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
    """Where it hurts least."""
    assert column(text, width, tail) == found


@given(
    st.text(st.characters(categories=["L", "N", "P"])),
    st.integers(4, 40),
    st.none() | st.integers(0, 50),
)
def test_a_column_is_exactly_so_wide(text: str, width: int, tail: int | None) -> None:
    """Whatever is in it: else the numbers behind it would not stand in line."""
    assert cell_len(column(text, width, tail)) == width
