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
from tests.extender.page_fixture import (
    ENTER,
    NODES,
    Scene,
    drawn,
    focused,
    furnish,
    refreshed,
)
from tests.gpusharectl.golden import assert_as_kept
from tests.testbed.browser import Browser, Tab
from tests.testbed.waiting import wait_until

TAB, SPACE = ("Tab", 9), (" ", 32, " ")
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
    pods[1]["not_held"] = True
    cards = {A0: {"used_mib": 3712.4, "busy_percent": 63.2}}
    told: dict[str, Any] = {
        "gpu-2": {"cards": cards, "pods": pods},
        "gpu-3": {"because": "its exporter is not ready", "do": "kubectl get pods"},
    }
    wrong = [{"about": "quota edge/gpu", "what": "keys that count nothing", "do": "x"}]
    answer = {"v": 1, "nodes": told, "troubles": wrong}
    with PageServer(0, scene.get, lambda: answer) as server:
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
        assert "edge/cuda10-2-2 is not held to its share of gpu-2 card 0" in health
        assert "gpu-3 use is not known: its exporter is not ready" in health
        assert "quota edge/gpu keys that count nothing" in health
        share = "document.querySelector('[title^=\"edge/cuda10-2-2\"]').style"
        assert tab.evaluate(f"{share}.getPropertyValue('--used')") == "50%"
        told.clear()
        # An earlier gpusharectl has no word on quotas.
        del answer["troubles"]
        tab.evaluate("nextUse = 0; look()")
        tab.wait_for("!document.querySelector('.cards.used')", "page without use")
        assert "No exporter runs, so use is not known" in tab.text("footer")
        assert "quota edge/gpu" not in tab.text("#health")
        assert tab.complaints == []
