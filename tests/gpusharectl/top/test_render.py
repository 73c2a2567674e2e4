"""top on a screen: ``screens/top-*.txt`` (``golden`` renews them)."""

import re
from functools import partial
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from gpushare.domain.model import Amount
from gpusharectl.state.scrape import CardSeen
from gpusharectl.state.view import Stay
from gpusharectl.top.render import (
    WIDTH,
    Layout,
    draw_card_bar,
    draw_pod_bar,
    draw_top,
    fit_top,
)
from gpusharectl.top.rows import CardRow, PodRow, TopView
from tests.builders import card
from tests.gpusharectl import golden
from tests.gpusharectl.cluster_states import held, node_of
from tests.gpusharectl.exporter_pages import Says, Shown, Use, page
from tests.gpusharectl.top_states import SCENES, at_work, elsewhere, scene, top_of

LOST = "These values are from 03:10:00; since then no answer: connection refused"
NOTE = "03:10:00 UTC, every 5 s; Ctrl-C to quit"


def show(console: Console, top: TopView, sheet: Layout) -> None:
    console.print(draw_top(console, top, sheet))


def screen(top: TopView, width: int = 80, **layout: Any) -> str:
    return golden.drawn(partial(show, top=top, sheet=Layout(**layout)), width=width)


@pytest.mark.parametrize("by", ["pod", "card"])
@pytest.mark.parametrize("name", SCENES)
def test_each_state_has_its_screen(name: str, by: str) -> None:
    """At 80 columns without colour all is there; a terminal shows the first rows."""
    height = 24 if name == "crowd" else None
    note = NOTE if height else ""
    found = screen(top_of(name), cards=by == "card", height=height, note=note)
    assert [line for line in found.splitlines() if len(line) > 80] == []
    golden.assert_as_kept(f"top-{by}-{name}", found)


def test_values_that_are_not_current_say_so() -> None:
    found = screen(top_of("at_work"), height=24, note=NOTE, lost=LOST)
    golden.assert_as_kept("top-lost", found)


def test_one_namespace_alone() -> None:
    """The sums are of all the cards; without pods no empty table is drawn."""
    found = screen(elsewhere().top(namespace="edge"), namespace="edge")
    golden.assert_as_kept("top-namespace", found)
    found = screen(at_work().top(namespace="edge"), namespace="edge")
    assert "\nNo such pod has a share of a card or uses one.\n" in found


def test_once_shows_every_row() -> None:
    found = screen(top_of("crowd"), width=120)
    assert all(f"x{number:03}k" in found for number in range(300))
    assert "more" not in found


@pytest.mark.parametrize("height", [8, 12, 20, 40])
@pytest.mark.parametrize("name", SCENES)
def test_no_screen_is_higher_than_its_terminal(name: str, height: int) -> None:
    """What is left out is counted; of the sums nothing is ever left out."""
    found = screen(top_of(name), height=height, note=NOTE)
    assert len(found.splitlines()) <= height
    assert re.match(r"\d+ nodes?, \d+ cards?, |No node shares|gpushare is not", found)


def test_what_is_left_out_is_counted() -> None:
    """Rows and warnings; where rows are few there is room for all warnings."""
    found = screen(top_of("silent"), height=18, note=NOTE)
    rows, things = found.count("default/"), found.count("→")
    assert f"… and {2 - rows} more: --once" in found or rows == 2
    assert f"{5 - things} more warnings: --once" in found
    assert "5 warnings: --once" in screen(top_of("silent"), height=8, note=NOTE)
    assert "--once" not in screen(top_of("silent"), height=26, note=NOTE)
    cards = [card(number, uuid=f"GPU-{number}") for number in range(16)]
    top = scene([node_of("n", *cards)], [], {}).top()
    found = screen(top, cards=True, height=16, note=NOTE)
    rows = len(re.findall(r"^n \d+ ", found, re.MULTILINE))
    assert 0 < rows < 16
    assert f"… and {16 - rows} more: --once" in found


@pytest.mark.parametrize("by", ["pod", "card"])
def test_on_a_narrow_screen_names_go_before_bars(by: str) -> None:
    """And the numbers are all there."""
    found = [screen(top_of("at_work"), w, cards=by == "card") for w in (80, 60)]
    name, number = ("default/app-1", "13.96") if by == "pod" else ("node-1 0", "18.55")
    rows = [re.search(f".* {number} .*", one)[0] for one in found]  # type: ignore[index]
    assert [bool(re.search("[█▒]", row)) for row in rows] == [True, False]
    assert all(name in row for row in rows)
    assert len(rows[1]) <= 60
    assert "used, not allotted" not in found[1]


def rows_of(found: str) -> list[str]:
    return re.findall(r"x\d+k", found)


def test_rows_can_be_scrolled() -> None:
    """The last screen is full; what is above and below is counted."""
    names = rows_of(screen(top_of("crowd"), height=200_000))
    console = Console(width=80, height=24)
    for skip, above in ((0, 0), (5, 5), (299, 282), (1 << 30, 282)):
        layout = Layout(height=24, note=NOTE, skip=skip)
        assert fit_top(console, top_of("crowd"), layout)[1] == above
        found = screen(top_of("crowd"), height=24, note=NOTE, skip=skip)
        shown = rows_of(found)
        assert shown == names[above : above + len(shown)]
        assert len(found.splitlines()) == 24
        below = 300 - above - len(shown)
        assert (f"{above} above" in found) == bool(above)
        assert (f"{below} more: --once" in found) == bool(below)


