"""A bar for long runs, on a terminal alone; it goes when the answer comes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gpusharectl.simulator.engine import Progress as Told

_LONG = 500
"""Steps below which a run ends before anybody could look at a bar."""
_EVERY = 20

Began = Callable[[str], Told]
"""Called as a run begins, with its name; gives what to tell of its steps."""


@contextmanager
def shown(console: Console) -> Iterator[Began]:
    """Lend the way to tell of runs; ``console`` is standard error."""
    if not console.is_terminal:
        yield lambda _name: lambda _done, _total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield lambda name: _teller(bar, name)


def _teller(bar: Progress, name: str) -> Told:
    task = bar.add_task(name, total=None, visible=False)

    def tell(done: int, total: int) -> None:
        if total >= _LONG and (done % _EVERY == 0 or done == total):
            bar.update(task, completed=done, total=total, visible=done < total)

    return tell
