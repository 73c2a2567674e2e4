"""Run steps one after another and show them; on a failure say how to go on.

On a terminal, waits are a list that is updated in place; otherwise each change is a
line. Every step can be run again and leaves alone what is done already. So after any
failure, Ctrl-C included, the way on is the same command again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gpushare.kube.errors import ClusterError, Forbidden, Unreachable
from gpusharectl.output import UNKNOWN, age

_MARGIN = 10
"""Columns of the step's title; its lines stand below one another."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who waits for what; ``since`` is a time in ISO format, "" if unknown.

    ``hopeless``: waiting longer will not help. ``topic`` identifies the wait if the
    words of ``what`` change and their meaning does not.
    """

    who: str
    what: str
    since: str = ""
    hopeless: bool = False
    topic: str = ""

    def __str__(self) -> str:
        return f"{self.who}: {self.what}"


class NoAnswerError(Exception):
    """A question was asked, but there is no terminal to answer it."""


class Screen:
    """Shows steps and asks questions; this one prints a line for each change."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._title = ""
        self._shown: dict[str, str] = {}

    def begin(self, title: str) -> None:
        """Begin a step; its lines stand beside the title."""
        self.settle()
        self._title = title

    def say(self, text: str) -> None:
        """Show lines of the present step."""
        for line in text.splitlines():
            start = f"{self._title:<{_MARGIN - 1}} "
            self._title = ""
            self._print(Text(start, "bold") + Text(line))

    def note(self, text: str) -> None:
        """Show text that belongs to no step; it is never cut."""
        self._print(Text(text))

    def wait(self, waits: Sequence[Waiting]) -> None:
        """Show what is waited for now."""
        for one in waits:
            if self._shown.get(one.who) != (one.topic or one.what):
                self.say(f"waiting for {one}")
        self._shown = {one.who: one.topic or one.what for one in waits}

    def settle(self) -> None:
        """End the present wait."""
        self._shown = {}

    def ask(self, question: str, default: str) -> str:
        """Return a person's answer; ``NoAnswerError`` if there is no terminal."""
        try:
            answer = click.prompt(question, default=default or None, type=str)
        except click.Abort as error:
            raise NoAnswerError(question) from error
        return str(answer)

    def confirm(self, question: str) -> bool:
        """Return whether a person says yes; ``NoAnswerError`` without a terminal."""
        try:
            return click.confirm(question, default=False)
        except click.Abort as error:
            raise NoAnswerError(question) from error

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)


class LiveScreen(Screen):
    """Shows waits as a list that is updated in place, with their duration."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live: Live | None = None

    def wait(self, waits: Sequence[Waiting]) -> None:
        """Show what is waited for now, in place of the last list."""
        if self._live is None:
            self._live = Live(console=self.console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(drawn(waits, datetime.now(UTC)), refresh=True)

    def settle(self) -> None:
        """Remove the list."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def drawn(waits: Sequence[Waiting], now: datetime) -> Text:
    """Return the list of waits, each with its duration.

    >>> print(drawn([Waiting("gpu-1", "pulling")], datetime.now(UTC)))
              waiting for gpu-1: pulling
    """
    lines = []
    for one in waits:
        line = f"{'':{_MARGIN}}waiting for {one}"
        lasted = age(one.since, now)
        lines.append(line if lasted == UNKNOWN else f"{line}, {lasted}")
    return Text("\n".join(lines), overflow="ellipsis", no_wrap=True)


def screen_for(console: Console) -> Screen:
    """Return the screen that suits the console."""
    return LiveScreen(console) if console.is_terminal else Screen(console)


class Exit(IntEnum):
    """The exit codes, as ``--help`` explains them."""

    DONE = 0
    STOPPED = 1
    USAGE = 2
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a step failed, in one sentence.

    ``remedy`` is what to do if the same command again does not help; ``exit_code`` is
    ``REFUSED`` if nothing was tried at all.
    """

    why: str
    remedy: str = ""
    exit_code: Exit = Exit.STOPPED


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do; ``name`` completes both *Done:* and *Not done:*."""

    name: str
    act: Callable[[], Trouble | None]


@dataclass(frozen=True, slots=True)
class Closing:
    """The commands that the last lines of a failure offer: to go on, and to undo."""

    again: str
    undo: str = ""


def follow(steps: Sequence[Step], screen: Screen, closing: Closing) -> Exit:
    """Run the steps in turn; stop at the first failure and say where things stand."""
    for number, step in enumerate(steps):
        trouble = _run(step)
        if trouble is not None:
            screen.settle()
            for line in verdict(steps, number, trouble, closing):
                screen.note(line)
            return trouble.exit_code
    return Exit.DONE


def verdict(
    steps: Sequence[Step], reached: int, trouble: Trouble, closing: Closing
) -> list[str]:
    """Return what was done, what was not, and how to go on."""
    done = ", ".join(step.name for step in steps[:reached])
    left = ", ".join(step.name for step in steps[reached:])
    ways = f"To go on: {trouble.remedy or closing.again}"
    if closing.undo and done:
        ways += f"    To undo all: {closing.undo}"
    why = " ".join(trouble.why.split())
    stop = "" if why.endswith((".", "?", "!")) else "."
    return [
        f"Stopped at {steps[reached].name}: {why}{stop}",
        f"Done: {done or 'nothing'}. Not done: {left}.",
        ways,
    ]


def _run(step: Step) -> Trouble | None:
    try:
        return step.act()
    except KeyboardInterrupt:
        return Trouble("interrupted; no file is half-written, and what is done stays")
    except ClusterError as error:
        return Trouble(in_words(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        why = error.strerror or str(error)
        return Trouble(f"{where}{why}; the file was not changed")


def in_words(error: ClusterError) -> str:
    """Return what an API server's error means for the person who installs."""
    if isinstance(error, Unreachable):
        return f"the API server cannot be reached ({error}); is this the right context?"
    if isinstance(error, Forbidden):
        return (
            f"you have no permission for this ({error}); use an administrator's "
            "kubeconfig"
        )
    return str(error)
