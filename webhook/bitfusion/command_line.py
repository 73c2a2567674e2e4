"""Remove ``bitfusion run … -- program`` from a container's command. Pure.

The options are those of Bitfusion's client 2.0 to 4.5. Without ``--`` after them, only
known options tell which word is the program. Bitfusion's webhook ran every command by
``/bin/bash -c``; so a command of one line is not a file here either, and runs in a
shell.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import islice

from gpushare.domain.model import clean_text
from gpushare.kube.cluster import Json
from webhook.bitfusion.resources import (
    Ask,
    ContainerAsks,
    deny_percent,
    deny_shares_of_cards,
    read_card_count,
    read_memory,
)

_CLIENT = re.compile(r"(?:[^\s;&|()]*/)?bitfusion")
# Not inside quotes: those words belong to another program.
_CALL = re.compile(r"(?:(?<=[\s;&|()`])|^)(?:[^\s;&|()`'\"]*/)?bitfusion\s+run(?=\s)")
_BLANK = re.compile(r"(?:[ \t]|\\\n)*")
_WORD = re.compile(
    r"(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\.|[^\s\"'\\;&|<>()`])+", re.DOTALL
)
# Blanks, and characters that only a shell understands.
_LINE = re.compile(r"[\s;&|<>()$`'\"*?~]")
_OPTION = re.compile(r"(?P<name>--[\w-]+|-[a-zA-Z])(?:=?(?P<value>.+))?", re.DOTALL)

# A pod may have megabytes of words, and all reviews share one processor.
_MOST_CALLS = 16
_MOST_WORDS = 64
_MOST_QUOTED = 1000
_MOST_DIGITS = 20

_OPTIONS: Mapping[str, str] = {
    "-n": "cards",
    "--num-gpus": "cards",
    "-p": "part",
    "--partial": "part",
    "-m": "memory",
    "--memory": "memory",
    "--filter": "filters",
    "-l": "",
    "--server-list": "",
    "-s": "",
    "--servers": "",
}
"""The field of ``BitfusionRun`` for each option with a value; none for servers'."""


