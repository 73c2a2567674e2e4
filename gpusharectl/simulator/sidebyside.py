"""Figures side by side at any width: a label gives way, a figure never.

Labels are wrapped first; columns that still have no place stand below, in a block of
their own with all the labels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table

from gpusharectl.output import Words

_GAP = 2
_FEWEST = 16
"""Cells that labels keep while several columns stand side by side."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is told of several things, such as policies: a row for each question."""

    heading: str
    """Of the labels."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """A label, and a figure for each column."""

    def width(self, column: int) -> int:
        """Give the cells that the widest figure of a column takes, or its heading."""
        figures = (figures[column] for _, figures in self.rows)
        return max(map(cell_len, (self.columns[column], *figures)))

    @property
    def label_width(self) -> int:
        """The cells that the longest label takes."""
        return max(cell_len(label) for label in (self.heading, *dict(self.rows)))


def side_by_side(figures: Figures, width: int) -> Iterator[Table]:
    """Give one table, or several to stand below one another.

    On a screen too narrow for a single column a table is wider than that.
    """
    room = width - min(figures.label_width, _FEWEST)
    for block in _blocks([figures.width(n) for n in range(len(figures.columns))], room):
        yield _table(figures, block, width)


def _blocks(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Give the columns that fit beside one another, block by block; at least one."""
    block: list[int] = []
    left = room
    for column, width in enumerate(widths):
        if block and width + _GAP > left:
            yield block
            block, left = [], room
        block.append(column)
        left -= width + _GAP
    yield block


def _table(figures: Figures, block: Sequence[int], width: int) -> Table:
    taken = sum(figures.width(column) + _GAP for column in block)
    label = min(figures.label_width, max(width - taken, _FEWEST))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    table.width = label + taken
    table.add_column(Words(figures.heading), width=label, overflow="fold")
    for column in block:
        heading = Words(figures.columns[column])
        size = figures.width(column)
        table.add_column(heading, justify="right", no_wrap=True, width=size)
    for told, cells in figures.rows:
        table.add_row(Words(told), *(Words(cells[column]) for column in block))
    return table
