"""top on a terminal: its keys, and what the terminal gets."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Self

import pytest
from rich.console import Console, ConsoleDimensions, RenderableType
from rich.text import Text

from gpushare.kube.errors import Unavailable
from gpusharectl.top.rows import Sort, TopView
from gpusharectl.top.screen import Keys, View, parse_keys, press_key, watch
from tests.gpusharectl.top_states import top_of

ALTERNATE, BACK = "\x1b[?1049h", "\x1b[?1049l"
PAGE = 10


class FakeKeys(Keys):
    """Gives keys, or does what happens instead; at the end comes Ctrl-C."""

    def __init__(self, *happens: str | Callable[[], object]) -> None:
        self.happens = [*happens]
        self.open = 0

    def __enter__(self) -> Self:
        self.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.open -= 1

    def read(self, wait_s: float) -> list[str]:
        assert self.open == 1
        if not self.happens:
            raise KeyboardInterrupt
        now = self.happens[0]
        if isinstance(now, str):
            self.happens.pop(0)
            return [now]
        if now():
            self.happens.pop(0)
        return []


class FakeReader:
    """Returns values, or raises what happens instead; then the last values again."""

    def __init__(self, *happens: BaseException | None) -> None:
        self.happens = [*happens]
        self.reads = 0

    def __call__(self) -> TopView:
        self.reads += 1
        now = self.happens.pop(0) if self.happens else None
        if now is not None:
            raise now
        return top_of("at_work")


def watched(keys: FakeKeys, read: FakeReader) -> tuple[str, list[tuple[str, View]]]:
    """Return what the terminal got, and what was drawn; there are two rows."""
    page, drawn = io.StringIO(), []

    def frame(
        _console: Console, _top: TopView, lost: str, view: View
    ) -> tuple[RenderableType, int]:
        drawn.append((lost, view))
        return Text(f"picture {lost}"), min(view.skip, 2)

    console = Console(file=page, force_terminal=True, width=80, height=24)
    watch(console, read, frame, keys, every_s=0.01, view=View())
    assert keys.open == 0
    return page.getvalue(), drawn


@pytest.mark.parametrize("keys", [FakeKeys(), FakeKeys("q"), FakeKeys("eof")])
def test_the_last_values_stay_on_the_terminal(keys: FakeKeys) -> None:
    """The other screen is left before they are printed."""
    said, _ = watched(keys, FakeReader())
    assert said.index(ALTERNATE) < said.index(BACK) < said.rindex("picture")
    assert said.count(BACK) == 1


def test_a_reading_that_fails_leaves_the_values() -> None:
    """It says since when, until there is an answer again."""
    read = FakeReader(None, Unavailable("refused"))
    _, drawn = watched(FakeKeys(lambda: read.reads > 3), read)
    since = "These values are from 03:10:00; since then no answer: refused"
    lost = [one for one, _ in drawn]
    assert lost[0] == ""
    assert since in lost
    assert lost[-1] == ""


@pytest.mark.parametrize("error", [Unavailable("refused"), KeyboardInterrupt()])
def test_a_first_reading_that_fails_is_an_error(error: BaseException) -> None:
    """There is nothing to show; the command's own way out takes over."""
    keys = FakeKeys()
    with pytest.raises(type(error)):
        watched(keys, FakeReader(error))
    assert keys.open == 0


def test_a_later_error_that_is_no_silence_ends_it() -> None:
    """Such as a node that is gone; the terminal is left as it was."""
    keys = FakeKeys(lambda: False)
    with pytest.raises(RuntimeError):
        watched(keys, FakeReader(None, RuntimeError()))
    assert keys.open == 0


def test_another_size_of_the_window_shows_at_once() -> None:
    """Without another reading."""
    page, sizes = io.StringIO(), []
    console = Console(file=page, force_terminal=True, width=80, height=24)

    def frame(
        console: Console, _top: TopView, _lost: str, _view: View
    ) -> tuple[RenderableType, int]:
        sizes.append(console.width)
        console.size = ConsoleDimensions(100, 30)
        return Text("picture"), 0

    keys = FakeKeys("up", "up")
    watch(console, FakeReader(), frame, keys, every_s=600, view=View())
    assert sizes == [80, 100, 100]


def test_no_more_rows_are_above_than_there_are() -> None:
    """So that the way back up begins at once."""
    _, drawn = watched(FakeKeys("end", "up", "q"), FakeReader())
    assert [view.skip for _, view in drawn][-1] == 1


def after(*keys: str, view: View | None = None) -> View:
    found = view or View()
    for key in keys:
        step = press_key(found, key, PAGE)
        assert step is not None
        found = step
    return found


@pytest.mark.parametrize(
    ("key", "sort"), [("m", "mem"), ("s", "sm"), ("a", "allotted"), ("n", "name")]
)
def test_a_key_chooses_the_order(key: str, sort: Sort) -> None:
    """From the top again."""
    assert after("down", "down", key) == View(sort)


def test_the_arrows_move_the_rows() -> None:
    assert after("down", "down", "up").skip == 1
    assert after("up", "home").skip == 0
    assert after("page-down", "page-down", "page-up", "down").skip == PAGE + 1
    assert after("end").skip > 1000


def test_a_filter_is_typed() -> None:
    """While it is typed, letters are no keys; Esc shows all again."""
    typed = after("down", "/", "q", "n", "x", "backspace", "up", "")
    assert typed == View(text="qn", typing=True)
    assert after("enter", view=typed) == View(text="qn")
    assert after("esc", view=typed) == after("enter", "esc", view=typed) == View()


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("qä/", ["q", "ä", "/"]),
        ("\x1b[A\x1bOB\x1b[6~", ["up", "down", "page-down"]),
        ("\x1b[1;5Cx", ["", "x"]),
        ("\x1b", ["esc"]),
        ("\x1b[", [""]),
        ("\t\x7f\r", ["", "backspace", "enter"]),
    ],
)
def test_what_a_terminal_sends(sent: str, keys: list[str]) -> None:
    """A sequence that nobody knows is one key that does nothing."""
    assert list(parse_keys(sent)) == keys


@pytest.mark.parametrize("typing", [False, True])
@pytest.mark.parametrize("keys", [False, True])
def test_the_note_fits(*, typing: bool, keys: bool) -> None:
    """In 80 columns, with the longest order."""
    top = replace(top_of("at_work"))
    note = View("allotted", "bert", typing).note(top, 5, keys=keys)
    assert all(len(line) <= 80 for line in note.splitlines())
    assert ("q quit" in note) == (keys and not typing)
    assert ("Ctrl-C" in note) == (not keys)