@dataclass(slots=True)
class BitfusionRun:
    """The options of one call, as they were written."""

    cards: str | None = None
    part: str | None = None
    memory: str | None = None
    filters: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """A container's ``command`` and ``args``, with the calls that were removed."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    runs: tuple[BitfusionRun, ...] = ()
    warnings: tuple[str, ...] = ()


def remove_calls(container: Json, shell: str) -> ContainerCommand:
    """Remove ``bitfusion run`` with its options, and wrap a command of one line.

    A program that is itself one quoted line is run by ``shell``.
    """
    command = list(container.get("command") or ())
    args = list(container.get("args") or ())
    words, runs, unclear = _stripped([*command, *args], shell)
    if len(words) == len(command) + len(args):
        # No call was removed: the border between the two has not moved.
        command, args = words[: len(command)], words[len(command) :]
    else:
        command, args = (words, []) if command else ([], words)
    warnings = []
    if unclear:
        warnings.append('is ambiguous: write "--" between the options and the program')
    wrapped = _wrapped(command, shell)
    if args and wrapped is not command:
        warnings.append(
            "is one line and gets no args, as with Bitfusion: write them into the line"
        )
    return ContainerCommand(tuple(wrapped), tuple(args), tuple(runs), tuple(warnings))


def _wrapped(command: list[str], shell: str) -> list[str]:
    """Let a shell run what is no argument vector."""
    if len(command) == 1 and _LINE.search(command[0]):
        return [shell, "-c", command[0]]
    if command and any(char.isspace() for char in command[0]):
        return [shell, "-c", " ".join(command)]
    return command


def _stripped(
    words: list[str], shell: str
) -> tuple[list[str], list[BitfusionRun], bool]:
    """Remove the calls from an argument vector, or from the shell lines in it.

    Return the words, the calls' options, and whether a call was kept, because it is
    unclear where its program begins.
    """
    for at, word in enumerate(words[:-1]):
        if _CLIENT.fullmatch(word) and words[at + 1] == "run":
            run = BitfusionRun()
            rest = words[at + 2 :]
            count = _options(rest, run)
            program = rest[count:] if count is not None else []
            if not program:
                return words, [run], True
            if any(blank in program[0] for blank in " \t\n"):
                program = [shell, "-c", *program]
            return [*words[:at], *program], [run], False
    runs: list[BitfusionRun] = []
    lines = [_line(word, shell, runs) for word in words]
    return [line for line, _ in lines], runs, any(unclear for _, unclear in lines)


def _line(line: str, shell: str, runs: list[BitfusionRun]) -> tuple[str, bool]:
    """Return the line without its calls, and whether one was kept."""
    done, unclear, after, most = "", False, 0, len(runs) + _MOST_CALLS
    for call in _CALL.finditer(line):
        if call.start() < after:
            continue
        if len(runs) == most:
            unclear = True
            break
        words = list(islice(_words(line, call.end()), _MOST_WORDS))
        runs.append(BitfusionRun())
        count = _options([_unquoted(text) for _, text in words], runs[-1])
        if count is None or count >= len(words):
            unclear = True
            continue
        begins, program = words[count]
        wrap = f"{shell} -c " if program[0] in "\"'" and " " in program else ""
        done += line[after : call.start()] + wrap
        after = begins
    return done + line[after:], unclear


def _words(line: str, at: int) -> Iterator[tuple[int, str]]:
    """Yield the words of one simple command, each with its position."""
    while True:
        blank = _BLANK.match(line, at)
        at = blank.end() if blank else at
        word = _WORD.match(line, at)
        if word is None:
            return
        yield at, word.group()
        at = word.end()


def _unquoted(text: str) -> str:
    """Remove quotes as a shell does; long words are kept, as they are no options."""
    if len(text) > _MOST_QUOTED or not set(text) & set("\"'\\"):
        return text
    return "".join(shlex.split(text))


def _options(words: Sequence[str], run: BitfusionRun) -> int | None:
    """Read options into ``run``; return where the program begins, None if unclear."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return at + 1
        option = _OPTION.fullmatch(words[at])
        meaning = _OPTIONS.get(option["name"].replace("_", "-")) if option else None
        if option is None or meaning is None:
            # Unknown options have no meaning here, if ``--`` shows where they end.
            return list(words).index("--") + 1 if "--" in words else None
        value = option["value"]
        if value is None:
            at += 1
            value = words[at] if at < len(words) else ""
        if meaning == "filters":
            run.filters.append(value)
        elif meaning:
            setattr(run, meaning, value)
        at += 1
    return at


def read_calls(runs: Sequence[BitfusionRun], path: str) -> ContainerAsks:
    """Read what the calls of one container ask; each needs enough for itself."""
    denials: list[str] = []
    asks = [_ask(run, f"{path}.command", denials) for run in runs]
    if not denials:
        where = f"{path}.command, bitfusion run -n"
        several = [ask for ask in asks if ask.cards > 1 and not ask.whole]
        denials += [deny_shares_of_cards(ask, where) for ask in several]
    return ContainerAsks(tuple(asks), tuple(dict.fromkeys(denials)))


def _ask(run: BitfusionRun, where: str, denials: list[str]) -> Ask:
    cards = percent = memory = None
    if run.cards is not None:
        cards = read_card_count(run.cards, f"{where}, bitfusion run -n", denials)
    if run.part is not None:
        percent = _percent(run.part, f"{where}, bitfusion run -p", denials)
    if run.memory is not None:
        # A plain number is in MB.
        raw = f"{run.memory}M" if run.memory.isdigit() else run.memory
        memory = read_memory(raw, f"{where}, bitfusion run -m", denials)
    return Ask(cards or 1, percent or 100, memory)


def _percent(text: str, where: str, denials: list[str]) -> int | None:
    """Read a fraction, 0.5 for 50 percent; rounded down, so that two of 0.5 fit."""
    try:
        part = Decimal(text) if len(text) < _MOST_DIGITS else Decimal(0)
    except InvalidOperation:
        part = Decimal(0)
    if part.is_finite() and 0 < part <= 1:
        return max(int(part * 100), 1)
    fix = "a number above 0 and up to 1; write 0.5"
    denials.append(deny_percent(clean_text(text), where, fix))
    return None
