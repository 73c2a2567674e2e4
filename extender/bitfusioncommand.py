"""A container's command as it must be where no Bitfusion client rewrites it. Pure.

Bitfusion's webhook gave every command to ``/bin/bash -c``; so a command of one line is
no file to run, and is given to a shell here too.
"""

import re
from dataclasses import dataclass

from extender.bitfusionruns import Run, stripped
from gpushare.kube.cluster import Json

# Blanks, and what means something to a shell only.
_LINE = re.compile(r"[\s;&|<>()$`'\"*?~]")


@dataclass(frozen=True, slots=True)
class Command:
    """A container's ``command`` and ``args``; what was taken out, and what is amiss."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    runs: tuple[Run, ...] = ()
    warnings: tuple[str, ...] = ()


def command_of(container: Json, shell: str) -> Command:
    """Take out ``bitfusion run`` with its options, and wrap a command of one line."""
    command = list(container.get("command") or ())
    args = list(container.get("args") or ())
    found = stripped([*command, *args], shell)
    if len(found.words) == len(command) + len(args):
        # Word by word: the border between the two has not moved.
        command, args = _cut(found.words, len(command))
    elif command and not args:
        command = list(found.words)
    elif not command:
        args = list(found.words)
    else:
        command, args = list(found.words), []
    warnings = []
    if found.unclear:
        warnings.append('is unclear: write "--" between the options and the program')
    wrapped = _wrapped(command, shell)
    if args and wrapped is not command:
        warnings.append(
            "is one line, which gets no args, as before: write them into it"
        )
    return Command(tuple(wrapped), tuple(args), found.runs, tuple(warnings))


def _cut(words: tuple[str, ...], at: int) -> tuple[list[str], list[str]]:
    return list(words[:at]), list(words[at:])


def _wrapped(command: list[str], shell: str) -> list[str]:
    """Give to a shell what is no argument vector."""
    if not command:
        return command
    if len(command) == 1 and _LINE.search(command[0]):
        return [shell, "-c", command[0]]
    if any(char.isspace() for char in command[0]):
        return [shell, "-c", " ".join(command)]
    return command
