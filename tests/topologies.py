"""Nodes whose cards are joined unevenly, as NVIDIA's manuals draw them."""

from collections.abc import Sequence
from itertools import combinations

DGX_1_NVLINKS = {
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7)], 1),
    **dict.fromkeys([(2, 6), (3, 7)], 1),
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3)], 2),
    **dict.fromkeys([(4, 7), (5, 6), (6, 7)], 2),
}
"""A DGX-1 with V100: a hybrid cube mesh, in which each card has six links."""


def dgx_1_scores() -> list[int]:
    """The scores of all pairs: two cards under each PCIe switch, four a processor."""
    return [
        _pcie(a, b) + 100 * DGX_1_NVLINKS.get((a, b), 0)
        for a, b in combinations(range(8), 2)
    ]


def _pcie(a: int, b: int) -> int:
    return 50 if a // 2 == b // 2 else 30 if a // 4 == b // 4 else 10


def indices(cards: Sequence[str], uuids: Sequence[str]) -> list[int]:
    """Which of the cards these are, in order."""
    return sorted(uuids.index(card) for card in cards)
