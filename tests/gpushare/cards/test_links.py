"""How the cards of a node are joined: read over the stub driver, offered, chosen by."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import orjson
import pynvml
import pytest

from deviceplugin.cards.advertised import Offer
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.cards.source import FoundCard
from gpushare.domain.links import read_scores
from gpushare.domain.model import CardUUID
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards
from tests.builders import event, node_json, pod_json
from tests.extender.extender_fixture import ExtenderFixture, asked
from tests.gpushare.cards.nvml_fixture import FOREVER_S, wait_found
from tests.nvml.build import the_stub
from tests.nvml.driver import (
    LOST,
    NOT_SUPPORTED,
    StubDriver,
    stub_card,
    stub_driver,
    stub_instance,
)
from tests.testbed.waiting import wait_until
from tests.topologies import DGX_1_NVLINKS, dgx_1_scores

CARDS = [stub_card(number, memory_mib=16384) for number in range(8)]
UUIDS = [CardUUID(card.uuid) for card in CARDS]
SINGLE, HOSTBRIDGE = pynvml.NVML_TOPOLOGY_SINGLE, pynvml.NVML_TOPOLOGY_HOSTBRIDGE
SYSTEM, SWITCH = pynvml.NVML_TOPOLOGY_SYSTEM, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
FUNCTION_NOT_FOUND = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
ANCESTOR = "DeviceGetTopologyCommonAncestor"


def dgx_1(driver: StubDriver) -> StubDriver:
    """Join the driver's cards as those of a DGX-1."""
    for a, b in combinations(range(8), 2):
        level = (
            SINGLE if a // 2 == b // 2 else HOSTBRIDGE if a // 4 == b // 4 else SYSTEM
        )
        driver.join(a, b, level, DGX_1_NVLINKS.get((a, b), 0))
    return driver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[StubDriver]:
    with stub_driver(the_stub(), tmp_path, CARDS) as found:
        yield dgx_1(found)


@pytest.fixture
def source(driver: StubDriver) -> Iterator[NvmlCards]:
    made = NvmlCards(deadline_s=FOREVER_S, with_links=True)
    yield made
    driver.let_go()
    made.close()


def three(driver: StubDriver, level: int = SYSTEM) -> None:
    """Leave three cards, none of them joined by NVLink."""
    driver.set_cards(CARDS[:3])
    for a, b in combinations(range(3), 2):
        driver.join(a, b, level)


def told(found: Sequence[FoundCard]) -> dict[tuple[int, int], int]:
    """The known scores by the places of the cards."""
    return {
        (UUIDS.index(card.uuid), UUIDS.index(other)): score
        for card in found
        for other, score in card.links.items()
        if UUIDS.index(card.uuid) < UUIDS.index(other)
    }


def offered(*looks: Sequence[FoundCard]) -> tuple[int, ...]:
    """The scores of all pairs as the annotation has them after these looks."""
    offer = Offer(reserve_mib=0)
    for found in looks:
        offer.set_found(found)
    return read_scores(offer.cards.all)


def test_the_scores_of_a_dgx_1(source: NvmlCards) -> None:
    """10 to 60 by what a pair shares of PCIe, and 100 for each NVLink."""
    assert offered(source.cards().cards) == tuple(dgx_1_scores())


@pytest.mark.parametrize(
    ("level", "score"),
    list(zip((50, 40, 30, 20, 10, 0), (10, 20, 30, 40, 50, 60), strict=True)),
)
def test_the_score_of_pcie(
    driver: StubDriver, source: NvmlCards, level: int, score: int
) -> None:
    driver.join(1, 3, level)
    assert told(source.cards().cards)[1, 3] == score + 100


def test_only_links_that_both_ends_report_count(
    driver: StubDriver, source: NvmlCards
) -> None:
    """One that is down, one to something else, and one that a single end reports."""
    three(driver)
    driver.wire(UUIDS[0], "down")
    driver.wire(UUIDS[0], "00000000:ff:00.0")
    before = told(source.cards().cards)
    assert before[1, 2] == 210
    driver.wire(UUIDS[1], CARDS[2].bus)
    fresh = NvmlCards(deadline_s=FOREVER_S, with_links=True)
    assert told(fresh.cards().cards) == before
    fresh.close()


