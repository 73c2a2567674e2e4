"""Numbers and names in columns. Pure."""

from datetime import UTC, datetime, timedelta

from rich.cells import cell_len, set_cell_size

from gpushare.kube.words import NOT_KNOWN
from gpusharectl.demo.age import age

_GIB = 1024
_LEAST = 0.01
_CUT = "…"


def gib(mib: float | None) -> str:
    """Say MiB in GiB, for a column.

    >>> gib(12800), gib(3), gib(0), gib(None)
    ('12.50', '<0.01', '0', 'n/a')
    """
    if mib is None:
        return NOT_KNOWN
    found = mib / _GIB
    return f"<{_LEAST}" if 0 < found < _LEAST else f"{found:.2f}" if found else "0"


def size(mib: float) -> str:
    """Say MiB in a sentence.

    >>> size(300.4), size(1280)
    ('300 MiB', '1.25 GiB')
    """
    return f"{max(1, round(mib))} MiB" if mib < _GIB else f"{plain(mib)} GiB"


def plain(mib: float) -> str:
    """Say MiB in GiB, for a sentence that names the unit.

    >>> plain(12800), plain(0)
    ('12.5', '0')
    """
    return f"{mib / _GIB:.2f}".rstrip("0").rstrip(".")


def whole(number: float | None) -> str:
    """Say a number without its fraction; what is not quite 0 is not 0.

    >>> whole(22.6), whole(0), whole(0.2), whole(None)
    ('23', '0', '<1', 'n/a')
    """
    if number is None:
        return NOT_KNOWN
    return "<1" if 0 < number < 1 else str(round(number))


def for_so_long(seconds: float) -> str:
    """Say how long, as kubectl does.

    >>> for_so_long(7800)
    '130m'
    """
    then = datetime(2000, 1, 1, tzinfo=UTC)
    return age(then.isoformat(), then + timedelta(seconds=seconds))


def column(text: str, width: int, tail: int | None = None) -> str:
    """Make text exactly so many cells wide.

    Of a text that is too long so many cells stay at its end, or else half of them.

    >>> column("bert-7b5f9c6d4b-x2x7k", 12), column("Tesla P100", 6, 0), column("a", 3)
    ('bert-7…x2x7k', 'Tesla…', 'a  ')
    """
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    kept = (width - 1) // 2 if tail is None else min(tail, width - 1)
    end = _first(text[::-1], kept)[::-1]
    begin = _first(text, width - 1 - cell_len(end))
    return set_cell_size(f"{begin}{_CUT}{end}", width)


def _first(text: str, width: int) -> str:
    """Give as much of a text as there is room for; some characters are two cells."""
    used = 0
    for number, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:number]
    return text
