"""The page at /ui in a real browser: what it shows, and when."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import card, pod_json
from tests.extender.page_fixture import Scene, drawn, furnish
from tests.testbed.browser import Browser, Tab

CARDS = """
[...document.querySelectorAll('.card')].map((card) => ({
  node: card.closest('.node').querySelector('h3').textContent,
  card: card.querySelector('h4').textContent,
  uuid: card.querySelector('h4').title,
  numbers: [...card.querySelectorAll('.numbers > span')].map((one) => one.textContent),
  pods: [...card.querySelectorAll('.pods li')].map((one) => one.textContent.trim()),
  bars: [...card.querySelectorAll('.bar:not(.thin) i:not(.free)')]
    .map((one) => one.title),
}))
"""


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Scene() as found:
        furnish(found)
        yield found


@pytest.fixture(scope="module")
def tab(scene: Scene, browser: Browser) -> Iterator[Tab]:
    """One look at the furnished cluster, that must have nothing to complain of."""
    found = scene.shown(browser)
    yield found
    assert found.complaints == []


def cards_of(tab: Tab) -> dict[str, Any]:
    return {one["uuid"]: one for one in tab.evaluate(CARDS)}


def test_every_card_of_the_snapshot_is_there_with_its_pods(
    scene: Scene, tab: Tab
) -> None:
    """Numbers, names and bars, from the same books."""
    shown = cards_of(tab)
    told = scene.json("/snapshot")
    assert {card["uuid"] for node in told["nodes"] for card in node["cards"]} == set(
        shown
    )
    for node in told["nodes"]:
        for card_ in node["cards"]:
            one = shown[card_["uuid"]]
            assert one["node"] == node["name"]
            assert one["card"].startswith(f"card {card_['index']} ")
            held = [
                (f"{pod['namespace']}/{pod['name']}", part)
                for pod in node["pods"]
                for part in pod["shares"]
                if part["card"] == card_["uuid"]
            ]
            units = sum(part["units"] for _, part in held) + sum(
                pod["claims"][0]["units"] for pod in node["unplaced"]
            )
            assert one["numbers"][1] == f"{units}/{card_['units']} units, "
            for name, _ in held:
                assert [text for text in one["pods"] if text.startswith(name)], name
                assert [text for text in one["bars"] if text.startswith(name)], name
            assert len(one["pods"]) == len(held) + len(node["unplaced"])


def test_numbers_come_with_units_and_words(tab: Tab) -> None:
    """What a card has, what is free, and whose it is."""
    shown = cards_of(tab)
    rtx = shown["GPU-5d3cc7ba-17d9"]
    assert rtx["card"] == "card 0 GeForce RTX 3090"
    assert rtx["numbers"] == [
        "3 free, ",
        "91/94 units, ",
        "22.75/23.5 GiB, ",
        "51/100 cores",
    ]
    assert rtx["pods"] == [
        "nlp/bert-intent-7c9f 50 units, 30 cores",
        "search/reranker-5d8b 40 units, 20 cores",
        "default/canary 1 unit, 1 core",
    ]
    assert shown["GPU-a10077c2-3f00"]["pods"] == ["research/train-0 whole card"]
    cordoned = shown["GPU-a10277c2-3f02"]
    assert cordoned["card"].endswith("cordoned")
    assert cordoned["pods"] == ["speech/tts-0 32 units, 10 cores (leaving)"]
    assert cordoned["numbers"][0] == "closed, "
    assert shown["GPU-a10377c2-3f03"]["card"].endswith("sick")
    (lost,) = shown["GPU-ed6e0001-88aa"]["pods"]
    assert lost == "default/by-hand 6 units, 1 core (card unknown)"


def test_the_answer_comes_first(tab: Tab) -> None:
    """How full, how large a pod could come, who waits, and what is wrong."""
    figures = tab.evaluate(
        "[...document.querySelectorAll('#figures div')].map((one) => one.innerText)"
    )
    assert figures == [
        "Allotted\n62 %\n335 of 541 units, 83.75 of 135.25 GiB",
        "Largest free block\n23 units\n5.75 GiB on edge-1 card 0",
        "Untouched cards\n0 of 8\n4 nodes with cards",
        "Waiting\n2 pods\nwith reasons, below",
        "To look at\n2\nbelow",
    ]
    assert tab.evaluate("document.title") == "2 waiting · GPU cards"


def test_who_waits_is_shown_with_the_reason(scene: Scene, tab: Tab) -> None:
    """In the extender's own words, the first in line first."""
    rows = tab.evaluate(
        "[...document.querySelectorAll('#waiting tbody tr')].map((row) =>"
        " [...row.cells].map((cell) => cell.innerText))"
    )
    assert rows[0] == [
        "research/llama-0 priority 100",
        "94 units (23.5 GiB) and 50 cores",
        "no card has 94 units free; the most is 23, on edge-1 card 0",
    ]
    assert rows[1][0] == "research/batch-0"
    assert rows[1][2].startswith("Invalid vcuda request: 150 cores")
    told = scene.json("/ui/state")["pending"]
    assert [row[2] for row in rows] == [pod["because"] for pod in told]


