"""Device ids, and placements from devices and back."""

from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deviceplugin.cards.devices import (
    Cards,
    Tally,
    colliding_cards,
    device_ids,
    pick_device_ids,
    placement_from,
    placement_of_unknown_pod,
    shared_card,
    why_impossible,
)
from gpushare.cards.source import FoundCard
from gpushare.domain.model import (
    Amount,
    CardUUID,
    NodeName,
    Placement,
    PodRequest,
    Share,
)
from gpushare.domain.placement import place
from gpushare.domain.policies import POLICIES
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kubelet.pods import (
    CORE_KIND,
    MEMORY_KIND,
    DeviceId,
    card_key,
    read_node_pod,
)
from tests.builders import card, node, pod_json, ref, share
from tests.builders import placement as placed
from tests.deviceplugin.admission_fixture import AdmissionFixture, shapes
from tests.deviceplugin.node_fixture import UUIDS

M, C = names.MEMORY, names.CORE
N = NodeName("n")
FOUR = [card(i, 10, uuid=UUIDS[i]) for i in range(4)]
CARDS = Cards(FOUR)
MEMORY_IDS = [device_id for each in FOUR for device_id in device_ids(each, "m")]

wanted_of = st.dictionaries(
    st.sampled_from(UUIDS[:4]), st.integers(0, 12), max_size=3
).map(dict)
some_ids = st.sets(st.sampled_from(MEMORY_IDS))


@given(wanted_of, some_ids, some_ids, st.integers(1, 20))
def test_pick_keeps_its_word(
    wanted: dict[CardUUID, int], free: set[str], reused: set[str], size: int
) -> None:
    """Just ``size`` ids: all that must be, and others of wanted cards alone.

    None at all only where there are not enough of them.
    """
    must = sorted(reused)[:size]
    chosen = pick_device_ids(wanted, free | set(must), must, size=size)
    key = {card_key(uuid): count for uuid, count in wanted.items()}
    more = 0
    for prefix, count in key.items():
        have = sum(text.startswith(prefix) for text in must)
        there = sum(i.startswith(prefix) for i in free - set(must))
        more += min(max(0, count - have), there)
    if chosen is None:
        assert len(must) + more < size
        return
    assert len(must) + more >= size
    assert len(chosen) == len(set(chosen)) == size
    assert chosen[: len(must)] == must
    added = set(chosen) - set(must)
    assert added <= free
    assert {text[:8] for text in added} <= key.keys()
    for prefix, count in key.items():
        have = sum(text.startswith(prefix) for text in must)
        of_card = sum(text.startswith(prefix) for text in chosen)
        assert of_card <= max(have, count)


def test_pick_takes_the_lowest() -> None:
    ids = device_ids(FOUR[0], "m")
    assert pick_device_ids({UUIDS[0]: 3}, ids[:0:-1], [], size=3) == ids[1:4]


@given(shapes(), st.sampled_from(list(POLICIES.values())), st.randoms())
def test_ids_chosen_by_a_placement_give_it_back(
    body: Json, policy: object, chance: Random
) -> None:
    """What kubelet lists of them says the same cards and the same charges."""
    pod = read_node_pod(body)
    asked = pod.record.request
    assert isinstance(asked, PodRequest)
    planned = place(asked, node(*FOUR), policy)  # type: ignore[arg-type]
    assume(isinstance(planned, Placement) and planned.shares)
    assert isinstance(planned, Placement)
    assert why_impossible(planned, pod, CARDS) == ""
    kubelet = AdmissionFixture(*FOUR, chance=chance)
    pod = kubelet.bind(body, planned)
    kubelet.admit(pod)
    held = kubelet.listed().held_by(pod.name) or kubelet.held[pod.name]
    found = placement_from(pod, N, held, CARDS)
    assert found is not None
    assert not found.differs_from(planned)


def test_a_share_over_two_cards_is_charged_as_held() -> None:
    pod = read_node_pod(pod_json(units=4, cores=2))
    ids = [*device_ids(FOUR[0], "m")[:3], *device_ids(FOUR[1], "m")[:1]]
    found = placement_from(pod, N, {"main": {M: frozenset(ids)}}, CARDS)
    assert found is not None
    units = {share.card: share.amount.units for share in found.shares}
    assert units == {UUIDS[0]: 3, UUIDS[1]: 1}


def test_a_request_that_cannot_be_has_no_placement() -> None:
    pod = read_node_pod(pod_json(units=4, cores=150))
    held = {"main": {M: frozenset(device_ids(FOUR[0], "m")[:4])}}
    assert placement_from(pod, N, held, CARDS) is None


