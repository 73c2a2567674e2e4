"""``top`` on a terminal: drawn again and again, and what its keys do.

The terminal echoes nothing meanwhile, and is as before in the end, however that comes.
"""

import codecs
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NoReturn, Self

from rich.console import Console, RenderableType
from rich.live import Live

from gpushare.kube.errors import ClusterError
from gpusharectl.top.rows import Sort, TopView

_ESCAPE_S = 0.05
"""A key that begins with ESC may come in two pieces."""
_TICK_S = 0.2
"""How soon new values, or a new size of the window, are noticed."""
_SORTS: dict[str, Sort] = {"m": "mem", "s": "sm", "a": "allotted", "n": "name"}
_HELP = "q quit  ↑↓ scroll  / filter  sort: m memory  s SM  a allotted  n name"
_SORTED: dict[Sort | None, str] = {
    None: "",
    "mem": ", most memory first",
    "sm": ", most SM first",
    "allotted": ", most allotted first",
    "name": ", by name",
}
_LAST = 1 << 30


@dataclass(frozen=True, slots=True)
class View:
    """What the keys have chosen: order, filter, and how many rows are above.

    ``typing``: the filter is being typed.
    """

    sort: Sort | None = None
    text: str = ""
    typing: bool = False
    skip: int = 0

    def note(self, top: TopView, every_s: float, *, keys: bool) -> str:
        """Return the lines below the table; without ``keys`` only Ctrl-C ends it."""
        said = f"{top.at:%H:%M:%S} UTC, every {every_s:g} s{_SORTED[self.sort]}"
        if not keys:
            return f"{said}; Ctrl-C to quit"
        if self.typing:
            return f"{said}\nfilter: {self.text}▏  Enter to keep it, Esc for all"
        if self.text:
            said += f', only "{self.text}"'
        return f"{said}\n{_HELP}"


def press_key(view: View, key: str, page: int) -> View | None:
    """Return the view after a key; None if it is to end. ``page``: rows of a screen.

    >>> press_key(View(skip=3), "down", 10), press_key(View(), "q", 10)
    (View(sort=None, text='', typing=False, skip=4), None)
    """
    if key == "eof":
        return None
    if view.typing:
        return _typed(view, key)
    if key == "q":
        return None
    if key in _SORTS:
        return replace(view, sort=_SORTS[key], skip=0)
    if key in ("/", "esc"):
        return replace(view, typing=key == "/", text="", skip=0)
    moves = {"up": -1, "down": 1, "page-up": -page, "page-down": page}
    ends = {"home": -_LAST, "end": _LAST}
    by = {**moves, **ends}.get(key, 0)
    return replace(view, skip=max(0, view.skip + by))


def _typed(view: View, key: str) -> View:
    if key in ("enter", "esc"):
        return replace(view, typing=False, text=view.text if key == "enter" else "")
    if key == "backspace":
        return replace(view, text=view.text[:-1], skip=0)
    if len(key) == 1:
        return replace(view, text=view.text + key, skip=0)
    return view


class Keys:
    """Where keys come from; here from nowhere, as if standard input is no terminal."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, wait_s: float) -> list[str]:
        """Wait for keys, so long at most; ``eof`` if none can come any more."""
        time.sleep(wait_s)
        return []


_NAMED = {
    **{f"\x1b{kind}A": "up" for kind in "[O"},
    **{f"\x1b{kind}B": "down" for kind in "[O"},
    **{f"\x1b{end}": "home" for end in ("[H", "OH", "[1~", "[7~")},
    **{f"\x1b{end}": "end" for end in ("[F", "OF", "[4~", "[8~")},
    "\x1b[5~": "page-up",
    "\x1b[6~": "page-down",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x04": "eof",
}


def parse_keys(text: str) -> Iterator[str]:
    r"""Yield the keys that a terminal has sent: characters, and names of others.

    >>> list(parse_keys("q\x1b[A\x1b[5~\x1b[99;5u\x1b"))
    ['q', 'up', 'page-up', '', 'esc']
    """
    place = 0
    while place < len(text):
        end = place + 1
        if text[place] == "\x1b" and text[end : end + 1] in ("[", "O"):
            end += 1
            # A sequence ends with its first letter or ~.
            while end < len(text) and not (text[end].isalpha() or text[end] == "~"):
                end += 1
            end += 1
        key = text[place:end]
        place = end
        if key == "\x1b":
            yield "esc"
        else:
            yield _NAMED.get(key, key if key.isprintable() else "")


class Keyboard(Keys):
    """The keys of a terminal, one by one and without an echo."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._terminal)
        # Ctrl-C and Ctrl-Z remain signals.
        tty.setcbreak(self._terminal)
        return self

    def __exit__(self, *_: object) -> None:
        # The terminal may be gone. Keys that nobody has read are not for the shell.
        with suppress(termios.error):
            termios.tcsetattr(self._terminal, termios.TCSAFLUSH, self._before)

    def read(self, wait_s: float) -> list[str]:
        """As ``Keys.read``; a key that came in two pieces is one."""
        if not self._waits(wait_s):
            return []
        pressed_bytes = self._bytes()
        if pressed_bytes.endswith(b"\x1b") and self._waits(_ESCAPE_S):
            pressed_bytes += self._bytes()
        return [*parse_keys(self._decode(pressed_bytes))] if pressed_bytes else ["eof"]

    def _waits(self, wait_s: float) -> bool:
        return bool(select.select([self._terminal], [], [], wait_s)[0])

    def _bytes(self) -> bytes:
        try:
            return os.read(self._terminal, 1024)
        except OSError:
            # The terminal is gone.
            return b""


