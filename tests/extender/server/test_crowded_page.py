"""The page at /ui with much on it: nothing collides, is cut, or cannot be found."""

from collections.abc import Iterator

import pytest

from tests.builders import card, pod_json
from tests.extender.page_fixture import (
    A10,
    ENTER,
    NODES,
    P4,
    RTX,
    Scene,
    focused,
    refreshed,
)
from tests.testbed.browser import Browser, Tab


def crowd(scene: Scene) -> None:
    """Put up cards of all sizes, with long names, large numbers and closed cards."""
    long = "gpu-worker-04.rack-17.dc1.europe-west.example-company.internal"
    model = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    sizes = {29: P4, 90: A10, 94: RTX, 160: model, 320: "NVIDIA A100-SXM4-80GB"}
    cards = [
        card(i, units, uuid=f"GPU-{i}", model=name)
        for i, (units, name) in enumerate(sizes.items())
    ]
    shut = card(5, 1152, uuid="GPU-5", cordoned=True, healthy=False, model=model)
    scene.node(long, *cards, shut)
    scene.node("n", card(0, 564, uuid="GPU-n", model="NVIDIA H200 141GB HBM3e"))
    name = "whisper-large-v3-turbo-production-7d9f8b6c5-{}"
    for number, units in enumerate((1, 2, 5, 8, 12, 20, 30, 60)):
        scene.holds(name.format(number), long, "GPU-4", units, 12, namespace="speech")
    scene.holds("full", long, "GPU-5", 1152, 100, namespace="a" * 63)
    for number, units in enumerate((1, 3, 4)):
        scene.holds("asr"[: number + 1], long, "GPU-0", units)
    scene.pod(pod_json("b" * 63, units=2000, cores=1, priority=9), "a" * 63)


@pytest.fixture(scope="module")
def crowded(browser: Browser) -> Iterator[Tab]:
    with Scene() as scene:
        crowd(scene)
        tab = scene.shown(browser)
        tab.wait_for("document.querySelectorAll('.card').length === 7", "all cards")
        yield tab
        assert tab.complaints == []


