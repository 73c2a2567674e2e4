"""A list that lives on a terminal, plain lines elsewhere; questions with no answer.

How a run ends: what was done, what was not, and the command that goes on.
"""

import io
from collections.abc import Callable
from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from gpushare.kube.errors import Forbidden, Unavailable, Unreachable
from gpusharectl.install.progress import (
    Closing,
    Exit,
    LiveScreen,
    NoAnswerError,
    Screen,
    Step,
    Trouble,
    Waiting,
    drawn,
    follow,
    screen_for,
)
from tests.gpusharectl.install.stand_ins import Listener

PULLING = Waiting("plugin on gpu-1", "pulling the image x", "2026-11-21T12:00:00Z")
MADE = Waiting("plugin on gpu-2", "its containers to be created")


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=80, color_system=None), out


def test_the_console_decides() -> None:
    assert isinstance(screen_for(console(terminal=True)[0]), LiveScreen)
    assert isinstance(screen_for(console()[0]), Screen)


def test_plain_lines_say_each_change_once() -> None:
    plain, out = console()
    screen = Screen(plain)
    screen.begin("Waiting")
    for waits in ([PULLING, MADE], [PULLING, MADE], [MADE], [PULLING, MADE]):
        screen.wait(waits)
    screen.settle()
    screen.say("all run")
    assert out.getvalue().splitlines() == [
        "Waiting   waiting for plugin on gpu-1: pulling the image x",
        "          waiting for plugin on gpu-2: its containers to be created",
        "          waiting for plugin on gpu-1: pulling the image x",
        "          all run",
    ]


def test_other_words_on_the_same_topic_are_no_news() -> None:
    plain, out = console()
    screen = Screen(plain)
    for port in (34573, 44690):
        screen.wait([Waiting("gpu-1", f"refused at {port}", topic="no image")])
    assert out.getvalue().count("\n") == 1


def test_nothing_is_cut_or_wrapped_and_no_markup_is_read() -> None:
    plain, out = console()
    screen = Screen(plain)
    screen.note("[red]" + "x" * 200)
    assert out.getvalue() == "[red]" + "x" * 200 + "\n"


def test_the_list_counts_how_long_each_waits() -> None:
    now = datetime(2026, 11, 21, 12, 0, 48, tzinfo=UTC)
    assert drawn([PULLING, MADE], now).plain.splitlines() == [
        "          waiting for plugin on gpu-1: pulling the image x, 48s",
        "          waiting for plugin on gpu-2: its containers to be created",
    ]


def test_the_list_goes_when_nothing_is_waited_for() -> None:
    live, out = console(terminal=True)
    screen = LiveScreen(live)
    screen.wait([PULLING])
    screen.wait([MADE])
    screen.settle()
    screen.settle()
    assert "its containers to be created" in out.getvalue()
    screen.begin("Cards")
    screen.say("gpu-1: 2 cards")
    assert out.getvalue().endswith("Cards     gpu-1: 2 cards\n")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("gpu-1\n", "gpu-1"), ("\n", "gpu-9"), ("", "nobody")],
)
def test_questions(typed: str, expected: str) -> None:
    @click.command()
    def asking() -> None:
        try:
            click.echo("=" + Screen(Console()).ask("Which?", "gpu-9"))
        except NoAnswerError:
            click.echo("=nobody")

    ran = CliRunner().invoke(asking, input=typed)
    assert ran.output.splitlines()[-1].endswith(f"={expected}")


@pytest.mark.parametrize(
    ("typed", "expected"), [("y\n", "True"), ("\n", "False"), ("", "nobody")]
)
def test_consent(typed: str, expected: str) -> None:
    @click.command()
    def asking() -> None:
        try:
            click.echo(f"={Screen(Console()).confirm('Go on?')}")
        except NoAnswerError:
            click.echo("=nobody")

    ran = CliRunner().invoke(asking, input=typed)
    assert ran.output.splitlines()[-1].endswith(f"={expected}")


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