def open_keyboard() -> Keys:
    """Return the keys of standard input, or none."""
    terminal = sys.stdin is not None and sys.stdin.isatty()
    return Keyboard(sys.stdin.fileno()) if terminal else Keys()


class _Readings:
    """Reads in the background, so that keys are answered meanwhile."""

    def __init__(self, read: Callable[[], TopView], every_s: float) -> None:
        self._read = read
        self._every_s = every_s
        self._due_s = time.monotonic() + every_s
        self._busy = False
        self._answers: SimpleQueue[TopView | BaseException] = SimpleQueue()

    def take(self) -> TopView | BaseException | None:
        """Return what has come since the last time; begin to read if it is time."""
        if not self._busy and time.monotonic() >= self._due_s:
            self._busy = True
            # A daemon, so that one that hangs does not keep the process.
            Thread(target=self._work, name="top-reads", daemon=True).start()
        try:
            found = self._answers.get_nowait()
        except Empty:
            return None
        self._busy = False
        self._due_s = time.monotonic() + self._every_s
        return found

    def _work(self) -> None:
        try:
            self._answers.put(self._read())
        except BaseException as error:  # noqa: BLE001 - whoever takes it raises it
            self._answers.put(error)


class _Stopped(Exception):
    """Ctrl-Z was pressed."""


def stop(*_: object) -> NoReturn:
    """Let ``watch`` restore the terminal and stop: the handler of Ctrl-Z."""
    raise _Stopped


Frame = Callable[[Console, TopView, str, View], tuple[RenderableType, int]]
"""Draws values for a console; the text says why they are not current.

Also returns how many rows are above; those that the keys ask for may not be there.
"""


def watch(
    console: Console,
    read: Callable[[], TopView],
    frame: Frame,
    keys: Keys,
    *,
    every_s: float,
    view: View,
) -> None:
    """Read and draw every ``every_s`` seconds, until a key or Ctrl-C ends it.

    An error of the first reading is raised. If a later one fails with a
    ``ClusterError``, the last values stay on the screen, with the reason. They also
    stay on the terminal at the end.
    """
    with keys:
        shown = _Shown(console, frame, view, read())
    readings = _Readings(read, every_s)
    while True:
        try:
            with (
                suppress(KeyboardInterrupt),
                keys,
                Live(console=console, screen=True, auto_refresh=False) as live,
            ):
                shown.run(live, keys, readings)
        except _Stopped:
            # It goes on from here when the shell lets it.
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            break
    console.print(shown.picture())


class _Shown:
    """The values on the screen, and how they are shown."""

    def __init__(
        self, console: Console, frame: Frame, view: View, seen: TopView
    ) -> None:
        self._console = console
        self._frame = frame
        self._view = view
        self._seen = seen
        self._lost = ""

    def run(self, live: Live, keys: Keys, readings: "_Readings") -> None:
        """Draw whenever something changes, until a key ends it."""
        drawn: object = None
        while True:
            # It is drawn again when the window changes its size.
            now = (self._console.size, id(self._seen), self._lost, self._view)
            if now != drawn:
                live.update(self.picture(), refresh=True)
                drawn = (*now[:3], self._view)
            for key in keys.read(_TICK_S):
                after = press_key(self._view, key, self._console.height // 2)
                if after is None:
                    return
                self._view = after
            self._take(readings.take())

    def picture(self) -> RenderableType:
        """Draw it; the view then skips no more rows than there are."""
        found, skip = self._frame(self._console, self._seen, self._lost, self._view)
        self._view = replace(self._view, skip=skip)
        return found

    def _take(self, reading: TopView | BaseException | None) -> None:
        if isinstance(reading, ClusterError):
            when = f"{self._seen.at:%H:%M:%S}"
            text = f"These values are from {when}; since then no answer"
            self._lost = f"{text}: {reading}"
        elif isinstance(reading, BaseException):
            raise reading
        elif reading is not None:
            self._seen, self._lost = reading, ""
