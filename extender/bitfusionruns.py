"""``bitfusion run … -- program`` in a container's words, found and taken out. Pure.

Its options are those of Bitfusion's client 2.0 to 4.5. Where they end without ``--``,
only known ones tell which word is the program.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

_CLIENT = re.compile(r"(?:[^\s;&|()]*/)?bitfusion")
# Not inside quotes, which belong to another program.
_CALL = re.compile(r"(?:(?<=[\s;&|()`])|^)(?:[^\s;&|()`'\"]*/)?bitfusion\s+run(?=\s)")
_BLANK = re.compile(r"(?:[ \t]|\\\n)*")
_WORD = re.compile(
    r"(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\.|[^\s\"'\\;&|<>()`])+", re.DOTALL
)
_OPTION = re.compile(r"(?P<name>--[\w-]+|-[a-zA-Z])(?:=?(?P<value>.+))?", re.DOTALL)

# A pod may hold megabytes of words, and all reviews share one processor's time.
_MOST_CALLS = 16
_MOST_WORDS = 64
_MOST_QUOTED = 1000

_OPTIONS: Mapping[str, str] = {
    "-n": "cards",
    "--num-gpus": "cards",
    "-p": "part",
    "--partial": "part",
    "-m": "memory",
    "--memory": "memory",
    "--filter": "filter",
    "-l": "",
    "--server-list": "",
    "-s": "",
    "--servers": "",
}
"""Each takes a value; those without a meaning say where the servers are."""


@dataclass(slots=True)
class Run:
    """The options of one call, as they were written."""

    cards: str | None = None
    part: str | None = None
    memory: str | None = None
    filters: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stripped:
    """Words without the calls; ``runs`` are the calls' options."""

    words: tuple[str, ...]
    runs: tuple[Run, ...] = ()
    unclear: bool = False
    """Whether a call was left, since nobody can tell where its program begins."""


def stripped(words: Sequence[str], shell: str) -> Stripped:
    """Take the calls out of an argument vector, or of the shell lines in it.

    A program that was itself one quoted line is given to ``shell``.
    """
    for at, word in enumerate(words[:-1]):
        if _CLIENT.fullmatch(word) and words[at + 1] == "run":
            return _of_vector(list(words), at, shell)
    found: list[Run] = []
    unclear = False
    done = []
    for word in words:
        text, runs, bad = _of_line(word, shell)
        done.append(text)
        found += runs
        unclear = unclear or bad
    return Stripped(tuple(done), tuple(found), unclear)


def _of_vector(words: list[str], at: int, shell: str) -> Stripped:
    run = Run()
    rest = words[at + 2 :]
    count = _options(rest, run)
    program = rest[count:] if count is not None else []
    if not program:
        return Stripped(tuple(words), (run,), unclear=True)
    if any(blank in program[0] for blank in " \t\n"):
        program = [shell, "-c", *program]
    return Stripped((*words[:at], *program), (run,))


def _of_line(line: str, shell: str) -> tuple[str, list[Run], bool]:
    """Give the line without its calls, their options, and whether one was left."""
    done, unclear, after = "", False, 0
    runs: list[Run] = []
    for call in _CALL.finditer(line):
        if call.start() < after:
            continue
        if len(runs) == _MOST_CALLS:
            unclear = True
            break
        words = list(islice(_words(line, call.end()), _MOST_WORDS))
        run = Run()
        plain = [_unquoted(text) for _, text in words]
        count = _options(plain, run)
        runs.append(run)
        if count is None or count >= len(words):
            unclear = True
            continue
        begins, program = words[count]
        wrap = f"{shell} -c " if program[0] in "\"'" and " " in program else ""
        done += line[after : call.start()] + wrap
        after = begins
    return done + line[after:], runs, unclear


def _words(line: str, at: int) -> Iterator[tuple[int, str]]:
    """Give the words of one simple command and where each begins."""
    while True:
        blank = _BLANK.match(line, at)
        at = blank.end() if blank else at
        word = _WORD.match(line, at)
        if word is None:
            return
        yield at, word.group()
        at = word.end()


def _unquoted(text: str) -> str:
    """Give the word that a shell would make of it; a long one is no option's."""
    if len(text) > _MOST_QUOTED or not set(text) & set("\"'\\"):
        return text
    return "".join(shlex.split(text))


def _options(words: Sequence[str], run: Run) -> int | None:
    """Read options into ``run``; give where the program begins, None if nobody can."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return at + 1
        option = _OPTION.fullmatch(words[at])
        meaning = _OPTIONS.get(option["name"].replace("_", "-")) if option else None
        if option is None or meaning is None:
            # Of no meaning here, if only it is plain where they all end.
            return list(words).index("--") + 1 if "--" in words else None
        value = option["value"]
        if value is None:
            at += 1
            value = words[at] if at < len(words) else ""
        _note(run, meaning, value)
        at += 1
    return at


def _note(run: Run, meaning: str, value: str) -> None:
    match meaning:
        case "cards":
            run.cards = value
        case "part":
            run.part = value
        case "memory":
            run.memory = value
        case "filter":
            run.filters.append(value)
