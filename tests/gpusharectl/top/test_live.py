"""The picture that comes again and again, and how it ends."""

import io

import pytest
from rich.console import Console, ConsoleDimensions, RenderableType
from rich.text import Text

from gpushare.kube.errors import Unavailable
from gpusharectl.top.command import watch
from gpusharectl.top.rows import Top
from tests.gpusharectl.topscenes import at_work

ALTERNATE, BACK = "\x1b[?1049h", "\x1b[?1049l"
SEEN = at_work().top()


class Looks:
    """Gives a picture, or what happens instead; at the end comes Ctrl-C."""

    def __init__(self, *happens: BaseException | None) -> None:
        self.happens = [*happens, KeyboardInterrupt()]

    def __call__(self) -> Top:
        now = self.happens.pop(0)
        if now is not None:
            raise now
        return SEEN


class Frames:
    """Draws little, and keeps what was said of each picture."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def __call__(self, _console: Console, _top: Top, lost: str) -> RenderableType:
        self.lost.append(lost)
        return Text(f"picture {lost}")


def watched(looks: Looks) -> tuple[str, Frames]:
    page, frames = io.StringIO(), Frames()
    console = Console(file=page, force_terminal=True, width=80, height=24)
    watch(console, looks, frames, every_s=0.01)
    return page.getvalue(), frames


def test_the_last_picture_stays_on_the_terminal() -> None:
    """The other screen is left before it is printed."""
    said, _ = watched(Looks(None, None, None))
    assert said.index(ALTERNATE) < said.index(BACK) < said.rindex("picture")
    assert said.count(BACK) == 1


def test_a_look_that_fails_leaves_the_picture() -> None:
    """It says since when, and forgets it as soon as there is an answer."""
    _, frames = watched(Looks(None, Unavailable("refused"), None, None))
    assert frames.lost[0] == ""
    assert frames.lost[1] == "What was seen at 03:10:00; since then no answer: refused"
    assert frames.lost[-1] == ""


def test_a_first_look_that_fails_is_an_error() -> None:
    """There is nothing to show, and no screen is taken."""
    with pytest.raises(Unavailable):
        watched(Looks(Unavailable("refused")))


def test_ctrl_c_in_the_middle_of_the_first_look() -> None:
    """There is nothing to show; the command's own way out takes over."""
    with pytest.raises(KeyboardInterrupt):
        watched(Looks())


def test_another_size_of_the_window_shows_at_once() -> None:
    """The picture is laid out anew, without another look."""
    page, sizes = io.StringIO(), []
    console = Console(file=page, force_terminal=True, width=80, height=24)

    def frame(console: Console, _top: Top, _lost: str) -> RenderableType:
        sizes.append(console.width)
        console.size = ConsoleDimensions(100, 30)
        return Text("picture")

    watch(console, Looks(None), frame, every_s=0.01)
    assert sizes == [80, 100, 100]