def test_what_is_wrong_comes_with_the_next_step(tab: Tab) -> None:
    """A sick card, and a pod of which nobody knows the card."""
    lost, sick = tab.text("#health").splitlines()
    assert lost.startswith("edge-1 the card of default/by-hand is unknown: charged")
    assert lost.endswith("each card of the node → gpusharectl inspect --node edge-1")
    assert sick.startswith("gpu-3 card 3 is sick: it gets no new pods; running")
    assert sick.endswith("→ gpusharectl inspect --node gpu-3")


def test_a_pod_that_comes_shows_up_and_one_that_goes_is_gone(browser: Browser) -> None:
    """By itself, and said to who does not see it; from waiting to placed as well."""
    with Scene() as scene:
        scene.node("n", card(0, 29))
        scene.holds("old", "n", "GPU-0", 4)
        tab = scene.shown(browser)
        assert "default/old" in tab.text("#nodes")
        assert "None: every pod" in tab.text("#waiting")
        scene.holds("new", "n", "GPU-0", 20)
        tab.wait_for(
            "document.getElementById('nodes').innerText.includes('default/new')",
            "the new pod on the page",
        )
        assert tab.text("#said") == "default/new is on n card 0."
        scene.pod(pod_json("big", units=20, cores=1))
        tab.wait_for(
            "!!document.querySelector('#waiting tbody tr')", "row of who waits"
        )
        assert "the most is 5, on n card 0" in tab.text("#waiting")
        scene.gone("old")
        scene.gone("big")
        tab.wait_for(
            "!document.getElementById('nodes').innerText.includes('default/old')"
            " && !document.querySelector('#waiting tr')",
            "page without the two",
        )
        assert "None: every pod" in tab.text("#waiting")
        assert tab.complaints == []


def test_a_cluster_without_cards_says_what_to_do(browser: Browser) -> None:
    """Nobody knows a share of nothing: n/a, never 0 %."""
    with Scene() as scene:
        tab = scene.shown(browser)
        assert "No node shares its cards yet" in tab.text("#nodes")
        assert tab.text("#figures").startswith("Allotted\nn/a\n")
        assert tab.complaints == []


def test_when_nobody_answers_the_last_picture_stays_and_says_so(
    browser: Browser,
) -> None:
    """And it comes back by itself."""
    with Scene() as scene:
        scene.node("n", card(0, 29))
        tab = scene.shown(browser)
        assert tab.evaluate("document.getElementById('alarm').hidden") is True
        scene.hang_up()
        tab.wait_for("!document.getElementById('alarm').hidden", "alarm")
        assert tab.text("#alarm").startswith("No answer from the extender: ")
        assert "The page shows the state of" in tab.text("#alarm")
        assert "card 0" in tab.text("#nodes")
        scene.listen()
        tab.wait_for("document.getElementById('alarm').hidden", "page that is well")


def test_a_pause_is_kept(browser: Browser) -> None:
    """Nothing moves until the reader wants it, and then at once."""
    with Scene() as scene:
        scene.node("n", card(0, 29))
        tab = scene.shown(browser)
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
        tab.wait_for(
            "document.getElementById('nodes').innerText.includes('default/new')",
            "the new pod on the page",
        )


def test_finding_and_ordering_stay_over_a_reload(
    scene: Scene, browser: Browser
) -> None:
    """They stand in the address."""
    tab = scene.shown(browser)
    tab.evaluate("document.getElementById('find').focus()")
    tab.write("asr-2")
    names = "[...document.querySelectorAll('.node h3')].map((one) => one.innerText)"
    assert tab.evaluate(names) == ["gpu-3"]
    assert len(cards_of(tab)) == 1
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
