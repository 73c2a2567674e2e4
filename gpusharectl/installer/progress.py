"""Run steps one after another and show them; on a failure say how to go on.

On a terminal, waits are a list that is updated in place; otherwise each change is a
line. Every step can be run again and leaves alone what is done already. So after any
failure, Ctrl-C included, the way on is the same command again.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum

import click
from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from gpushare.kube.errors import ClusterError, Forbidden, Unreachable
from gpushare.kube.words import listed
from gpusharectl.output import UNKNOWN, format_age

NOTHING_DONE = "nothing was changed"
DEFAULT_TIMEOUT_S = 900.0
_MARGIN = 10
"""Columns of the step's title; its lines stand below one another."""
_NAMED = 3
"""Of more that wait for the same, the others are counted."""
_BULLET = "- "
_NARROWEST = 20
"""Columns; a narrower terminal folds by itself."""


class Exit(IntEnum):
    """The exit codes, as ``--help`` explains them."""

    DONE = 0
    STOPPED = 1
    USAGE = 2
    REFUSED = 3


class InstallError(Exception):
    """Ends a run: why, in one sentence.

    ``remedy`` is what to do if the same command again does not help: a sentence, and
    after it commands, each in a line of its own. ``exit_code`` is ``REFUSED`` if
    nothing was tried at all.
    """

    def __init__(
        self, why: str, remedy: str = "", exit_code: Exit = Exit.STOPPED
    ) -> None:
        super().__init__(why)
        self.why, self.remedy, self.exit_code = why, remedy, exit_code


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


def group_waits(waits: Sequence[Waiting]) -> list[Waiting]:
    """Return waits, those for the same as one, since the first of them began."""
    by_what: dict[tuple[str, str], list[Waiting]] = {}
    for wait in waits:
        workload, on, _ = wait.who.partition(" on ")
        start = f"{workload}{on}" if on else ""
        by_what.setdefault((wait.what, start), []).append(wait)
    grouped = []
    for (_, start), same in by_what.items():
        who = listed((wait.who.removeprefix(start) for wait in same), _NAMED)
        since = min((wait.since for wait in same if wait.since), default="")
        grouped.append(replace(same[0], who=f"{start}{who}", since=since))
    return grouped


class Screen:
    """Shows steps and asks questions; this one prints a line for each change.

    A terminal's lines are folded at words. In a pipe, and of what can be copied, each
    line stays whole.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._title = ""
        self._shown: dict[str, str] = {}

    def begin_step(self, title: str) -> None:
        """Begin a step; its lines stand beside the title."""
        self.settle()
        self._title = title

    def say(self, text: str) -> None:
        """Show lines of the present step."""
        for line in text.splitlines():
            for part in self._folded(line, _MARGIN):
                start = f"{self._title:<{_MARGIN - 1}} "
                self._title = ""
                self._print(Text(start, "bold") + part)

    def note(self, text: str) -> None:
        """Show text that belongs to no step."""
        for line in text.splitlines():
            for part in self._folded(line, 0):
                self._print(part)

    def show(self, text: str) -> None:
        """Show lines as they are, such as a command or a diff."""
        self._print(Text(text))

    def wait(self, waits: Sequence[Waiting]) -> None:
        """Show what is waited for now."""
        shown = self._shown
        new = [
            each for each in waits if shown.get(each.who) != (each.topic or each.what)
        ]
        for each in group_waits(new):
            self.say(f"waiting for {each}")
        self._shown = {each.who: each.topic or each.what for each in waits}

    def settle(self) -> None:
        """End the present wait."""
        self._shown = {}

    def ask(self, question: str, default: str, option: str) -> str:
        """Return a person's answer; without a terminal, ``option`` is the remedy."""
        with _answered(option):
            given = default or None
            return str(click.prompt(question, given, type=str, prompt_suffix=" "))

    def confirm(self, question: str, remedy: str = "") -> None:
        """Ask a person; raises ``InstallError`` on no, and without a terminal."""
        with _answered("--yes"):
            agreed = click.confirm(question, default=False)
        if not agreed:
            raise InstallError(f"you said no; {NOTHING_DONE}", remedy)

    def _folded(self, line: str, margin: int) -> Iterable[Text]:
        if not self.console.is_terminal:
            return [Text(line)]
        start = _BULLET if line.startswith(_BULLET) else ""
        width = max(_NARROWEST, self.console.width - margin - len(start))
        parts = Text(line.removeprefix(start)).wrap(self.console, width)
        return [
            Text(" " * len(start) if number else start) + part
            for number, part in enumerate(parts)
        ]

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)