def test_all_cards_on_switches_are_joined_by_all_their_links(tmp_path: Path) -> None:
    """Also where one of a card's is down."""
    with stub_driver(the_stub(), tmp_path, CARDS[:3]) as driver:
        three(driver)
        for uuid, active in zip(UUIDS, (12, 12, 11), strict=False):
            for number in range(12):
                switch = f"00000000:c{number % 6}:00.0"
                driver.wire(uuid, switch if number < active else "down", SWITCH)
        source = NvmlCards(deadline_s=FOREVER_S, with_links=True)
        scores = told(source.cards().cards)
        assert scores == {(0, 1): 1210, (0, 2): 1110, (1, 2): 1110}
        source.close()


@pytest.mark.parametrize(
    ("function", "scores"),
    [
        (ANCESTOR, ()),
        ("DeviceGetNvLinkState", ()),
        ("DeviceGetNvLinkRemotePciInfo", ()),
        ("DeviceGetNvLinkRemoteDeviceType", tuple(dgx_1_scores())),
    ],
)
def test_what_a_driver_does_not_have_is_not_known(
    driver: StubDriver, source: NvmlCards, function: str, scores: tuple[int, ...]
) -> None:
    """No links at all, and not only those of PCIe: a wrong order would be chosen by.

    Kinds of links need not be told: then they are those between cards.
    """
    driver.fail("*", function, FUNCTION_NOT_FOUND)
    assert offered(source.cards().cards) == scores


