"""The same picture again and again, until Ctrl-C."""

import time
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console, RenderableType
from rich.live import Live

from gpushare.kube.errors import ClusterError
from gpusharectl.top.rows import Top

_RESIZE_S = 0.5
"""How soon another size of the window shows."""

Frame = Callable[[Console, Top, str], RenderableType]
"""Lays out what was seen for a console; the text says why it is not what is so now."""


def watch(
    console: Console, look: Callable[[], Top], frame: Frame, *, every_s: float
) -> None:
    """Look, rest for so long, look again, until Ctrl-C.

    ``ClusterError`` where the first look fails; a later one leaves the picture standing
    and says so. The last picture stays on the terminal.
    """
    seen, lost = look(), ""
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:

            def show() -> None:
                live.update(frame(console, seen, lost), refresh=True)  # noqa: B023

            _rest(console, show, every_s)
            try:
                seen, lost = look(), ""
            except ClusterError as error:
                when = f"{seen.at:%H:%M:%S}"
                lost = f"What was seen at {when}; since then no answer: {error}"
    console.print(frame(console, seen, lost))


def _rest(console: Console, show: Callable[[], None], every_s: float) -> None:
    """Show the picture, and again where the window has another size."""
    end = time.monotonic() + every_s
    size = None
    while True:
        if size != console.size:
            size = console.size
            show()
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, _RESIZE_S))
