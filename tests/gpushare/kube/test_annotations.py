"""Our annotations, read and written."""

import tracemalloc
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.links import with_scores
from gpushare.domain.model import (
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    Placement,
    PodRequest,
    Refusal,
    Share,
)
from gpushare.kube import names
from gpushare.kube.annotations import (
    decode_cards,
    decode_isolation,
    decode_placement,
    encode_cards,
    encode_placement,
    find_broken_links,
    find_unknown_annotations,
    read_card_selector,
    read_cards,
    read_cordon,
    read_placements,
    read_uuids,
    why_too_many,
)
from gpushare.kube.codec import refusal_text
from gpushare.kube.json_reader import Malformed
from tests.builders import card, claim, node_json, placement, pod_json, ref, request
from webhook.bitfusion.resources import CARD_MIB

N = placement().node
PARTS = [claim(4, 60, container="x"), claim(4, 40, container="y")]
APART = request(claims=PARTS)
TOGETHER = request(claims=[replace(PARTS[0], amount=Amount(100, 8))])
ONE_CARD = request(
    claims=[
        Claim(Amount(100, 8), tuple(one for part in PARTS for one in part.containers))
    ]
)


def one_card(**fields: Any) -> dict[str, Any]:
    return {"uuid": "GPU-0", "index": 0, "units": 29} | fields


def cards_text(*shared: object, v: object = 1) -> str:
    return orjson.dumps({"v": v, "cards": list(shared)}).decode()


def one_share(**fields: Any) -> dict[str, Any]:
    return {"card": "GPU-0", "cores": 1, "units": 4} | fields


def placement_text(*shares: object, v: object = 1, uid: object = "uid-pod") -> str:
    return orjson.dumps({"v": v, "uid": uid, "shares": list(shares)}).decode()


def test_the_cards_annotation_as_the_protocol_has_it() -> None:
    assert orjson.loads(encode_cards([card(1, 29)])) == {
        "v": 1,
        "cards": [
            {
                "uuid": "GPU-1",
                "index": 1,
                "units": 29,
                "healthy": True,
                "model": "Tesla P4",
            }
        ],
    }


@pytest.mark.parametrize(
    ("other", "key", "text"),
    [
        (card(100, 19, parent="GPU-1"), "parent", "GPU-1"),
        (card(1, 29, healthy=False, reason="XID 79"), "reason", "XID 79"),
    ],
    ids=["an instance names its card", "a sick card says why"],
)
def test_a_field_that_few_cards_have(other: Card, key: str, text: str) -> None:
    """Older readers skip it; the others are written as ever."""
    shared = (card(0, 29), other)
    plain, written = orjson.loads(encode_cards(shared))["cards"]
    assert key not in plain
    assert written[key] == text
    assert decode_cards(encode_cards(shared)) == shared


@pytest.mark.parametrize(
    ("text", "tier"),
    [
        (encode_cards([], "driver"), "driver"),
        (encode_cards([], "of-tomorrow"), "of-tomorrow"),
        (encode_cards([]), ""),
        ("junk", ""),
        ('{"v": 1, "isolation": 4}', ""),
    ],
    ids=["known", "later", "earlier plugin", "broken", "no text"],
)
def test_a_nodes_tier(text: str, tier: str) -> None:
    """What is not written is not known, and never tier none."""
    assert decode_isolation(text) == tier


def test_a_card_is_healthy_unless_it_says_otherwise() -> None:
    text = cards_text(one_card(numa=1))
    assert decode_cards(text) == (card(0, 29, model=""),)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (cards_text(v=2), "vcuda-cards.v: is 2; this program knows 1"),
        ('{"v": 1}', "vcuda-cards.cards: is missing"),
        (cards_text(one_card(uuid="")), "cards[0].uuid: is missing or empty"),
        (cards_text(one_card(index=-1)), "cards[0].index: must be a whole number"),
        (cards_text(one_card(units=2.5)), "cards[0].units: must be a whole number"),
        (cards_text(one_card(healthy="no")), "cards[0].healthy: must be true or"),
        (cards_text(one_card(parent=4)), "cards[0].parent: must be a string"),
        (cards_text(one_card(model=4)), "cards[0].model: must be a string"),
        (cards_text(one_card(), one_card(index=1)), "vcuda-cards.cards: has GPU-0 tw"),
        (cards_text(one_card(), {}), "cards[1].uuid: is missing or empty"),
    ],
)
def test_broken_cards_are_named(text: str, complaint: str) -> None:
    """The log says which field of the annotation is wrong."""
    with pytest.raises(Malformed) as caught:
        decode_cards(text)
    assert complaint in str(caught.value)
    assert caught.value.field.startswith("baidu.com/vcuda-cards")