@pytest.mark.parametrize("code", [LOST, pynvml.NVML_ERROR_UNKNOWN])
def test_a_call_that_failed_is_made_again(
    driver: StubDriver, source: NvmlCards, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then only the pairs of this card are not known; it is logged once."""
    driver.fail(UUIDS[5], "DeviceGetNvLinkState", code)
    source.cards()
    scores = told(source.cards().cards)
    [logged] = caplog.records
    assert logged.message == "links between cards not read yet"
    assert vars(logged)["cards"] == UUIDS[5]
    assert vars(logged)["because"]
    assert len(scores) == 21
    assert not any(5 in pair for pair in scores)
    driver.fail(UUIDS[5], "DeviceGetNvLinkState", 0)
    assert offered(source.cards().cards) == tuple(dgx_1_scores())


def test_each_pair_is_asked_once(driver: StubDriver, source: NvmlCards) -> None:
    """Also where the driver does not support it."""
    driver.fail(UUIDS[0], ANCESTOR, NOT_SUPPORTED)
    source.cards()
    before = driver.calls()
    source.cards()
    looks = driver.calls() - before
    plain = NvmlCards(deadline_s=FOREVER_S)
    plain.cards()
    before = driver.calls()
    plain.cards()
    assert looks == driver.calls() - before
    plain.close()


def test_a_card_that_hangs_delays_no_look_for_ever(driver: StubDriver) -> None:
    """The others' links are known; its own follow when it answers."""
    driver.hang(UUIDS[7], "DeviceGetNvLinkState")
    source = NvmlCards(deadline_s=1.0, with_links=True)

    def known() -> set[tuple[int, int]]:
        return set(told(wait_found(source, 8).cards))

    others = set(combinations(range(7), 2))
    wait_until(known, "the others' links", accept=lambda pairs: pairs == others)
    driver.let_go()
    everyone = set(combinations(range(8), 2))
    wait_until(known, "its own", accept=lambda pairs: pairs == everyone)
    source.close()


def test_a_lost_card_keeps_its_links(driver: StubDriver, source: NvmlCards) -> None:
    """Its place in the list stays, and so does what the others have with it."""
    first = source.cards().cards
    driver.lose(UUIDS[2])
    assert offered(first, source.cards().cards) == tuple(dgx_1_scores())
    driver.set_cards([card for card in CARDS if card.uuid != UUIDS[4]])
    assert offered(first, source.cards().cards) == tuple(dgx_1_scores())


@pytest.mark.parametrize("gone", [0, 7])
def test_a_card_that_vanished_keeps_its_links(source: NvmlCards, gone: int) -> None:
    """Its source tells of it no more, and the others know no link with it."""
    first = source.cards().cards
    left = [
        replace(card, links={u: s for u, s in card.links.items() if u != UUIDS[gone]})
        for card in first
        if card.uuid != UUIDS[gone]
    ]
    assert offered(first, left) == tuple(dgx_1_scores())


def test_instances_have_no_links(driver: StubDriver, source: NvmlCards) -> None:
    """The full cards beside them keep theirs; a pair with an instance is not known."""
    three(driver, SINGLE)
    driver.join(0, 2, SYSTEM)
    driver.change(1, mig=True)
    driver.set_instances(stub_instance(CARDS[1], 0), stub_instance(CARDS[1], 1))
    scores = offered(source.cards().cards)
    assert sorted(scores) == [0, 0, 0, 0, 0, 110]


def test_the_exporter_does_not_ask(driver: StubDriver) -> None:
    source = NvmlCards(deadline_s=FOREVER_S)
    driver.hang("*", ANCESTOR)
    assert told(source.cards().cards) == {}
    driver.let_go()
    source.close()


@pytest.mark.parametrize(
    ("held", "number", "expected"),
    [
        pytest.param([], 2, [2, 3], id="two of eight"),
        pytest.param([], 4, [0, 1, 2, 3], id="four of eight"),
        pytest.param([0], 4, [4, 5, 6, 7], id="four of seven"),
        pytest.param([0, 3], 2, [1, 2], id="two of six"),
    ],
)
def test_from_the_driver_to_the_placement(
    source: NvmlCards, held: list[int], number: int, expected: list[int]
) -> None:
    """What the plugin publishes is what the extender chooses by."""
    offer = Offer(reserve_mib=0)
    offer.set_found(source.cards().cards)
    # In use by others: here an operator has closed them.
    notes = {
        names.CARDS: encode_cards(offer.cards.all),
        names.CORDON: ",".join(UUIDS[i] for i in held),
    }
    extender = ExtenderFixture(n=())
    extender.nodes.apply(event("MODIFIED", node_json("n", annotations=notes)))
    pod = extender.create("pod", cores=100 * number)
    assert not extender.bind(pod).error
    text = extender.cluster.pod("pod")["metadata"]["annotations"][names.PLACEMENT]
    shares = orjson.loads(text)["shares"]
    assert sorted(UUIDS.index(share["card"]) for share in shares) == expected


def test_the_extender_prefers_the_node_with_the_better_links(source: NvmlCards) -> None:
    """By one step, for a pod of several whole cards and for no other."""
    offer = Offer(reserve_mib=0)
    offer.set_found(source.cards().cards)
    notes = {names.CARDS: encode_cards(offer.cards.all)}
    extender = ExtenderFixture(a=[64] * 8)
    extender.nodes.apply(event("MODIFIED", node_json("b", annotations=notes)))
    for cores, scores in ((100, []), (200, [("b", 1)]), (400, [("b", 1)])):
        pod = pod_json(cores=cores)
        assert extender.verbs.prioritize(asked(pod, "a", "b")) == scores


def test_no_score_is_above_the_highest(source: NvmlCards) -> None:
    """kube-scheduler does not clamp what is above 10."""
    offer = Offer(reserve_mib=0)
    offer.set_found(source.cards().cards)
    notes = {names.CARDS: encode_cards(offer.cards.all)}
    extender = ExtenderFixture(full=(64,))
    extender.nodes.apply(event("MODIFIED", node_json("b", annotations=notes)))
    assert not extender.bind(extender.create("there", units=64), "full").error
    pod = pod_json(cores=200, annotations={names.POLICY: "spread"})
    assert extender.verbs.prioritize(asked(pod, "full", "b")) == [("b", 10)]
