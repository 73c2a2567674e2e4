"""Whoever is woken pastes what an alert says: our commands in it are real ones."""

import re
from collections.abc import Iterator

import click
import pytest

from gpusharectl.commands import LazyCommand, main
from monitoring.alerts import GROUPS
from monitoring.writing import ROOT
from tests.monitoring.board_queries import NAMES, board, panels

IN_WORDS = re.compile(r"gpusharectl ([a-z-].*?)(?=\. |[.;`]?$|[;:`])")
"""A command, and the rest of its sentence."""
IN_CODE = re.compile(
    r"(?:^|`|\$ |&& )(?:sudo )?gpusharectl ([a-z-].*?) *(?:`|#|$)", re.MULTILINE
)
FLAG = re.compile(r"(?<!\S)(--?[a-zA-Z][\w-]*)")
LABEL = re.compile(r"\{\{ (?:or \$labels\.(\w+) )?\$labels\.(\w+) \}\}")
"""A label, and before it the one that is used instead where it is there."""


def alerts() -> Iterator[tuple[str, str]]:
    for one in (alert for group in GROUPS for alert in group.alerts):
        # A name in its place is one word.
        yield one.name, LABEL.sub(_names, f"{one.summary}. {one.cure}")


def _names(label: re.Match[str]) -> str:
    return "|".join(filter(None, label.groups()))


def boards() -> Iterator[tuple[str, str]]:
    for name in NAMES:
        yield name, board(name)["description"]
        for panel in panels(name):
            yield f"{name}: {panel['title']}", panel["description"]


def named(texts: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each command line that a text has, after ``gpusharectl``."""
    return [(where, line) for where, text in texts for line in IN_WORDS.findall(text)]


def pages() -> list[tuple[str, str]]:
    """Those that documents have as code; docs/alerts.md is made of the alerts."""
    paths = (*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").glob("*.md")))
    return [
        (f"{path.name}: {line}", line)
        for path in paths
        if path.name != "alerts.md"
        for line in IN_CODE.findall(path.read_text())
    ]


ALL = [*named(alerts()), *named(boards()), *pages()]


def taken(command: click.Command) -> set[str]:
    found = {"-h", "--help"}
    for one in command.params:
        if isinstance(one, click.Option):
            found |= {*one.opts, *one.secondary_opts}
    return found


@pytest.mark.parametrize(("where", "line"), ALL, ids=[where for where, _ in ALL])
def test_every_command_is_one_with_these_flags(where: str, line: str) -> None:
    """And no flag is another command's."""
    # What comes behind a pipe is another program's.
    line = line.partition(" | ")[0]
    word = line.split(maxsplit=1)[0].rstrip(",")
    if word.startswith("-"):
        assert word in {"--version", *taken(main)}, where
        return
    command = main.commands.get(word)
    assert isinstance(command, LazyCommand), (where, line)
    assert set(FLAG.findall(line)) <= taken(command.loaded()), (where, line)


def test_a_page_says_what_to_paste() -> None:
    """With the node and the card in it; the books' are known by their UUID alone.

    So are MIG instances, because ``gpu`` is their card's.
    """
    lines = dict.fromkeys(line for _, line in named(alerts()))
    pasted = [line for line in lines if line.split()[0].endswith("-card")]
    assert pasted == [
        "cordon-card NodeName GPU_I_UUID|gpu",
        "clear-card NodeName GPU_I_UUID|UUID",
    ]


def test_what_renews_a_certificate_keeps_tls() -> None:
    """Without the flag it would take TLS away."""
    lines = [line for where, line in named(alerts()) if where == "VcudaCertificateEnds"]
    assert [FLAG.findall(line) for line in lines] == [["--tls"]]
    installs = [
        text for _, text in alerts() if re.search(r"gpusharectl install\b", text)
    ]
    assert len(installs) == 4
    assert all("options that you installed with" in text for text in installs)
