"""What is seen while it works: a living list on a terminal, else one line a change.

One step after another, and three sentences where one fails. Nothing is hidden.

Every step can be done again: what is done already is left as it is. So the way on
after any failure, Ctrl-C included, is the same command once more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Protocol, runtime_checkable

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gpushare.kube.errors import ClusterError, Forbidden, Unreachable
from gpusharectl.output import UNKNOWN, age

_MARGIN = 10
"""Columns of the step's title: what is said stands in one line below another."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who waits for what; ``since`` is a moment in ISO format, empty where unknown.

    ``hopeless`` is a wait that no time will end; ``topic`` stands for ``what`` where
    its words change and its meaning does not.
    """

    who: str
    what: str
    since: str = ""
    hopeless: bool = False
    topic: str = ""

    def __str__(self) -> str:
        return f"{self.who}: {self.what}"


class NoAnswerError(Exception):
    """A question was asked, and there is nobody to answer."""


@runtime_checkable
class Screen(Protocol):
    """Where the steps tell what they do, and ask."""

    def begin(self, title: str) -> None:
        """Open a new step; what is said until the next one stands beside its title."""
        ...

    def say(self, text: str) -> None:
        """Tell one thing of this step."""
        ...

    def note(self, text: str) -> None:
        """Tell something that belongs to no step; it is never cut."""
        ...

    def wait(self, waits: Sequence[Waiting]) -> None:
        """Show what is waited for now, in place of what was."""
        ...

    def settle(self) -> None:
        """Nothing is waited for any more."""
        ...

    def ask(self, question: str, default: str) -> str:
        """Let a person answer; ``NoAnswerError`` where there is none."""
        ...

    def confirm(self, question: str) -> bool:
        """Let a person say yes; ``NoAnswerError`` where there is none."""
        ...


class Spoken:
    """What both screens have in common: titles, lines, questions."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._title = ""

    def begin(self, title: str) -> None:
        """Open a new step; see ``Screen``."""
        self.settle()
        self._title = title

    def say(self, text: str) -> None:
        """Tell one thing; see ``Screen``."""
        for line in text.splitlines():
            start = f"{self._title:<{_MARGIN - 1}} "
            self._title = ""
            self._print(Text(start, "bold") + Text(line))

    def note(self, text: str) -> None:
        """Tell something; see ``Screen``."""
        self._print(Text(text))

    def settle(self) -> None:
        """Nothing is waited for; see ``Screen``."""

    def ask(self, question: str, default: str) -> str:
        """Let a person answer; see ``Screen``."""
        try:
            answer = click.prompt(question, default=default or None, type=str)
        except click.Abort as error:
            raise NoAnswerError(question) from error
        return str(answer)

    def confirm(self, question: str) -> bool:
        """Let a person say yes; see ``Screen``."""
        try:
            return click.confirm(question, default=False)
        except click.Abort as error:
            raise NoAnswerError(question) from error

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)


class PlainScreen(Spoken):
    """One line a change, so that a log of it reads well."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._shown: dict[str, str] = {}

    def wait(self, waits: Sequence[Waiting]) -> None:
        """Print what changed since the last time; see ``Screen``."""
        for one in waits:
            if self._shown.get(one.who) != (one.topic or one.what):
                self.say(f"waiting for {one}")
        self._shown = {one.who: one.topic or one.what for one in waits}

    def settle(self) -> None:
        """Nothing is waited for; see ``Screen``."""
        self._shown = {}


class LiveScreen(Spoken):
    """A list that stands still and counts the seconds of each wait."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live: Live | None = None

    def wait(self, waits: Sequence[Waiting]) -> None:
        """Show the list in place of the last one; see ``Screen``."""
        if self._live is None:
            self._live = Live(console=self.console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(drawn(waits, datetime.now(UTC)), refresh=True)

    def settle(self) -> None:
        """Take the list away; see ``Screen``."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def drawn(waits: Sequence[Waiting], now: datetime) -> Text:
    """Draw the list of waits, each with how long it has lasted.

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
    """Choose the screen by what the console is."""
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class Exit(IntEnum):
    """The exit codes, as ``--help`` tells them."""

    DONE = 0
    STOPPED = 1
    USAGE = 2
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a step did not come about, in a sentence.

    ``cure`` is the command or deed that goes on, where the same command again is not
    it; ``exit_code`` is ``REFUSED`` where nothing was tried at all.
    """

    why: str
    cure: str = ""
    exit_code: Exit = Exit.STOPPED


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do; ``name`` completes both *Done:* and *Not done:*."""

    name: str
    act: Callable[[], Trouble | None]


@dataclass(frozen=True, slots=True)
class Closing:
    """What the last lines of a failure offer: the way on, and the way back."""

    again: str
    undo: str = ""


def follow(steps: Sequence[Step], screen: Screen, closing: Closing) -> Exit:
    """Take the steps in turn; stop at the first trouble and say where things stand."""
    for number, step in enumerate(steps):
        trouble = _taken(step)
        if trouble is not None:
            screen.settle()
            for line in verdict(steps, number, trouble, closing):
                screen.note(line)
            return trouble.exit_code
    return Exit.DONE


def verdict(
    steps: Sequence[Step], reached: int, trouble: Trouble, closing: Closing
) -> list[str]:
    """Say what was done, what was not, and how to go on."""
    done = ", ".join(step.name for step in steps[:reached])
    left = ", ".join(step.name for step in steps[reached:])
    ways = f"To go on: {trouble.cure or closing.again}"
    if closing.undo and done:
        ways += f"    To undo all: {closing.undo}"
    return [
        f"Stopped at {steps[reached].name}: {_sentence(trouble.why)}",
        f"Done: {done or 'nothing'}. Not done: {left}.",
        ways,
    ]


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _taken(step: Step) -> Trouble | None:
    try:
        return step.act()
    except KeyboardInterrupt:
        return Trouble("interrupted; nothing is half-written, and what was begun stays")
    except ClusterError as error:
        return Trouble(in_words(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        why = error.strerror or str(error)
        return Trouble(f"{where}{why}; the file is as it was before")


def in_words(error: ClusterError) -> str:
    """Say what an API server's failure means to who installs."""
    if isinstance(error, Unreachable):
        return f"the API server cannot be reached ({error}); is it the right context?"
    if isinstance(error, Forbidden):
        return f"your rights do not reach ({error}); use an administrator's kubeconfig"
    return str(error)
