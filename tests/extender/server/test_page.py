"""The page at /ui in a real browser: what it shows, for every reader, and safely."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.kube import names
from gpushare.kube.annotations import encode_cards
from gpushare.kube.cluster import Kind
from gpushare.settings import Address
from gpusharectl.ui import PageServer
from tests.builders import allocation_json, card, claim_json, pod_json
from tests.extender.page_fixture import A10, P4, RTX, Scene, drawn, furnish
from tests.gpusharectl.golden import assert_as_kept
from tests.testbed.browser import Browser, Tab
from tests.testbed.waiting import wait_until

TAB, ENTER, SPACE = ("Tab", 9), ("Enter", 13, "\r"), (" ", 32, " ")
CONTRAST = """
(() => {
  const bright = ([r, g, b]) => [r, g, b].map((one) => one / 255).map((one) =>
    one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0);
  const probe = document.createElement('p');
  document.body.append(probe);
  const rgb = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color.match(/[0-9]+/g).map(Number);
  };
  const ratio = (one, other) => {
    const [dark, light] = [bright(rgb(one)), bright(rgb(other))].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const found = {};
  for (const ink of ['ink', 'soft', 'warn', 'bad', 'good', 'link'])
    for (const paper of ["paper", "sheet"])
      found[`${ink} on ${paper}`] = ratio(ink, paper);
  found['ink on bad-sheet'] = ratio('ink', 'bad-sheet');
  const edges = {};
  for (let i = 0; i < 9; i++) {
    found[`ink on p${i}`] = ratio('ink', `p${i}`);
    edges[`e${i} on track`] = ratio(`e${i}`, 'track');
  }
  probe.remove();
  return [found, edges];
})()
"""


A0 = "GPU-9f12f917-e458"
NODES = "document.getElementById('nodes').innerText"


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Scene() as found:
        furnish(found)
        yield found


@pytest.fixture
def tab(scene: Scene, browser: Browser) -> Iterator[Tab]:
    """One look at the furnished cluster, that must have nothing to complain of."""
    found = scene.shown(browser)
    yield found
    assert found.complaints == []


@pytest.fixture
def small(browser: Browser) -> Iterator[tuple[Scene, Tab]]:
    """A page of one node with one card."""
    with Scene() as scene:
        scene.node("n", card(0, 29))
        yield scene, scene.shown(browser)


def refreshed(tab: Tab, expression: str) -> None:
    """Have the page look at once, instead of after some seconds."""
    tab.evaluate("look()")
    tab.wait_for(expression, "the news on the page")


def test_the_whole_page(scene: Scene, tab: Tab) -> None:
    """How full it is, who waits and why, what is wrong, and each card with its pods."""
    text = re.sub(r"Updated [0-9:]+|[0-9]+ s ago", "", tab.text("body"))
    bars = "[...document.querySelectorAll('.bar i[title]')].map((one) => one.title)"
    kept = "\n".join([tab.evaluate("document.title"), text, *tab.evaluate(bars), ""])
    assert_as_kept("extender-page", kept)
    told = scene.json("/snapshot")
    uuids = {card["uuid"] for node in told["nodes"] for card in node["cards"]}
    shown = "[...document.querySelectorAll('.card h4')].map((one) => one.title)"
    assert set(tab.evaluate(shown)) == uuids
    assert all(pod["because"] in text for pod in scene.json("/ui/state")["pending"])


def test_a_pod_that_comes_shows_up_and_one_that_goes_is_gone(
    small: tuple[Scene, Tab],
) -> None:
    """By itself, and said to who does not see it; from waiting to placed as well."""
    scene, tab = small
    scene.holds("old", "n", "GPU-0", 4)
    refreshed(tab, f"{NODES}.includes('default/old')")
    assert "None: every pod" in tab.text("#waiting")
    scene.holds("new", "n", "GPU-0", 20)
    tab.wait_for(f"{NODES}.includes('default/new')", "the new pod on the page")
    assert tab.text("#said") == "default/new is on n card 0."
    scene.pod(pod_json("big", units=20, cores=1))
    refreshed(tab, "!!document.querySelector('#waiting tbody tr')")
    assert "the most is 5, on n card 0" in tab.text("#waiting")
    scene.gone("old")
    scene.gone("big")
    gone = f"!document.querySelector('#waiting tr') && !{NODES}.includes('old')"
    refreshed(tab, gone)
    assert "None: every pod" in tab.text("#waiting")
    scene.holds("more", "n", "GPU-0", 20)
    refreshed(tab, f"{NODES}.includes('default/more')")
    assert "\n0 free\n" in tab.text("#nodes")
    told = "n card 0 is overcommitted: pods hold 40 of 29 units"
    assert told in tab.text("#health")
    # What to do is no command here, and so there is nothing to copy.
    assert tab.evaluate("document.querySelectorAll('#health button').length") == 0
    assert tab.evaluate("document.querySelectorAll('.bar.over').length") == 1
    assert tab.text("#figures").startswith("Allotted\n100 %")
    assert tab.complaints == []


def test_equal_answers_are_one_row(small: tuple[Scene, Tab]) -> None:
    """Of pods that wait alike, and of sick cards of a node."""
    scene, tab = small
    shut = (card(i, 29, uuid=f"GPU-{i}", healthy=i == 2) for i in range(1, 4))
    scene.node("m", *shut)
    for number in range(5):
        scene.pod(pod_json(f"batch-{number}", units=30, cores=1))
    scene.pod(pod_json("other", units=31, cores=1))
    rows = "document.querySelectorAll('#waiting tbody tr').length"
    refreshed(tab, f"{rows} === 2")
    assert "default/batch-0\nand 4 more\n" in tab.text("#waiting")
    tab.evaluate("document.querySelector('#waiting summary').click()")
    names = ", ".join(f"default/batch-{number}" for number in range(1, 5))
    assert names in tab.text("#waiting")
    assert "m cards 1, 3 are sick: no new pods" in tab.text("#health")
    assert tab.complaints == []


def test_tier_reason_and_the_card_of_instances(browser: Browser) -> None:
    """A tier other than none, why a card is sick, and instances below their card."""
    model = "NVIDIA A100-SXM4-40GB MIG {}"
    shared = [
        card(0, 29),
        card(1, 29, healthy=False, reason="XID 79"),
        card(110, 39, parent="GPU-P", model=model.format("2g.10gb")),
        card(111, 78, parent="GPU-P", model=model.format("3g.20gb")),
    ]
    with Scene() as scene:
        notes = {names.CARDS: encode_cards(shared, "driver")}
        scene.node("n", annotations=notes)
        scene.node("plain", annotations={names.CARDS: encode_cards([card(9)], "none")})
        tab = scene.shown(browser)
        text = tab.text("body")
        assert text.count("isolation driver") == 1
        assert "isolation none" not in text
        assert (
            "n card 1 is sick: no new pods; running pods stay charged; because XID"
            in (text)
        )
        assert text.count("A100-SXM4-40GB GPU-P, in MIG mode") == 1
        titles = (
            "[...document.querySelectorAll('.card h4')].map((one) => one.innerText)"
        )
        assert tab.evaluate(titles)[2:4] == ["card 110 2g.10gb", "card 111 3g.20gb"]
        assert tab.complaints == []


def test_a_claim_is_marked_as_one(browser: Browser) -> None:
    """It holds a part of its card, and is no pod; its pods use it and find it."""
    listen = Address("127.0.0.1", 39996)
    reviews = {"claims_tls_cert": "unread", "claims_tls_key": "unread"}
    with Scene(claims_listen=listen, **reviews) as scene:
        scene.node("n", card(0, 29))
        scene.cluster.create(Kind.CLAIMS, claim_json("mine"))
        made = claim_json("mine", allocation_json(units=8), pods=["web-1", "web-2"])
        scene.cluster.patch(
            Kind.CLAIMS,
            "default",
            "mine",
            {"status": made["status"]},
            subresource="status",
        )
        wait_until(
            lambda: scene.json("/snapshot")["nodes"],
            "claim in the books",
            accept=lambda nodes: bool(nodes and nodes[0].get("claims")),
        )
        use = {"card": "GPU-0", "namespace": "default", "over": False}
        pods = [use | {"name": f"web-{n}", "used_mib": 256 * n} for n in (1, 2)]
        told = {"n": {"cards": {}, "pods": pods}}
        with PageServer(0, scene.get, lambda: {"v": 1, "nodes": told}) as server:
            tab = browser.open(f"{server.url}#find=web-2")
            tab.wait_for("!!document.querySelector('.pods .found')", "the claim")
            text = wait_until(
                lambda: tab.text("#nodes"),
                "what its pods use, which the page asks for by itself",
                accept=lambda found: "uses" in found,
            )
            assert "default/mine 8 units, 10 cores, uses 768 MiB" in text
            assert "(claim, allocated for web-1, web-2)" in text
            assert "8/29 units" in text
            assert tab.complaints == []


def test_a_cluster_without_cards_says_what_to_do(browser: Browser) -> None:
    """Nobody knows a share of nothing: n/a, never 0 %."""
    with Scene() as scene:
        tab = scene.shown(browser)
        assert "No node shares its cards yet" in tab.text("#nodes")
        assert tab.text("#figures").startswith("Allotted\nn/a\n")
        assert tab.complaints == []


def test_when_nobody_answers_the_last_picture_stays_and_says_so(
    small: tuple[Scene, Tab],
) -> None:
    scene, tab = small
    hidden = "document.getElementById('alarm').hidden"
    assert tab.evaluate(hidden) is True
    scene.hang_up()
    refreshed(tab, f"!{hidden}")
    assert tab.text("#alarm").startswith("No answer from the extender: ")
    assert "The page shows the state of" in tab.text("#alarm")
    assert "card 0" in tab.text("#nodes")
    scene.listen()
    tab.wait_for(hidden, "page that is well")


def test_a_pause_is_kept(small: tuple[Scene, Tab]) -> None:
    """Nothing moves until the reader wants it, and then at once."""
    scene, tab = small
    tab.evaluate("document.getElementById('pause').click()")
    assert tab.evaluate("document.getElementById('pause').ariaPressed") == "true"
    tab.wait_for("!looking", "end of the round")
    asked = "performance.getEntriesByType('resource').length"
    before = tab.evaluate(asked)
    scene.holds("new", "n", "GPU-0", 20)
    tab.evaluate("new Promise((done) => setTimeout(done, 6000))")
    assert tab.evaluate(asked) == before
    assert "default/new" not in tab.text("#nodes")
    tab.evaluate("document.getElementById('pause').click()")
    tab.wait_for(f"{NODES}.includes('default/new')", "the new pod on the page")


def test_finding_and_ordering_stay_over_a_reload(
    scene: Scene, browser: Browser
) -> None:
    tab = scene.shown(browser)
    tab.evaluate("document.getElementById('find').focus()")
    tab.write("asr-2")
    names = "[...document.querySelectorAll('.node h3')].map((one) => one.innerText)"
    assert tab.evaluate(names) == ["gpu-3"]
    assert tab.evaluate("document.querySelectorAll('.card').length") == 1
    assert tab.evaluate("document.querySelectorAll('.pods .found').length") == 1
    assert tab.text("#said") == "1 of 4 nodes shown."
    tab.reload()
    tab.wait_for("document.querySelectorAll('.node').length === 1", "page as before")
    tab.evaluate(
        "const find = document.getElementById('find'); find.value = '';"
        "find.dispatchEvent(new Event('input'));"
        "const order = document.getElementById('order'); order.value = 'full';"
        "order.dispatchEvent(new Event('change'))"
    )
    assert tab.evaluate(names) == ["gpu-1", "gpu-2", "gpu-3", "edge-1"]
    assert tab.evaluate("location.hash") == "#order=full"
    tab.evaluate("find.value = 'nobody'; find.dispatchEvent(new Event('input'))")
    assert "Nothing matches “nobody”." in tab.text("#nodes")
    assert tab.complaints == []
    drawn(tab)


def focused(tab: Tab) -> str:
    return str(
        tab.evaluate("document.activeElement.id || document.activeElement.tagName")
    )


def test_it_is_used_by_keyboard_alone(tab: Tab) -> None:
    order = []
    for _ in range(12):
        tab.press(*TAB)
        order.append(focused(tab))
    copies = ["BUTTON"] * 4
    assert order[1:9] == ["pause", *copies, "find", "order", "unfold"]
    assert set(order[9:]) == {"SUMMARY"}
    tab.evaluate("document.querySelector('a').focus()")
    tab.press(*ENTER)
    assert focused(tab) == "cards"
    tab.evaluate("document.getElementById('pause').focus()")
    tab.press(*SPACE)
    assert tab.evaluate("document.activeElement.ariaPressed") == "true"
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_the_focus_stays_while_the_page_refreshes_itself(
    scene: Scene, tab: Tab
) -> None:
    """And what was typed, and what is not touched by the news is the same element."""
    tab.evaluate("document.getElementById('find').focus()")
    tab.write("gpu")
    other = "document.querySelector('[data-key=gpu-2]').marked"
    tab.evaluate(f"{other} = true")
    scene.holds("news", "gpu-1", "GPU-5d3cc7ba-17d9", 1)
    refreshed(tab, f"{NODES}.includes('default/news')")
    assert focused(tab) == "find"
    assert tab.evaluate("document.getElementById('find').value") == "gpu"
    assert tab.evaluate(other) is True
    scene.gone("news")


def test_a_screen_reader_is_told_all_of_it(tab: Tab) -> None:
    heard = tab.heard()
    headings = [name for role, name in heard if role == "heading"]
    assert headings[1:4] == ["Warnings", "Waiting pods", "Nodes and their cards"]
    assert {"GPU cards", "edge-1", "card 0 GeForce RTX 3090"} <= set(headings)
    columns = [name for role, name in heard if role == "columnheader"]
    assert columns == ["Pod", "Asks", "Why it waits"]
    for role, name in (
        ("searchbox", "Find"),
        ("combobox", "Order"),
        ("DisclosureTriangle", "edge-1 1 card, 6 of 29 units allotted"),
        ("list", "Colours and marks"),
        ("button", "Copy gpusharectl why -n research llama-0"),
    ):
        assert (role, name) in heard
    assert "status" in {role for role, _ in heard}
    assert tab.evaluate("document.documentElement.lang") == "en"
    words = [name for role, name in heard if role == "StaticText"]
    # Of the bars' labels nothing: each pod is told once on its card, in the list.
    assert sum("bert-intent" in word for word in words) == 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_can_be_read_by_day_and_by_night(tab: Tab, dark: bool) -> None:
    """Text has a contrast of 4.5 at least, the edges of the bars 3 (WCAG 2.2, AA)."""
    tab.seen_as(1200, 900, dark=dark)
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(20, 23, 26)") is dark
    text, edges = tab.evaluate(CONTRAST)
    assert {what: ratio for what, ratio in text.items() if ratio < 4.5} == {}
    assert {what: ratio for what, ratio in edges.items() if ratio < 3} == {}


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


def test_a_command_is_copied(tab: Tab) -> None:
    """The one for this very pod, by keyboard as well."""
    both = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    tab.call("Browser.grantPermissions", permissions=both)
    tab.evaluate("document.querySelector('#waiting button').focus()")
    tab.press(*ENTER)
    tab.wait_for("document.activeElement.textContent === 'Copied'", "copied command")
    held = tab.evaluate("navigator.clipboard.readText()")
    assert held == "gpusharectl why -n research llama-0"
    assert tab.text("#said") == "Copied"


def test_a_command_that_may_not_be_copied_is_selected(tab: Tab) -> None:
    """Over plain HTTP from elsewhere there is no clipboard."""
    tab.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    tab.evaluate("document.querySelector('#waiting button').click()")
    tab.wait_for("document.getElementById('said').textContent", "selected command")
    selected = tab.evaluate("getSelection().toString()")
    assert selected == "gpusharectl why -n research llama-0"


def test_cores_that_are_used_up_are_no_room(browser: Browser) -> None:
    """Free memory beside no free core is told, and is no free block."""
    with Scene() as scene:
        scene.node("n", card(0, 94), card(1, 29))
        for name in ("busy-0", "busy-1"):
            scene.holds(name, "n", "GPU-0", 5, 50)
        scene.holds("calm", "n", "GPU-1", 10, 10)
        tab = scene.shown(browser)
        refreshed(tab, f"{NODES}.includes('default/calm')")
        figures = tab.text("#figures")
        assert "Largest free block\n19 units\n4.75 GiB on n card 1" in figures
        assert "84 units on cards without a free core" in figures
        assert "no core free" in tab.text("#nodes")
        assert "largest free block 19 units" in tab.text("#nodes")
        scene.gone("calm")
        for name in ("full-0", "full-1"):
            scene.holds(name, "n", "GPU-1", 1, 50)
        refreshed(tab, f"{NODES}.includes('default/full-1')")
        assert "Largest free block\nnone\n111 units on cards" in tab.text("#figures")


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


def test_text_of_the_cluster_is_never_code(small: tuple[Scene, Tab]) -> None:
    """Whoever may write a node's annotation would else run script in ours."""
    bad = "<img src=x onerror=document.title='owned'><script>document.title=1</script>"
    scene, tab = small
    scene.node("m", card(0, 29, uuid="GPU-1", model=bad))
    scene.pod(pod_json("b", units=1, annotations={"baidu.com/vcuda-policy": bad}))
    refreshed(tab, "document.querySelectorAll('.card').length === 2")
    assert "onerror=document" in tab.text("#nodes")
    assert tab.evaluate("document.querySelectorAll('img, .card script').length") == 0
    assert "owned" not in str(tab.evaluate("document.title"))
    assert tab.complaints == []