WIDTHS = (320, 390, 800, 1200, 2560)
OVERLAPS = """
(() => {
  const leaves = [...document.querySelectorAll(`h1, h2, h3, h4, header p, button, input,
    select, dt, dd, td, .bars, .numbers > span:not(.unseen), .pods li, #legend li,
    summary > span, footer`)].filter((one) => one.getClientRects().length);
  const boxes = leaves.map((one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    const own = one.matches('.bars, button, input, select') ? one : range;
    return [one, own.getBoundingClientRect()];
  });
  const found = [];
  boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
    const apart = a.right <= b.left + 1 || b.right <= a.left + 1
      || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
    if (!apart && !one.contains(other) && !other.contains(one))
      found.push(`${one.textContent} | ${other.textContent}`);
  }));
  return found;
})()
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_collides_on_any_screen(crowded: Tab, width: int) -> None:
    """Nobody scrolls sideways, down to 320 pixels (WCAG 2.2, reflow)."""
    crowded.seen_as(width, 800)
    assert crowded.evaluate("document.documentElement.scrollWidth") <= width
    assert crowded.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_figures_leave_no_empty_tile(crowded: Tab, width: int) -> None:
    """Each row of them fills the width of the page."""
    crowded.seen_as(width, 800)
    boxes = crowded.evaluate(
        "['#figures', '#figures div'].map((what) =>"
        "[...document.querySelectorAll(what)].map((one) => one.getBoundingClientRect())"
        ".map((box) => [box.top, box.left, box.right]))"
    )
    [[_, left, right]], tiles = boxes
    rows: dict[float, list[tuple[float, float]]] = {}
    for top, *sides in tiles:
        rows.setdefault(top, []).append(tuple(sides))
    assert sum(map(len, rows.values())) == 5
    for row in rows.values():
        ends = [left, *(side for tile in row for side in tile), right]
        gaps = [b - a for a, b in zip(ends[::2], ends[1::2], strict=True)]
        assert max(gaps) <= 2


def test_ticks_have_sensible_steps(crowded: Tab) -> None:
    """Powers of two, at most ten on a card, never narrower than a few letters."""
    crowded.seen_as(1200, 800)
    found = crowded.evaluate(
        "[...document.querySelectorAll('.bar:not(.thin)')].map((bar) => "
        "parseFloat(bar.style.getPropertyValue('--tick')) / 100"
        " * bar.getBoundingClientRect().width)"
    )
    assert min(found) > 20
    steps = crowded.evaluate(
        "Object.fromEntries(seen.flatMap((node) => node.cards)"
        ".map((card) => [card.units * unitMib / 1024, tick(card)]))"
    )
    known = {"7.25": 1, "22.5": 4, "23.5": 4, "40": 4, "80": 8, "141": 16, "288": 32}
    assert steps == known
    assert "ticks: 1, 4, 8, 16, 32 GiB" in crowded.text("#legend")


LABELS = """
[...document.querySelectorAll('.bar b')].map((one) => {
  const letters = (most) => {
    const range = document.createRange();
    range.setStart(one.firstChild, 0);
    range.setEnd(one.firstChild, Math.min(most, one.textContent.length));
    return range.getBoundingClientRect().width;
  };
  const shown = one.getBoundingClientRect();
  const bar = one.parentElement.getBoundingClientRect();
  const room = one.clientWidth - 2 * parseFloat(getComputedStyle(one).paddingLeft);
  const ellipsis = parseFloat(getComputedStyle(one).fontSize);
  return { name: one.textContent, seen: shown.top < bar.bottom - 1,
    whole: letters(99) <= room + 1 && shown.right <= bar.right + 1,
    five: letters(5) + ellipsis <= room + 1 };
})
"""


@pytest.mark.parametrize("width", [390, 1200])
def test_a_label_has_five_letters_or_is_hidden(crowded: Tab, width: int) -> None:
    """A shorter name is shown in full, or not at all."""
    crowded.seen_as(width, 800)
    labels = crowded.evaluate(LABELS)
    seen = [one for one in labels if one["seen"]]
    assert [one for one in seen if not one["whole"] and not one["five"]] == []
    assert 0 < len(seen) < len(labels)
    assert {"asr"} & {one["name"] for one in seen if one["whole"]}


def test_a_namespace_has_one_colour(browser: Browser) -> None:
    """On every card, as long as the page is open; the ninth shares one with others."""
    colours = (
        "Object.fromEntries([...document.querySelectorAll('.pods li')].map((one) =>"
        "[one.innerText.trim().split(' ')[0], one.firstChild.className.split(' ')[1]]))"
    )
    with Scene() as scene:
        scene.node("n", card(0, 94), card(1, 94))
        for number in range(10):
            where = f"GPU-{number % 2}"
            scene.holds("a", "n", where, 10 - number, 1, namespace=f"ns-{number}")
        tab = scene.shown(browser)
        scene.holds("b", "n", "GPU-1", 4, namespace="ns-0")
        refreshed(tab, f"{NODES}.includes('ns-0/b')")
        before = tab.evaluate(colours)
        assert before["ns-0/a"] == before["ns-0/b"]
        first = [before[f"ns-{number}/a"] for number in range(8)]
        assert len(set(first)) == 8
        assert before["ns-8/a"] == before["ns-9/a"] == "f8"
        legend = tab.text("#legend")
        assert "ns-0 14 units" in legend
        assert "2 other namespaces" in legend
        scene.holds("big", "n", "GPU-1", 40, namespace="ns-7")
        scene.gone("a", "ns-3")
        refreshed(tab, f"{NODES}.includes('ns-7/big') && !{NODES}.includes('ns-3')")
        after = tab.evaluate(colours)
        # The largest of those without a colour takes the one that is free.
        moved = {pod for pod in after if pod in before and after[pod] != before[pod]}
        assert moved == {"ns-8/a"}
        assert tab.complaints == []


def test_many_cards_are_an_overview_until_they_are_unfolded(browser: Browser) -> None:
    """A cell for each card; what the reader unfolds stays so over news."""
    with Scene() as scene:
        shut = {1: {"healthy": False}, 2: {"cordoned": True}}
        for name in ("a", "b", "c"):
            cards = (
                card(i, 29, uuid=f"GPU-{name}-{i}", **shut.get(i, {})) for i in range(4)
            )
            scene.node(name, *cards)
        scene.holds("half", "b", "GPU-b-0", 15)
        tab = scene.shown(browser)
        tab.wait_for("document.querySelectorAll('.cell').length === 12", "all cards")
        assert tab.evaluate("document.querySelectorAll('.card').length") == 0
        cells = "[...document.querySelectorAll('[data-key=b] .cell')]"
        said = tab.evaluate(f"{cells}.map((one) => [one.title, one.textContent])")
        assert said == [
            ["card 0: 15 of 29 units", ""],
            ["card 1: 0 of 29 units, sick", "\N{MULTIPLICATION SIGN}"],
            ["card 2: 0 of 29 units, cordoned", "\N{EN DASH}"],
            ["card 3: 0 of 29 units", ""],
        ]
        told = "4 cards, 15 of 116 units allotted, largest free block 29 units, 1 sick"
        assert f"{told}, 1 cordoned" in tab.text("[data-key=b]")
        tab.evaluate("document.querySelector('[data-key=b] summary').focus()")
        tab.press(*ENTER)
        tab.wait_for("document.querySelectorAll('.card').length === 4", "b unfolded")
        scene.holds("more", "b", "GPU-b-0", 1)
        refreshed(tab, f"{NODES}.includes('default/more')")
        assert focused(tab) == "SUMMARY"
        assert tab.evaluate("document.querySelectorAll('.node[open]').length") == 1
        tab.evaluate("document.getElementById('unfold').click()")
        assert tab.evaluate("document.querySelectorAll('.card').length") == 12
        assert tab.text("#unfold") == "Fold all"
        tab.evaluate("document.getElementById('find').focus()")
        tab.write("half")
        tab.reload()
        tab.wait_for("document.querySelectorAll('.card').length === 1", "one card")
        tab.evaluate(
            "$('find').value = ''; $('find').dispatchEvent(new Event('input'))"
        )
        assert tab.evaluate("document.querySelectorAll('.card').length") == 0
        assert tab.evaluate("document.querySelectorAll('.cell').length") == 12
        assert tab.complaints == []


def test_a_cluster_of_many_nodes(browser: Browser) -> None:
    """The first 250, and the others on demand; who looks for one finds any."""
    with Scene() as scene:
        for number in range(260):
            scene.node(f"node-{number}", card(0, 29, uuid=f"GPU-{number}"))
        scene.holds("needle", "node-259", "GPU-259", 20)
        tab = scene.shown(browser)
        tab.wait_for("document.body.innerText.includes('10 nodes left')", "all nodes")
        shown = "document.querySelectorAll('.node').length"
        assert tab.evaluate(shown) == 250
        # As people count: node-2 before node-10.
        third = "document.querySelectorAll('.node h3')[2].textContent"
        assert tab.evaluate(third) == "node-2"
        tab.evaluate("document.querySelector('#rest button').click()")
        assert tab.evaluate(shown) == 260
        tab.evaluate("document.getElementById('find').focus()")
        tab.write("needle")
        assert tab.evaluate(shown) == 1
        assert "node-259" in tab.text("#nodes")
        assert "default/needle" in tab.text("#nodes")
        assert tab.complaints == []


def test_a_card_of_many_pods(browser: Browser) -> None:
    """All have a place in the bar; of the names the first twelve, and then all."""
    with Scene() as scene:
        scene.node("n", card(0, 94))
        for number in range(40):
            scene.holds(f"p{number:02}", "n", "GPU-0", 2, 1)
        tab = scene.shown(browser)
        tab.wait_for("document.body.innerText.includes('and 28 more')", "all pods")
        widths = tab.evaluate(
            "[...document.querySelectorAll('.bar:not(.thin) i:not(.free)')]"
            ".map((one) => one.getBoundingClientRect().width)"
        )
        assert len(widths) == 40
        assert min(widths) >= 3
        more = "document.querySelector('details.pods')"
        tab.evaluate(f"{more}.firstChild.focus()")
        tab.press(*ENTER)
        assert tab.evaluate(f"{more}.open") is True
        scene.holds("q", "n", "GPU-0", 1, 1)
        refreshed(tab, f"{NODES}.includes('and 29 more')")
        assert tab.evaluate(f"{more}.open") is True
        assert focused(tab) == "SUMMARY"