def many(full: int, parents: int = 0, instances: int = 7) -> list[Card]:
    """Return so many full cards, and instances of so many others."""
    parts = [
        card(full + i, 2, parent=f"GPU-p{i // instances}")
        for i in range(parents * instances)
    ]
    return [card(i, 29) for i in range(full)] + parts


@pytest.mark.parametrize(
    ("shared", "problem"),
    [
        (many(64), ""),
        (many(0, 64), ""),
        (many(60, 4), ""),
        (many(65), "has 65 cards; a node may share 64, or up to 7 MIG instances of"),
        (many(61, 4), "has 89 cards; a node may share 64"),
        (many(6500), "has 6500 cards; a node may share 64"),
        (many(0, 1, 8), "has 8 instances of GPU-p0; a card has 7"),
    ],
    ids=["64", "448", "both", "65", "both, one more", "6500", "8 of one"],
)
def test_a_node_has_no_more_cards_than_a_server(
    shared: list[Card], problem: str
) -> None:
    """The whole node is refused with the number; no card is left out in silence."""
    text = encode_cards(shared)
    assert why_too_many(shared).startswith(problem)
    if not problem:
        assert decode_cards(text) == tuple(shared)
        return
    with pytest.raises(Malformed) as caught:
        decode_cards(text)
    assert f"vcuda-cards.cards: {problem}" in str(caught.value)


@pytest.mark.parametrize("links", [10, [10] * (6500 * 2)])
def test_the_links_of_very_many_cards_are_not_expanded(links: object) -> None:
    """Of 6,500 cards one number would stand for 21 million pairs."""
    cards = [one_card(uuid=f"G{i}", index=i) for i in range(6500)]
    text = orjson.dumps({"v": 1, "cards": cards, "links": links}).decode()
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            decode_cards(text)
        assert find_broken_links(text) == ""
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20


@pytest.mark.parametrize("key", ["uuid", "model", "parent", "reason"])
def test_the_texts_of_a_card_have_an_end(key: str) -> None:
    """They are compared with each list of each pod, and shown."""
    assert decode_cards(cards_text(one_card(**{key: "x" * 256})))
    with pytest.raises(Malformed, match="must have at most 256 characters"):
        decode_cards(cards_text(one_card(**{key: "x" * 257})))


def test_the_placement_annotation_as_the_protocol_has_it() -> None:
    """``{v, uid, shares: [{card, cores, units, containers: {name: [..]}}], at}``."""
    assert orjson.loads(encode_placement(placement("pod", 0, 4, 1), "now")) == {
        "v": 1,
        "uid": "uid-pod",
        "shares": [
            {"card": "GPU-0", "cores": 1, "units": 4, "containers": {"main": [1, 4]}}
        ],
        "at": "now",
    }


def test_a_placement_may_have_every_card_of_a_node_and_a_part_for_16_containers() -> (
    None
):
    """As many as ``why_too_many`` allows. A change of the node looks at all of them."""
    placed = decode_placement(placement_text(*[one_share()] * 464), ref(), N)
    assert placed
    assert len(placed.shares) == 464


def test_a_placement_with_another_pods_uid_counts_for_nothing() -> None:
    """It was copied with the pod's manifest, or invented."""
    text = placement_text(one_share(), uid="uid-other")
    assert decode_placement(text, ref(), N) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (placement_text(v=3), "key.v: is 3; this program knows 1"),
        (placement_text(uid=7), "key.uid: must be a string"),
        ('{"v": 1, "uid": "uid-pod"}', "key.shares: is missing"),
        (placement_text({"cores": 1, "units": 1}), "shares[0].card: is missing"),
        (placement_text(one_share(units=-4)), "shares[0].units: must be a whole"),
        (placement_text(one_share(cores=True)), "shares[0].cores: must be a whole"),
        (placement_text(one_share(containers=[])), ".containers: must be an object"),
        (
            placement_text(*[one_share()] * 465),
            "key.shares: has 465 shares; a pod can have 464",
        ),
        *(
            (
                placement_text(one_share(containers={"a": placed})),
                "containers.a: must be",
            )
            for placed in ([1], 1, [-1, 1], [1, "1"], [True, 1])
        ),
    ],
)
def test_broken_placements_are_named(text: str, complaint: str) -> None:
    with pytest.raises(Malformed) as caught:
        decode_placement(text, ref(), N, "key")
    assert complaint in str(caught.value)


