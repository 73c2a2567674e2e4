"""inspect on a screen: ``screens/inspect-*.txt`` (``golden`` renews them)."""

import re
from functools import partial

import pytest
from rich.console import Console

from gpusharectl.state.read import Trouble
from gpusharectl.state.render import draw
from gpusharectl.state.view import overview
from tests.builders import bound_json, card, placement
from tests.gpusharectl.cluster_states import (
    SCENES,
    cluster_state,
    crowd,
    node_of,
    small,
    troubled,
)
from tests.gpusharectl.golden import assert_as_kept, drawn


@pytest.mark.parametrize("name", SCENES)
def test_each_state_has_its_screen(name: str) -> None:
    """At 80 columns without colour all is there."""
    seen = overview(SCENES[name]())
    found = drawn(partial(draw, seen=seen))
    assert [line for line in found.splitlines() if len(line) > 80] == []
    assert_as_kept(f"inspect-{name}", found)


@pytest.mark.parametrize("name", ["small", "swapped", "unplaced"])
def test_wide_leaves_nothing_out(name: str) -> None:
    """UUIDs, cores, memory and priority of each pod; lines as long as they need."""
    seen = overview(SCENES[name]())
    assert_as_kept(f"wide-{name}", drawn(partial(draw, seen=seen, wide=True)))


def test_wide_names_every_pod_of_a_crowd() -> None:
    """Nothing is cut there, not even what waits."""
    found = drawn(partial(draw, seen=overview(crowd()), wide=True))
    assert all(f"default/m-{number:03} " in found for number in range(300))
    assert all(f"default/p-{number:02} " in found for number in range(14))
    assert "more (" not in found


def test_one_node_alone() -> None:
    """Its cards and what is wrong there; nothing of the others, nor of what waits."""
    seen = overview(troubled(), "stray")
    found = drawn(partial(draw, seen=seen, only="stray"))
    assert_as_kept("node-stray", found)


def test_a_node_without_cards_alone() -> None:
    """It may be looked at, too."""
    found = drawn(partial(draw, seen=overview(small(), "node-2"), only="node-2"))
    assert "node-1" not in found
    assert "2 cards, 58 units" in found


def test_a_node_that_shares_nothing_alone() -> None:
    """It is said of that node, and not of the cluster."""
    nodes = [node_of("plain", labelled=False), node_of("n", card(0, 29))]
    seen = overview(cluster_state(nodes), "plain")
    found = drawn(partial(draw, seen=seen, only="plain"))
    assert found.startswith("plain shares no cards.\n")


@pytest.mark.parametrize("colours", ["standard", "truecolor"])
def test_colour_only_adds(colours: str) -> None:
    """Taken away, the same screen is left."""
    seen = overview(troubled())
    console = Console(
        width=80, highlight=False, force_terminal=True, color_system=colours
    )
    with console.capture() as capture:
        draw(console, seen)
    coloured = capture.get()
    assert "\x1b[" in coloured
    plain = drawn(partial(draw, seen=seen))
    stripped = "".join(
        part.partition("m")[2] if number else part
        for number, part in enumerate(coloured.split("\x1b["))
    )
    lines = [line.rstrip() for line in stripped.splitlines()]
    assert lines == plain.splitlines()


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """https://no-color.org: no colours, though it is a terminal."""
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(width=80, highlight=False, force_terminal=True)
    with console.capture() as capture:
        draw(console, overview(troubled()))
    assert not re.findall(r"\x1b\[[0-9;]*(?:3|4|9)[0-7]m", capture.get())


@pytest.mark.parametrize("wide", [False, True])
def test_nobodys_words_command_the_terminal(wide: bool) -> None:
    """Whoever may write an annotation could else clear an administrator's screen."""
    evil = "GPU-\x1b[2J\x9b2J\rgone"
    pods = [bound_json(placement("p", evil, 5, 1, node="n"))]
    model = card(0, 29, model="P4\x1b[31m")
    told = Trouble("n\x1b", "\x07 words", "do\x1b")
    seen = overview(cluster_state([node_of("n", model)], pods, troubles=[told]))
    found = drawn(partial(draw, seen=seen, wide=wide))
    assert not [char for char in found if not char.isprintable() and char != "\n"]
    assert "\N{REPLACEMENT CHARACTER}[2J" in found
