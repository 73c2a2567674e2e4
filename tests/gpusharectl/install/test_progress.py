"""A list that lives on a terminal, plain lines elsewhere; questions with no answer."""

import io
from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from gpusharectl.install.progress import (
    LiveScreen,
    NoAnswerError,
    Screen,
    Waiting,
    drawn,
    screen_for,
)

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