NUMBERS = st.integers(0, 120_000)
NAMES = st.text("az09-", max_size=3) | st.just("}")


@given(
    NUMBERS,
    NUMBERS,
    st.dictionaries(NAMES, st.tuples(NUMBERS, NUMBERS), max_size=18),
    st.sampled_from(["", "2026-01-01T00:00:00.000Z", "\n", '"}']),
)
def test_what_the_extender_writes_is_read_as_any_json(
    cores: int, units: int, containers: dict[str, tuple[int, int]], at: str
) -> None:
    """The quick way for its own form gives what the reader of any form gives."""
    amounts = tuple(
        ContainerAmount(name, Amount(*pair)) for name, pair in containers.items()
    )
    share = Share(CardUUID("GPU-0"), Amount(cores, units), amounts)
    written = encode_placement(Placement(ref(), N, (share,)), at)
    spaced = orjson.dumps(orjson.loads(written), option=orjson.OPT_INDENT_2).decode()
    read = decode_placement(written, ref(), N)
    assert read == decode_placement(spaced, ref(), N)
    assert read == Placement(ref(), N, (share,))
    assert decode_placement(written, ref(uid="uid-other"), N) is None


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("[1,4]}", "[1,4],}"), ("[1,4]", "[01,4]"), ("[1,4]", "[1,4,4]"), ("}],", "},],")],
)
def test_what_only_looks_like_it_is_broken(right: str, wrong: str) -> None:
    """The quick way reads nothing that is not JSON."""
    amount = Amount(1, 4)
    share = Share(CardUUID("GPU-0"), amount, (ContainerAmount("main", amount),))
    written = encode_placement(Placement(ref(), N, (share,)), "")
    assert right in written
    with pytest.raises(Malformed):
        decode_placement(written.replace(right, wrong), ref(), N)


@pytest.mark.parametrize(
    ("units", "wanted", "read"),
    [
        pytest.param(8, APART, [(60, 4), (40, 4)], id="parts"),
        pytest.param(16, APART, [(100, 16)], id="apart-since-it-was-bound"),
        pytest.param(8, TOGETHER, [(100, 8)], id="one-claim"),
        pytest.param(8, ONE_CARD, [(100, 8)], id="containers-of-one-claim"),
    ],
)
def test_what_an_earlier_version_has_added_up(
    units: int, wanted: PodRequest, read: list[tuple[int, int]]
) -> None:
    """Its sum of parts is no whole card; a whole card stays one, whatever is asked."""
    containers = [part.containers[0] for part in APART.claims]
    share = Share(CardUUID("GPU-0"), Amount(100, units), tuple(containers))
    text = encode_placement(Placement(ref(), N, (share,)), "")
    read_back, complaint = read_placements({names.PLACEMENT: text}, ref(), wanted, N)
    assert not complaint
    amounts = [share.amount for share in read_back[names.PLACEMENT].shares]
    assert amounts == [Amount(*part) for part in read]


def test_pods_that_hold_as_much_share_what_is_kept() -> None:
    """A hundred thousand pods are of few kinds; each has its card, and no more."""
    read_back = []
    for name in ("GPU-0", "GPU-1"):
        placed = (ContainerAmount("main", Amount(1, 4)),)
        share = Share(CardUUID(name), Amount(1, 4), placed)
        text = encode_placement(Placement(ref(), N, (share,)), "")
        read = decode_placement(text, ref(), N)
        assert read is not None
        read_back += read.shares
    part, other = read_back
    assert part.card != other.card
    assert part.containers is other.containers
    assert part.amount is other.amount


