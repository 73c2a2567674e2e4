"""Nodes as they are built: how well their cards are joined, for demos and simulations.

The scores are as a device plugin would read them from such a node (``links``).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpushare.domain.links import MOST_SCORE, NVLINK, pairs

_DGX_1 = 8
_BRIDGE = 12 * NVLINK
_SWITCHED = 12 * NVLINK
_TWO_LINKS = frozenset({(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)})
_ONE_LINK = frozenset({(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)})


def _pcie(a: int, b: int, number: int) -> int:
    """Two cards under each switch, and a half of the cards at each processor."""
    if a // 2 == b // 2:
        return 50
    half = -(-number // 2)
    return 30 if a // half == b // half else 10


def _bridges(a: int, b: int, number: int) -> int:
    return _pcie(a, b, number) + (_BRIDGE if a // 2 == b // 2 else 0)


def _cube_mesh(a: int, b: int, number: int) -> int:
    links = 2 * ((a, b) in _TWO_LINKS) + ((a, b) in _ONE_LINK)
    return _pcie(a, b, number) + links * NVLINK


def _switched(a: int, b: int, number: int) -> int:
    return _pcie(a, b, number) + _SWITCHED


TOPOLOGIES: Mapping[str, Callable[[int, int, int], int]] = MappingProxyType(
    {
        "pcie": _pcie,
        "nvlink-bridges": _bridges,
        "dgx-1": _cube_mesh,
        "nvswitch": _switched,
    }
)
"""By name: two cards under each PCIe switch; the same with a bridge between the two;
the hybrid cube mesh of eight V100; the same PCIe with NVSwitch."""


def score_topology(topology: object, number: int) -> tuple[int, ...] | str:
    """Return the scores of all pairs of so many cards, or what is wrong.

    ``topology`` is a name of ``TOPOLOGIES``, or a list with a row for each card.

    >>> score_topology("pcie", 4)
    (50, 10, 10, 10, 10, 50)
    """
    if not isinstance(topology, str):
        return _by_rows(topology, number)
    score = TOPOLOGIES.get(topology)
    if score is None:
        return f'is "{topology}"; known are {", ".join(TOPOLOGIES)}'
    if score is _cube_mesh and number != _DGX_1:
        return f'is "{topology}", which has {_DGX_1} cards; here are {number}'
    return tuple(score(a, b, number) for a, b in pairs(number))


def _by_rows(rows: object, number: int) -> tuple[int, ...] | str:
    """Read a row for each card; what a card has with itself may be anything."""
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        return "is not a name or a list of rows; give a row of scores for each card"
    if len(rows) != number or any(len(row) != number for row in rows):
        return f"has another size; {number} cards need {number} rows of {number} scores"
    for a, b in pairs(number):
        score, other = rows[a][b], rows[b][a]
        if score != other:
            return f"says {score} for cards {a} and {b}, and {other} for {b} and {a}"
        if type(score) is not int or not 0 <= score <= MOST_SCORE:
            wrong = f"says {score} for cards {a} and {b}"
            return f"{wrong}; give a number of 0 to {MOST_SCORE}"
    return tuple(rows[a][b] for a, b in pairs(number))
