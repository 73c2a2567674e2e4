"""A list that lives on a terminal, plain lines elsewhere; questions with no answer.

How a run ends: what was done, what was not, and the command that goes on.
"""

import io
from dataclasses import replace
from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from gpushare.kube.errors import Forbidden, Unavailable, Unreachable
from gpusharectl.installer.progress import (
    Exit,
    InstallError,
    InstallStep,
    LiveScreen,
    Screen,
    Waiting,
    draw_waits,
    group_waits,
    run_steps,
)
from tests.gpusharectl.installer.installed_cluster import InstalledCluster, Listener

PULLING = Waiting("plugin on gpu-1", "pulling the image x", "2026-11-21T12:00:00Z")
IMAGE = "registry.example.org/team/gpushare:0.1.0"
MADE = Waiting("plugin on gpu-2", "its containers to be created")


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=80, color_system=None), out


def test_a_list_that_is_cut_off_goes_too(world: InstalledCluster) -> None:
    """Else the terminal's cursor stays hidden after Ctrl-C."""
    live, out = console(terminal=True)
    context = replace(world.context(), screen=LiveScreen(live))

    def interrupted() -> None:
        raise KeyboardInterrupt

    world.nodes.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        context.until(lambda: [PULLING])
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert out.getvalue().rindex(show) > out.getvalue().rindex(hide)


def test_an_api_server_that_has_just_started_may_forbid(
    world: InstalledCluster,
) -> None:
    """It answers before it has read who may do what; 403 without that ends a wait."""
    forbidden = Forbidden("nodes is forbidden")
    answers = [Unavailable("connection refused"), forbidden, forbidden]

    def look() -> list[Waiting]:
        if answers:
            raise answers.pop(0)
        return []

    assert world.context().until(look) == ()
    answers.append(forbidden)
    with pytest.raises(Forbidden):
        world.context().until(look)


def test_plain_lines_say_each_change_once() -> None:
    plain, out = console()
    screen = Screen(plain)
    screen.begin_step("Waiting")
    for waits in ([PULLING, MADE], [PULLING, MADE], [MADE], [PULLING, MADE]):
        screen.wait(waits)
    screen.settle()
    for port in (34573, 44690):
        screen.wait([Waiting("gpu-1", f"refused at {port}", topic="no image")])
    screen.say("all run")
    # Nothing is cut or wrapped, and no markup is read.
    screen.note("[red]" + "x" * 200)
    assert out.getvalue().splitlines() == [
        "Waiting   waiting for plugin on gpu-1: pulling the image x",
        "          waiting for plugin on gpu-2: its containers to be created",
        "          waiting for plugin on gpu-1: pulling the image x",
        "          waiting for gpu-1: refused at 34573",
        "          all run",
        "[red]" + "x" * 200,
    ]


def test_the_list_counts_how_long_each_waits() -> None:
    now = datetime(2026, 11, 21, 12, 0, 48, tzinfo=UTC)
    plain, out = console()
    plain.print(draw_waits([PULLING, MADE], now))
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "          waiting for plugin on gpu-1: pulling the image x, 48s",
        "          waiting for plugin on gpu-2: its containers to be created",
    ]


def test_a_terminal_folds_at_words_and_what_is_copied_stays_whole() -> None:
    wide, out = console(terminal=True)
    screen = Screen(wide)
    screen.begin_step("Checking")
    screen.say(f"the image stays {IMAGE}; --image changes it")
    screen.note("Stopped: " + "word " * 20)
    screen.show("gpusharectl install " + "--nodes " * 12)
    *folded, command = (line.rstrip() for line in out.getvalue().splitlines())
    assert folded == [
        f"Checking  the image stays {IMAGE}; --image",
        "          changes it",
        f"Stopped: {'word ' * 14}".rstrip(),
        f"{'word ' * 6}".rstrip(),
    ]
    assert len(command) > 100


def test_those_who_wait_for_the_same_are_told_together() -> None:
    """Since the first of them began; all are counted."""
    many = [replace(PULLING, who=f"plugin on gpu-{at}") for at in range(1, 6)]
    later = replace(many[0], who="plugin on gpu-0", since="2026-11-21T12:00:07Z")
    unknown, other = replace(later, since=""), replace(later, who="exporter on gpu-1")
    (one, *others) = group_waits([later, unknown, *many, MADE, other])
    assert one.who == "plugin on gpu-0, gpu-0, gpu-1 and 4 more"
    assert (one.since, others) == (PULLING.since, [MADE, other])
    plain, out = console()
    screen = Screen(plain)
    screen.wait(many[:2])
    screen.wait(many[:3])
    assert [line.strip() for line in out.getvalue().splitlines()] == [
        "waiting for plugin on gpu-1, gpu-2: pulling the image x",
        "waiting for plugin on gpu-3: pulling the image x",
    ]


