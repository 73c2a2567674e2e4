"""The page at /ui in a real browser: what it shows, for every reader, and safely."""

import re
from collections.abc import Iterator

import pytest

from gpusharectl.ui import PageServer
from tests.builders import card, pod_json
from tests.extender.page_fixture import Scene, drawn, furnish
from tests.gpusharectl.golden import assert_as_kept
from tests.testbed.browser import Browser, Tab

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
  for (let i = 0; i < 8; i++) {
    found[`ink on p${i}`] = ratio('ink', `p${i}`);
    edges[`e${i} on track`] = ratio(`e${i}`, 'track');
  }
  probe.remove();
  return [found, edges];
})()
"""


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
    told = "n card 0 is overcommitted: pods hold 40 of 29 units"
    assert told in tab.text("#health")
    assert tab.evaluate("document.querySelectorAll('.bar.over').length") == 1
    assert tab.text("#figures").startswith("Allotted\n100 %")
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
    for _ in range(5):
        tab.press(*TAB)
        order.append(focused(tab))
    assert order[1:4] == ["pause", "find", "order"]
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
    assert headings[1:4] == ["To look at", "Waiting pods", "Nodes and their cards"]
    assert {"GPU cards", "edge-1", "card 0 GeForce RTX 3090"} <= set(headings)
    columns = [name for role, name in heard if role == "columnheader"]
    assert columns == ["Pod", "Asks", "Why it waits"]
    for role, name in (
        ("searchbox", "Find"),
        ("combobox", "Order"),
        ("region", "Node gpu-2"),
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


@pytest.mark.parametrize("width", [320, 760, 1600])
def test_it_fits_on_every_screen(tab: Tab, width: int) -> None:
    """Nobody scrolls sideways, down to 320 pixels (WCAG 2.2, reflow)."""
    tab.seen_as(width, 800)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_a_cluster_of_many_nodes(browser: Browser) -> None:
    """The first fifty, and the others on demand; who looks for one finds any."""
    with Scene() as scene:
        for number in range(120):
            cards = [card(i, 29, uuid=f"GPU-{number}-{i}") for i in range(4)]
            scene.node(f"node-{number}", *cards)
        scene.holds("needle", "node-119", "GPU-119-3", 20)
        tab = scene.shown(browser)
        tab.wait_for("document.body.innerText.includes('70 nodes left')", "all nodes")
        shown = "document.querySelectorAll('.node').length"
        assert tab.evaluate(shown) == 50
        # As people count: node-2 before node-10.
        third = "document.querySelectorAll('.node h3')[2].textContent"
        assert tab.evaluate(third) == "node-2"
        tab.evaluate("document.querySelector('#rest button').click()")
        assert tab.evaluate(shown) == 100
        tab.evaluate("document.getElementById('find').focus()")
        tab.write("needle")
        assert tab.evaluate(shown) == 1
        assert "node-119" in tab.text("#nodes")
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
        tab.evaluate("document.querySelector('summary').focus()")
        tab.press(*ENTER)
        assert tab.evaluate("document.querySelector('details').open") is True
        scene.holds("q", "n", "GPU-0", 1, 1)
        refreshed(tab, f"{NODES}.includes('and 29 more')")
        assert tab.evaluate("document.querySelector('details').open") is True
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
        assert tab.complaints == []
