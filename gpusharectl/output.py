"""What the commands draw: bars of cards, the same with and without colour."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

_FILLS = "█▓▒▚"
_FREE = "·"
_COLOURS = ("cyan", "yellow", "green", "magenta")


@dataclass(frozen=True, slots=True)
class Piece:
    """What one pod holds of a card, in units."""

    name: str
    units: int


def bar(capacity: int, pieces: Sequence[Piece], width: int = 40) -> Text:
    """Draw a card as a bar: a fill for each pod, dots for what is free.

    Every pod has at least one cell, so that a small one is not lost; the largest gives
    up cells for it.
    """
    cells = _cells(capacity, [piece.units for piece in pieces], width)
    text = Text()
    for number, count in enumerate(cells):
        text.append(_fill(number) * count, _colour(number))
    return text.append(_FREE * (width - sum(cells)), "dim")


def legend(pieces: Sequence[Piece]) -> Text:
    """Say which fill is whose, and how many units each has."""
    text = Text()
    for number, piece in enumerate(pieces):
        text.append("  " if number else "")
        text.append(_fill(number), _colour(number))
        text.append(f" {piece.name} {piece.units}")
    return text


def _cells(capacity: int, units: Sequence[int], width: int) -> list[int]:
    cells = [max(1, round(amount * width / capacity)) for amount in units]
    full = sum(units) >= capacity
    room = width if full else width - 1
    while sum(cells) > room and max(cells) > 1:
        cells[cells.index(max(cells))] -= 1
    while cells and full and sum(cells) < width:
        cells[cells.index(max(cells))] += 1
    return cells


def _fill(number: int) -> str:
    return _FILLS[number % len(_FILLS)]


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
