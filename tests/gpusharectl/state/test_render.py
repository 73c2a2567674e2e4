"""inspect on a screen: ``screens/inspect-*.txt`` (``golden`` renews them)."""

import re
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from gpushare.domain.links import with_scores
from gpusharectl.state.read import ClusterState, Trouble
from gpusharectl.state.render import draw_overview
from gpusharectl.state.view import build_overview, filter_namespace
from tests.builders import bound_json, card, placement
from tests.gpusharectl.cluster_states import (
    CORE,
    SCENES,
    A,
    B,
    G,
    asking,
    cluster_state,
    crowd,
    extender,
    held,
    node_1,
    node_2,
    node_of,
    plugin,
    quota,
    small,
    tenants,
    troubled,
)
from tests.gpusharectl.golden import assert_as_kept, draw_screen


@pytest.mark.parametrize("name", SCENES)
def test_each_state_has_its_screen(name: str) -> None:
    """At 80 columns without colour all is there; commands are not broken."""
    found = draw_screen(SCENES[name]())
    long = [line.strip() for line in found.splitlines() if len(line) > 80]
    assert [line for line in long if not line.startswith("→ kubectl ")] == []
    assert_as_kept(f"inspect-{name}", found)


@pytest.mark.parametrize(
    "name",
    [
        *("small", "swapped", "unplaced", "tenants", "bitfusion", "unread", "many"),
        "limited",
    ],
)
def test_wide_leaves_nothing_out(name: str) -> None:
    """UUIDs, cores, memory and priority of each pod; lines as long as they need."""
    found = draw_screen(SCENES[name](), wide=True)
    assert_as_kept(f"wide-{name}", found)


def test_wide_shows_how_far_links_differ() -> None:
    """The lowest and the highest known score; of a single card nothing."""
    its_cards = with_scores([card(0), card(1), card(2)], (250, 10, 0))
    nodes = [node_of("linked", *its_cards), node_of("alone", card(0))]
    found = draw_screen(cluster_state(nodes, []), wide=True)
    told = [line.partition("; links ")[2] for line in found.splitlines()]
    assert list(filter(None, told)) == ["10 to 250"]


def test_wide_names_every_pod_of_a_crowd() -> None:
    found = draw_screen(crowd(), wide=True)
    assert all(f"default/m-{number:03} " in found for number in range(300))
    assert all(f"default/p-{number:02} " in found for number in range(14))
    assert "more (" not in found


def test_one_node_alone() -> None:
    """Its cards and its troubles; nothing of the others, nor of what waits."""
    found = draw_screen(build_overview(troubled(), "stray"))
    assert_as_kept("node-stray", found)
    found = draw_screen(build_overview(small(), "node-2"))
    assert "node-1" not in found
    assert "2 cards, 58 units" in found
    nodes = [node_of("plain", labelled=False), node_of("n", card(0, 29))]
    seen = build_overview(cluster_state(nodes), "plain")
    found = draw_screen(seen)
    assert found.startswith("plain shares no cards.\n")


def test_what_a_namespace_holds_of_one_node() -> None:
    """Only there; a pod of unknown card counts once."""
    pods = [held("a", A, 20), held("b", G, 30, node="node-1")]
    pods.append(asking("lost", 5, node="node-2", phase="Running"))
    seen = build_overview(cluster_state([node_1(), node_2()], pods), "node-2")
    found = draw_screen(filter_namespace(seen, "default"))
    said = "2 pods of default hold 25 units (6.25 GiB) and 2 cores, on 2 cards of 1"
    assert found.startswith(said)


@pytest.mark.parametrize("name", ["edge", "research", "nobody"])
def test_one_namespace_alone(name: str) -> None:
    """Its pods, the cards that they hold, and what others hold of these."""
    seen = filter_namespace(build_overview(tenants()), name)
    assert_as_kept(f"namespace-{name}", draw_screen(seen))