def test_a_stranger_is_charged_what_it_holds() -> None:
    ids = frozenset([*device_ids(FOUR[3], "m")[:2], "deadbeef-m0000", "junk"])
    cores = frozenset(device_ids(FOUR[3], "c")[:7])
    found = placement_of_unknown_pod(ref(), N, {"x": {M: ids, C: cores}}, CARDS)
    assert [(s.card, s.amount) for s in found.shares] == [(UUIDS[3], Amount(7, 2))]


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([share(UUIDS[0], 4, 2)], ""),
        ([share("GPU-x", 4, 2)], "this node has no card GPU-x"),
        ([share(UUIDS[0], 11, 2)], "10 units, not 2 and 11"),
        ([share(UUIDS[0], 4, 101)], "100 cores and 10 units, not 101 and 4"),
        # Parts of one card are judged together.
        ([share(UUIDS[0], 2, 60), share(UUIDS[0], 2, 60)], "units, not 120 and 4"),
        ([share(UUIDS[0], 3, 2)], "asks for 2 cores and 4 units, the placement has 2"),
        ([], "the placement has 0 and 0"),
    ],
)
def test_an_impossible_placement(shares: list[object], words: str) -> None:
    pod = read_node_pod(pod_json(units=4, cores=2))
    found = placed(shares=shares)  # type: ignore[arg-type]
    said = why_impossible(found, pod, CARDS)
    assert words in said
    assert bool(words) is bool(said)


@pytest.mark.parametrize(
    ("shares", "other"),
    [
        ([share(0, 4, 2)], False),
        ([share(0, 3, 1), share(0, 1, 1)], False),
        ([share(0, 3, 2)], True),
        ([share(0, 4, 3)], True),
        ([share(1, 4, 2)], True),
        ([share(0, 4, 2), share(1)], True),
        ([], True),
        (None, True),
    ],
)
def test_what_differs(shares: list[Share] | None, other: bool) -> None:
    """What is had of each card in all counts, in how many parts it may be."""
    planned = None if shares is None else placed(shares=shares)
    assert placed(on=0, units=4, cores=2).differs_from(planned) is other


@pytest.mark.parametrize(
    ("resource", "text", "known"),
    [
        (M, "aaaaaaaa-m0009", True),
        (M, "aaaaaaaa-m0010", False),
        (C, "aaaaaaaa-c100", False),
        (C, "aaaaaaaa-m0000", False),
        (M, "deadbeef-m0000", False),
    ],
)
def test_unknown_ids(resource: str, text: str, known: bool) -> None:
    assert CARDS.unknown(resource, [text]) == ([] if known else [text])


def test_cards_are_counted_and_ordered() -> None:
    ids = ["junk", *device_ids(FOUR[2], "c")[:2], *device_ids(FOUR[1], "m")[:3]]
    assert [card.index for card in CARDS.holding(ids)] == [1, 2]
    assert CARDS.count(ids) == {UUIDS[2]: 2, UUIDS[1]: 3}
    assert CARDS.of(UUIDS[1]) == FOUR[1]
    assert CARDS.of(CardUUID("x")) is None


def test_all_sets_are_counted_each_time() -> None:
    tally = Tally()
    one, two = frozenset({"9f12f917-m0000", "9f12f917-m0001"}), frozenset({"strange"})
    three = frozenset({"9f12f917-m0002", "9f12f917-c000", "7cf0b881-m0000"})
    for _ in range(2):
        assert tally.of([one, two, three]) == {
            ("9f12f917", "m"): 3,
            ("9f12f917", "c"): 1,
            ("7cf0b881", "m"): 1,
        }
    assert tally.of([one]) == {("9f12f917", "m"): 2}


P4 = FoundCard(
    CardUUID("GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7"), 0, 7611, "Tesla P4"
)


@pytest.mark.parametrize(
    ("uuid", "key"),
    [("9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7", "9f12f917"), ("accelerator", "0bd36bfd")],
)
def test_the_key_is_of_the_uuid(uuid: str, key: str) -> None:
    """Eight hex digits, with or without a vendor's prefix; else of its hash."""
    assert card_key(CardUUID(uuid)) == key


def test_ids_are_read_as_they_are_written() -> None:
    card = shared_card(P4, 0)
    for kind, count in ((CORE_KIND, 100), (MEMORY_KIND, 29)):
        ids = device_ids(card, kind)
        assert len(set(ids)) == len(ids) == count
        assert all(str(DeviceId.parse(device_id)) == device_id for device_id in ids)
        assert all(len(device_id) <= 16 for device_id in ids)
    assert device_ids(card, MEMORY_KIND)[17] == "9f12f917-m0017"
    assert device_ids(card, CORE_KIND)[42] == "9f12f917-c042"


def test_what_is_no_id_of_ours_is_none() -> None:
    for text in ("", "9f12f917-x017", "9f12f917-m17", "9F12F917-m0017"):
        assert DeviceId.parse(text) is None


def test_the_reserve_is_taken_off_before_units() -> None:
    assert shared_card(P4, 0).units == 29
    assert shared_card(P4, 188).units == 28
    assert shared_card(P4, 9999).units == 0
    assert not shared_card(P4, 0, healthy=False).healthy


def test_cards_of_the_same_ids_are_named() -> None:
    other = FoundCard(CardUUID("GPU-9f12f917-0000"), 1, 7611)
    assert colliding_cards([P4]) == []
    [complaint] = colliding_cards([P4, other])
    assert f"{P4.uuid} and {other.uuid}" in complaint