def test_a_filter_leaves_the_sums() -> None:
    """It is for names of pods and nodes, in any case."""
    plain_, found = (screen(top_of("at_work"), text=text) for text in ("", "CUDA-2"))
    assert found.splitlines()[0] == plain_.splitlines()[0]
    assert "default/cuda-2" in found
    assert "default/app-1" not in found
    assert "604 MiB" in found
    assert "No such pod" in screen(top_of("at_work"), text="zzz")
    cards = screen(top_of("at_work"), cards=True, text="3090")
    assert "node-1 0" in cards
    assert "node-2 0" not in cards


@pytest.mark.parametrize("domain", ["", ".rack-7.example.org"])
def test_names_are_not_cut_where_they_differ(domain: str) -> None:
    """Of nodes a common domain goes first, then what they have in common."""
    nodes = [f"gpu-worker-{place}-of-the-first-hall{domain}" for place in "ab"]
    bodies = [node_of(one, card(0, uuid=f"GPU-{one}")) for one in nodes]
    found = screen(scene(bodies, [], {}).top(), cards=True)
    rows = [line.split()[0] for line in found.splitlines() if line.startswith("gpu-")]
    assert len(set(rows)) == 2
    assert all("…" in row for row in rows)


def test_many_rows_leave_room_for_warnings() -> None:
    """A third of the screen is theirs in any case."""
    uses = tuple(Use(f"p{number}", 10) for number in range(90))
    body = page(Shown("GPU-0", uses=uses), told=Says(("pods",)), node="n")
    top = scene([node_of("n", card(0))], [], {"n": body}).top()
    found = screen(top, height=24, note=NOTE)
    assert "\nWarnings\n  n: its exporter cannot read the pods of its node\n" in found
    assert found.count("default/p") > 2


def test_no_more_is_allotted_than_there_is() -> None:
    """Of a card that is promised twice."""
    pods = [held(name, "GPU-0", 8, node="n") for name in ("a", "b")]
    top = scene([node_of("n", card(0, 8))], pods, {}).top()
    assert screen(top).startswith("1 node, 1 card, 2 GiB: 2 allotted (100 %), ")


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("by", ["pod", "card"])
def test_rows_fit_their_screen(by: str, width: int) -> None:
    """Names are cut, numbers never are."""
    found = screen(top_of("crowd"), width, cards=by == "card", height=20)
    assert [line for line in found.splitlines() if cell_len(line) > width] == []
    assert (" 0.24 " if by == "pod" else " 68.36 ") in found


def test_wide_characters_keep_the_columns() -> None:
    """Two cells each: numbers are in the same columns as for all."""
    node = node_of(
        "n", card(0, uuid="GPU-0", model="图形处理器 Tesla P4 大显存"), card(1)
    )
    body = page(Shown("GPU-0", 0, 1024), Shown("GPU-1", 1, 1024), node="n")
    top = scene([node], [held("p", "GPU-0", 2, node="n")], {"n": body}).top()
    lines = screen(top, cards=True).splitlines()
    rows = [line for line in lines if line.startswith("n ")]
    assert len({cell_len(line) for line in rows}) == 1
    assert len({cell_len(line.partition(" 1.00 ")[0]) for line in rows}) == 1


@pytest.mark.parametrize("by", ["pod", "card"])
def test_nobodys_words_command_the_terminal(by: str) -> None:
    """Neither a model's name, nor what a page says."""
    node = node_of("n", card(0, uuid="GPU-0", model="P4" + "\x1b" * 90))
    evil = Use("a" + "\x1b" * 90, 10, namespace="c\x9bd")
    told = page(Shown("GPU-0", uses=(evil,)), node="n").replace(
        b'driver="550.54.15"', b'driver="\x1b[2J"'
    )
    top = scene([node], [], {"n": told}).top()
    found = screen(top, cards=by == "card", lost="\x1b[2J\x07")
    assert not [char for char in found if not char.isprintable() and char != "\n"]
    cut = "\N{REPLACEMENT CHARACTER}…"
    (row,) = (line for line in found.splitlines() if cut in line)
    assert cell_len(row) == 80


def share(mib: float | None, units: int = 10) -> PodRow:
    allotted = Amount(1, units)
    return PodRow("d", "p", "", "n", "", 0, Stay.PLACED, False, allotted, mib)


@pytest.mark.parametrize(
    ("mib", "bar"),
    [
        (None, "          "),
        (0, "··········"),
        (1, "█·········"),
        (1280, "█████·····"),
        (2559, "█████████·"),
        (2560, "██████████"),
        (2688, "██████████"),
        (2689, "█████████!"),
        (99999, "█████████!"),
    ],
)
def test_the_bar_of_a_share(mib: float | None, bar: str) -> None:
    """Ten units are 2560 MiB. The unknown looks like nothing else."""
    assert draw_pod_bar(share(mib)).plain == bar
    assert draw_pod_bar(share(mib, units=0)).plain.strip() == ""


@pytest.mark.parametrize(
    ("mib", "units", "bar"),
    [
        (None, 5, "░░░░░·····"),
        (0, 0, "··········"),
        (0, 5, "▒▒▒▒▒·····"),
        (768, 5, "███▒▒·····"),
        (1280, 5, "█████·····"),
        (2048, 5, "█████!!!··"),
        (9999, 20, "██████████"),
        (9999, 0, "!!!!!!!!!!"),
    ],
)
def test_the_bar_of_a_card(mib: float | None, units: int, bar: str) -> None:
    """Used, allotted and not used, used beyond that, free; of ten units."""
    row = CardRow("n", card(0, 10), Amount(1, units), CardSeen(used_mib=mib))
    assert draw_card_bar(row).plain == bar
    assert len(bar) == WIDTH