def words(**lists: str) -> str:
    """Why a pod with these lists is refused."""
    keys = {"models": names.MODELS, "uuids": names.UUIDS}
    read_back = read_card_selector({keys[name]: text for name, text in lists.items()})
    assert isinstance(read_back, Refusal)
    return refusal_text(read_back)


@pytest.mark.parametrize(
    ("notes", "read_back"),
    [
        (
            {names.MODELS: " Tesla P4,,A10* , ", names.UUIDS: "GPU-1"},
            CardSelector.of(["Tesla P4", "A10*"], ["GPU-1"]),
        ),
        (
            {names.MODELS: "!Tesla P4, ! T4*", names.UUIDS: "!GPU-1"},
            CardSelector.of(["!Tesla P4", "!T4*"], ["!GPU-1"]),
        ),
        ({names.POLICY: "spread"}, None),
    ],
)
def test_lists_with_commas(
    notes: dict[str, str], read_back: CardSelector | None
) -> None:
    assert read_card_selector(notes) == read_back


@pytest.mark.parametrize("text", ["", " ", ",", " , ,"])
def test_a_list_of_nothing_is_refused(text: str) -> None:
    """It would allow no card at all; leaving it out allows them all."""
    assert words(models=text) == (
        "Invalid vcuda request: baidu.com/vcuda-models names nothing; name some, as "
        'in "Tesla T4" or "!Tesla T4", with the quotes in YAML, or leave it out'
    )
    assert "baidu.com/vcuda-uuids names nothing" in words(uuids=text)


@pytest.mark.parametrize(
    ("limits", "entries", "why"),
    [
        ("models", "RTX * Ada|a*b*|***|*a*b*|!RTX * Ada", "* may stand first or last"),
        ("uuids", "GPU 1|GPU-*|-1|ä|a/b|!GPU 1|%s|" + "0" * 5000, "give a UUID as gpu"),
        ("models uuids", "!|! |!!P4|! !P4", "after one ! comes what is not allowed"),
    ],
    ids=["star in the middle", "no uuid", "denial of nothing"],
)
def test_what_can_name_no_card_is_refused(limits: str, entries: str, why: str) -> None:
    """In few words that are fit for an event: kube-scheduler formats a percent sign."""
    for limit in limits.split():
        for entry in entries.split("|"):
            read_back = words(**{limit: f"GPU-0,{entry}"})
            assert why in read_back
            assert "%" not in read_back
            assert len(read_back) < 300


def test_a_list_has_an_end() -> None:
    """Each entry is held against each card of the cluster."""
    names_of_32 = ",".join(f"m{n}" for n in range(32))
    assert isinstance(read_card_selector({names.MODELS: names_of_32}), CardSelector)
    assert "names 33 things; it may name 32" in words(models=f"{names_of_32},one-more")


def test_links_are_listed_once_for_each_pair() -> None:
    """In the order 0-1, 0-2, 1-2; as one number where all pairs are the same."""
    shared = [card(index, 29) for index in range(3)]
    uneven = with_scores(shared, (250, 10, 30))
    assert orjson.loads(encode_cards(uneven))["links"] == [250, 10, 30]
    assert orjson.loads(encode_cards(with_scores(shared, (50, 50, 50))))["links"] == 50
    for listed in (uneven, with_scores(shared, (50, 50, 50))):
        assert decode_cards(encode_cards(listed)) == listed
        assert find_broken_links(encode_cards(listed)) == ""
    assert encode_cards(with_scores(shared, (0, 0, 0))) == encode_cards(shared)


def test_a_reader_from_before_links_reads_the_cards_as_they_are() -> None:
    """The cards of the new text are those of the old one, and the old one has no links.

    A reader ignores fields that it does not know.
    """
    shared = [card(index, 29) for index in range(3)]
    old = encode_cards(shared)
    new = orjson.loads(encode_cards(with_scores(shared, (250, 10, 30))))
    assert {key: new[key] for key in ("v", "cards")} == orjson.loads(old)
    assert all(part.links == () for part in decode_cards(old))