def test_the_list_goes_when_nothing_is_waited_for() -> None:
    live, out = console(terminal=True)
    screen = LiveScreen(live)
    screen.wait([PULLING])
    screen.wait([MADE])
    screen.settle()
    screen.settle()
    assert "its containers to be created" in out.getvalue()
    screen.begin_step("Cards")
    screen.say("gpu-1: 2 cards")
    assert out.getvalue().endswith("Cards     gpu-1: 2 cards\n")


@pytest.mark.parametrize(
    ("what", "typed", "said"),
    [
        ("which", "gpu-1\n", "gpu-1"),
        ("which", "\n", "gpu-9"),
        ("which", "", "the same command with --nodes"),
        ("whether", "y\n", "None"),
        ("whether", "\n", "you said no; nothing was changed"),
        ("whether", "", "the same command with --yes"),
    ],
)
def test_questions(what: str, typed: str, said: str) -> None:
    @click.command()
    def asking() -> None:
        screen = Screen(Console())
        try:
            which = what == "which"
            answer = (
                screen.ask("?", "gpu-9", "--nodes") if which else screen.confirm("?")
            )
        except InstallError as trouble:
            answer = trouble.remedy or trouble.why
        click.echo(f"={answer}")

    ran = CliRunner().invoke(asking, input=typed)
    assert ran.output.splitlines()[-1].endswith(f"={said}")


@pytest.mark.parametrize(
    ("key", "why", "code"),
    [
        (KeyboardInterrupt, "interrupted; nothing was changed", Exit.STOPPED),
        (EOFError, "no answer was given; nothing was changed", Exit.USAGE),
    ],
)
@pytest.mark.parametrize("which", ["ask", "confirm"])
def test_ctrl_c_and_ctrl_d_at_a_question(
    which: str,
    key: type[BaseException],
    why: str,
    code: Exit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is somebody to ask, who does not answer."""

    def pressed(_: str) -> str:
        raise key

    monkeypatch.setattr("click.termui.visible_prompt_func", pressed)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    screen = Screen(console()[0])
    with pytest.raises(InstallError) as error:
        screen.ask("?", "a", "--nodes") if which == "ask" else screen.confirm("?")
    assert (error.value.why, error.value.exit_code) == (why, code)


def well() -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (InstallError("it broke."), "it broke."),
        (KeyboardInterrupt(), "interrupted; no file is half-written, and"),
        (Unavailable("504"), "504."),
        (
            Unreachable("refused"),
            "the API server cannot be reached (refused); it has answered before.",
        ),
        (
            Forbidden("no pods for you"),
            "you have no permission for this (no pods for you); use an",
        ),
        (
            OSError(28, "No space left on device", "/etc/x"),
            "/etc/x: No space left on device; the file was not changed.",
        ),
    ],
)
def test_three_sentences(error: BaseException, why: str) -> None:
    def act() -> None:
        raise error

    steps = [
        InstallStep("one", well),
        InstallStep("two", well, "Title"),
        InstallStep("three", act),
    ]
    screen = Listener()
    back = {"go back": "old", "undo all": "none"}
    code = run_steps(
        [*steps, InstallStep("four", well)], screen, lambda: "again", lambda: back
    )
    assert code == Exit.STOPPED
    title, first, second, *ways = screen.lines
    assert (title, first.startswith(f"Stopped at three: {why}")) == ("== Title", True)
    assert second == "Done: one, two. Not done: three, four."
    assert ways == ["To go on: again", "To go back: old", "To undo all: none"]


def test_what_was_refused_at_once_needs_no_undoing() -> None:
    def refuse() -> None:
        raise InstallError("no", "do this", Exit.REFUSED)

    screen = Listener()
    assert (
        run_steps([InstallStep("one", refuse)], screen, str, lambda: {"undo": "x"})
        == Exit.REFUSED
    )
    assert screen.lines == [
        "Stopped at one: no.",
        "Done: nothing. Not done: one.",
        "To go on: do this",
    ]
