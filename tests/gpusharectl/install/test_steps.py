"""How a run ends: what was done, what was not, and the command that goes on."""

from collections.abc import Callable

import pytest

from gpushare.kube.errors import Forbidden, Unavailable, Unreachable
from gpusharectl.install.progress import Closing, Exit, Step, Trouble, follow
from tests.gpusharectl.install.stand_ins import Listener

CLOSING = Closing("gpusharectl install --yes", "gpusharectl uninstall")


def raising(error: BaseException) -> Callable[[], Trouble | None]:
    def act() -> Trouble | None:
        raise error

    return act


def well() -> None:
    return None


def steps(act: Callable[[], Trouble | None]) -> list[Step]:
    return [
        Step("one", well),
        Step("two", well),
        Step("three", act),
        Step("four", well),
    ]


def test_all_well_says_nothing() -> None:
    screen = Listener()
    assert follow(steps(well), screen, CLOSING) == Exit.DONE
    assert screen.lines == []


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda: Trouble("it broke."), "it broke."),
        (raising(KeyboardInterrupt()), "interrupted; no file is half-written, and"),
        (raising(Unavailable("504")), "504."),
        (
            raising(Unreachable("refused")),
            "the API server cannot be reached (refused); is this the right context?",
        ),
        (
            raising(Forbidden("no pods for you")),
            "you have no permission for this (no pods for you); use an",
        ),
        (
            raising(OSError(28, "No space left on device", "/etc/x")),
            "/etc/x: No space left on device; the file was not changed.",
        ),
    ],
)
def test_three_sentences(act: Callable[[], Trouble | None], why: str) -> None:
    screen = Listener()
    assert follow(steps(act), screen, CLOSING) == Exit.STOPPED
    first, second, third = screen.lines
    assert first.startswith(f"Stopped at three: {why}")
    assert second == "Done: one, two. Not done: three, four."
    assert third == (
        "To go on: gpusharectl install --yes    To undo all: gpusharectl uninstall"
    )


def test_what_was_refused_at_once_needs_no_undoing() -> None:
    screen = Listener()
    refused = Trouble("no", "do this", Exit.REFUSED)
    assert follow([Step("one", lambda: refused)], screen, CLOSING) == Exit.REFUSED
    assert screen.lines == [
        "Stopped at one: no.",
        "Done: nothing. Not done: one.",
        "To go on: do this",
    ]


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        follow(steps(raising(ZeroDivisionError())), Listener(), CLOSING)