@contextmanager
def _answered(option: str) -> Iterator[None]:
    """Tell Ctrl-C at a question from a question that nobody can answer."""
    try:
        yield
    except click.Abort as error:
        # click raises the same for both, and ends no line.
        click.echo()
        if isinstance(error.__context__, KeyboardInterrupt):
            raise InstallError(f"interrupted; {NOTHING_DONE}") from error
        raise no_answer_error(option) from error


def no_answer_error(option: str) -> InstallError:
    """Return that a question has no answer, and which option answers it."""
    at_one = sys.stdin is not None and sys.stdin.isatty()
    why = "no answer was given" if at_one else "there is no terminal to ask at"
    remedy = f"the same command with {option}"
    return InstallError(f"{why}; {NOTHING_DONE}", remedy, Exit.USAGE)


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
        self._live.update(draw_waits(waits, datetime.now(UTC)), refresh=True)

    def settle(self) -> None:
        """Remove the list."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def draw_waits(waits: Sequence[Waiting], now: datetime) -> Padding:
    """Return the list of waits, each with its duration."""
    lines = []
    for wait in group_waits(waits):
        line, lasted = f"waiting for {wait}", format_age(wait.since, now)
        lines.append(line if lasted == UNKNOWN else f"{line}, {lasted}")
    return Padding(Text("\n".join(lines)), (0, 0, 0, _MARGIN))


@dataclass(frozen=True, slots=True)
class InstallPatience:
    """How long to wait and how often to look, in seconds."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    look_every_s: float = 1.0
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class InstallStep:
    """One thing to do; ``name`` completes both *Done:* and *Not done:*.

    ``title`` stands beside its lines on the screen.
    """

    name: str
    act: Callable[[], None]
    title: str = ""


@dataclass(frozen=True, slots=True)
class InstallHook:
    """The steps that a part of gpushare adds to an install, by when they come.

    Its other objects are applied with all objects.
    """

    first: Sequence[InstallStep] = ()
    """Before anything is changed."""
    before_objects: Sequence[InstallStep] = ()
    after_objects: Sequence[InstallStep] = ()
    after_hosts: Sequence[InstallStep] = ()
    """When the extender runs and kube-scheduler calls it."""
    after_cards: Sequence[InstallStep] = ()


def run_steps(
    steps: Sequence[InstallStep],
    screen: Screen,
    again: Callable[[], str],
    ways_back: Callable[[], Mapping[str, str]] = dict,
    *,
    begun: bool = False,
) -> Exit:
    """Run the steps in turn; stop at the first failure and say where things stand.

    ``again`` is the command that goes on; ``ways_back`` are others by what they do,
    such as ``undo all``, which are shown once a step is done. ``begun``: other steps
    have gone before.
    """
    for number, step in enumerate(steps):
        try:
            if step.title:
                screen.begin_step(step.title)
            step.act()
        except (KeyboardInterrupt, ClusterError, OSError, InstallError) as error:
            failure = _as_install_error(error, begun=begun or number > 0)
        else:
            continue
        screen.settle()
        done = ", ".join(each.name for each in steps[:number])
        not_done = ", ".join(each.name for each in steps[number:])
        why = " ".join(failure.why.split())
        stop = "" if why.endswith((".", "?", "!")) else "."
        screen.note(f"Stopped at {step.name}: {why}{stop}")
        screen.note(f"Done: {done or 'nothing'}. Not done: {not_done}.")
        if failure.remedy:
            first, *commands = failure.remedy.splitlines()
            screen.note(f"To go on: {first}")
        else:
            commands = [f"To go on: {again()}"]
        ways = [f"To {what}: {way}" for what, way in ways_back().items() if done]
        for line in (*commands, *ways):
            screen.show(line)
        return failure.exit_code
    return Exit.DONE


def _as_install_error(error: BaseException, *, begun: bool) -> InstallError:
    """Return what an error means for the person who installs.

    ``begun``: the API server has answered before.
    """
    if isinstance(error, InstallError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return InstallError(
            "interrupted; no file is half-written, and what is done stays"
        )
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return InstallError(
            f"{where}{error.strerror or error}; the file was not changed"
        )
    why = str(error)
    if isinstance(error, Unreachable):
        what_now = "it has answered before" if begun else "is this the right context?"
        why = f"the API server cannot be reached ({why}); {what_now}"
    if isinstance(error, Forbidden):
        why = f"you have no permission for this ({why}); use an administrator's "
        why += "kubeconfig"
    return InstallError(why)