def test_equal_warnings_are_told_once() -> None:
    """With a command for each, or one for all; others stay apart."""
    nodes = [node_of(f"n-{n}", card(0, uuid=f"G{n}"), ready="False") for n in range(5)]
    nodes.append(node_of("other", card(0)))
    seen = build_overview(cluster_state(nodes, parts=[extender(), plugin("other")]))
    found = draw_screen(seen)
    said = " ".join(found.partition("Warnings")[2].split())
    assert said.count("has no device plugin") == 1
    assert said.count("n-0, n-1, n-2 and 2 more: the node is not ready") == 1
    assert "→ kubectl describe node n-0 # and so for each of them" in said
    assert len(seen.troubles) == 10


@pytest.mark.parametrize("width", [54, 66, 79])
def test_a_narrow_screen_has_fewer_columns(width: int) -> None:
    """No line of numbers is wrapped."""
    found = draw_screen(tenants(), width=width)
    (line,) = re.findall(r"  card 0 .*", found)
    assert ("/14.75" in line) == (width >= 66)
    assert line.endswith(" 51/100")
    head = next(line for line in found.splitlines() if "memory" in line)
    assert len(line) == len(head)
    assert len(line) <= width


LONG = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


@pytest.mark.parametrize(("width", "whole"), [(80, False), (120, True), (9999, True)])
def test_a_wide_screen_has_room_for_models(width: int, whole: bool) -> None:
    nodes = [node_of("n", card(0, 380, model=LONG, uuid=A), card(1, 29, uuid=B))]
    seen = build_overview(cluster_state(nodes, [held("a", A, 100, node="n")]))
    found = draw_screen(seen, width=width)
    assert (LONG.removeprefix("NVIDIA ") in found) == whole
    head, first, second = (
        next(line for line in found.splitlines() if begin in line)
        for begin in ("  memory", "  card 0", "  card 1")
    )
    bars = {first.index("█"), second.index("·"), head.index("memory")}
    assert len(bars) == 1, "the columns stand below each other"
    assert len(first) <= max(width, 80)


def test_the_tightest_quota_is_shown() -> None:
    """The one with the least left; one that is not known comes after all others."""
    quotas = [
        quota("x", name, hard={CORE: hard}, used=used)
        for name, hard, used in (
            ("one", "100", {CORE: "40"}),
            ("two", "50", {CORE: "40"}),
            ("three", "5", None),
        )
    ]
    seen = build_overview(replace(cluster_state(), quotas=tuple(quotas)))
    found = draw_screen(seen)
    assert re.findall(r"\d+/\d+", found) == ["40/50"]


def in_colour(seen: ClusterState) -> str:
    console = Console(
        width=80, highlight=False, force_terminal=True, color_system="standard"
    )
    with console.capture() as capture:
        draw_overview(console, build_overview(seen))
    return capture.get()


def test_colour_only_adds() -> None:
    """Without it the same screen is left; over a quota is yellow, all of it is not."""
    coloured = in_colour(troubled())
    assert "\x1b[" in coloured
    lines = [line.rstrip() for line in Text.from_ansi(coloured).plain.splitlines()]
    assert lines == draw_screen(troubled()).splitlines()
    yellow = re.findall(r"\x1b\[33m *(\d+/\d+)\x1b", in_colour(tenants()))
    assert yellow == ["44/40"]


@pytest.mark.parametrize("wide", [False, True])
def test_nobodys_words_command_the_terminal(wide: bool) -> None:
    """Whoever may write an annotation could else clear an administrator's screen."""
    evil = "GPU-\x1b[2J\x9b2J\rgone"
    pods = [bound_json(placement("p", evil, 5, 1, node="n"))]
    model = card(0, 29, model="P4\x1b[31m")
    told = Trouble("n\x1b", "\x07 words", "do\x1b")
    seen = build_overview(cluster_state([node_of("n", model)], pods, troubles=[told]))
    found = draw_screen(seen, wide=wide)
    assert not [char for char in found if not char.isprintable() and char != "\n"]
    assert "\N{REPLACEMENT CHARACTER}[2J" in found