def test_nothing_else_may_run_or_be_reached(scene: Scene, browser: Browser) -> None:
    tab = scene.shown(browser)
    assert tab.complaints == []
    loaded = tab.evaluate(
        "performance.getEntriesByType('resource').map((one) => one.name)"
    )
    assert {url.partition("/ui/")[0] + "/ui" for url in loaded} == {scene.url}
    said = tab.evaluate(
        "fetch('http://127.0.0.1:1/').then(() => 'reached', (error) => error.name)"
    )
    assert said == "TypeError"
    tab.evaluate(
        "const made = document.createElement('div');"
        "try { made.innerHTML = '<b>x</b>'; window.turned = 'markup'; }"
        "catch (error) { window.turned = error.name; }"
    )
    assert tab.evaluate("window.turned") == "TypeError"
    assert any("Content Security Policy" in one for one in tab.complaints)


def test_it_comes_through_the_window_of_gpusharectl(
    scene: Scene, browser: Browser
) -> None:
    with PageServer(0, scene.get) as server:
        tab = browser.open(server.url)
        drawn(tab)
        assert "nlp/bert-intent-7c9f" in tab.text("#nodes")
        assert "gpusharectl ui and top show what pods use" in tab.text("footer")
        assert tab.complaints == []


def test_use_stands_beside_what_is_allotted(scene: Scene, browser: Browser) -> None:
    """Where the exporter is there; of the other nodes it is not known, never 0."""
    pods = [
        {"card": A0, "namespace": "edge", "name": name, "used_mib": used, "over": over}
        for name, used, over in (
            ("cuda10-2-1", 1100, True),
            ("cuda10-2-2", 2560, False),
        )
    ]
    cards = {A0: {"used_mib": 3712.4, "busy_percent": 63.2}}
    told: dict[str, Any] = {
        "gpu-2": {"cards": cards, "pods": pods},
        "gpu-3": {"because": "its exporter is not ready", "do": "kubectl get pods"},
    }
    with PageServer(0, scene.get, lambda: {"v": 1, "nodes": told}) as server:
        tab = browser.open(server.url)
        tab.wait_for("!!document.querySelector('.cards.used')", "use on the page")
        assert "In use\n50 %\n3.6 GiB of 7.3 GiB, of 1 of 8 cards" in tab.text(
            "#figures"
        )
        text = tab.text("#nodes")
        assert "uses 3.6 GiB, 63 % busy" in text
        assert "edge/cuda10-2-1 4 units, 1 core, uses 1.1 GiB (over its share)" in text
        assert "edge/cuda10-2-3 20 units, 1 core, uses n/a" in text
        health = tab.text("#health")
        assert (
            "edge/cuda10-2-1 uses 1.1 GiB of gpu-2 card 0: more than its share"
            in health
        )
        assert "gpu-3 use is not known: its exporter is not ready" in health
        share = "document.querySelector('[title^=\"edge/cuda10-2-2\"]').style"
        assert tab.evaluate(f"{share}.getPropertyValue('--used')") == "50%"
        told.clear()
        tab.evaluate("nextUse = 0; look()")
        tab.wait_for("!document.querySelector('.cards.used')", "page without use")
        assert "No exporter runs, so use is not known" in tab.text("footer")
        assert tab.complaints == []