@pytest.mark.parametrize(
    ("links", "problem"),
    [
        ([250, 10], "has 2 scores; 3 cards have 3 pairs"),
        ([250, 10, 30, 30], "has 4 scores; 3 cards have 3 pairs"),
        ([250, 10, "30"], "must be whole numbers of 0 to 10000"),
        ([250, 10, True], "must be whole numbers of 0 to 10000"),
        ([250, 10, -1], "must be whole numbers of 0 to 10000"),
        ([250, 10, 10_001], "must be whole numbers of 0 to 10000"),
        ("dgx", "must be whole numbers of 0 to 10000"),
        ({"0-1": 250}, "must be whole numbers of 0 to 10000"),
        ([[0, 1], [1, 0], 3], "must be whole numbers of 0 to 10000"),
    ],
)
def test_broken_links_are_told_and_leave_the_cards_usable(
    links: object, problem: str
) -> None:
    shared = tuple(card(index, 29) for index in range(3))
    body = orjson.loads(encode_cards(shared)) | {"links": links}
    text = orjson.dumps(body).decode()
    assert decode_cards(text) == shared
    assert find_broken_links(text) == f"baidu.com/vcuda-cards.links: {problem}"


def test_links_of_a_broken_annotation_are_no_second_problem() -> None:
    assert find_broken_links('{"v":1,"links":[250') == ""
    assert find_broken_links('{"v":1,"links":[250]}') == ""


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", []),
        ("GPU-0", ["GPU-0"]),
        ("GPU-0,GPU-1", ["GPU-0", "GPU-1"]),
        (" GPU-0 ,\n\tGPU-1, ,,GPU-0,", ["GPU-0", "GPU-1"]),
        (" , ", []),
        ("GPU-0,GPU-0=make-room-1f9c,GPU-1=x", ["GPU-0"]),
    ],
    ids=["nothing", "one", "two", "untidy", "commas alone", "owners"],
)
def test_a_list_with_commas(text: str, read: list[str]) -> None:
    assert sorted(read_uuids(text)) == read


def test_a_nodes_cards() -> None:
    """Cordons are the operator's own annotation; unknown cards in it are ignored."""
    thing = node_json("n", card(0), card(1), annotations={names.CORDON: "GPU-1,GPU-9"})
    assert read_cards(thing) == (card(0), card(1, cordoned=True))
    assert read_cordon(thing) == {"GPU-1", "GPU-9"}
    assert read_cards(node_json()) == ()
    written = node_json("n", card(0, cordoned=True))["metadata"]["annotations"]
    assert "cordon" not in written[names.CARDS]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("baidu.com/vcuda-model", "did you mean baidu.com/vcuda-models?"),
        ("baidu.com/vcuda-container", "did you mean baidu.com/vcuda-containers?"),
        ("baidu.com/vcuda-uuid", "did you mean baidu.com/vcuda-uuids?"),
        ("baidu.com/vcuda-Policy", "did you mean baidu.com/vcuda-policy?"),
        ("vcuda-models", "did you mean baidu.com/vcuda-models?"),
        ("example.com/vcuda-policy", "did you mean baidu.com/vcuda-policy?"),
        ("baidu.com/vcuda-cards", "known are vcuda-policy, vcuda-containers, vcuda-"),
        ("baidu.com/vcuda", "known are vcuda-policy, vcuda-containers, vcuda-"),
    ],
)
def test_an_annotation_that_means_nothing_is_told(key: str, meant: str) -> None:
    (message,) = find_unknown_annotations(pod_json(units=1, annotations={key: "x"}))
    assert message.startswith(f"the annotation {key} is unknown here; {meant}")


def test_annotations_that_mean_something_or_are_of_others_are_not_told() -> None:
    ours = (names.PLACEMENT, names.ACTUAL, names.CONTAINERS, names.POLICY, names.MODELS)
    others = ("prometheus.io/scrape", "example.com/model", "baidu.com/owner", "policy")
    known = (*ours, *others, names.UUIDS, names.BITFUSION_CLIENT, CARD_MIB)
    pod = pod_json(units=1, annotations=dict.fromkeys(known, "x"))
    assert list(find_unknown_annotations(pod)) == []
    assert list(find_unknown_annotations({"metadata": {}})) == []


def test_only_a_few_are_told() -> None:
    """A pod may have thousands."""
    many = {f"baidu.com/vcuda-{n}": "" for n in range(1000)}
    assert len(list(find_unknown_annotations(pod_json(annotations=many)))) == 5
