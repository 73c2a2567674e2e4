"""One step after another, and three sentences where one fails. Nothing is hidden.

Every step can be done again: what is done already is left as it is. So the way on
after any failure, Ctrl-C included, is the same command once more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from gpushare.kube.errors import ClusterError, Forbidden, Unreachable
from gpusharectl.install.progress import Screen


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
