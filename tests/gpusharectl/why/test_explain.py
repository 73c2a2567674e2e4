"""why on a screen: ``screens/why-*.txt`` (``golden`` renews them), and its cases."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given

from gpushare.domain.model import PodRequest
from gpushare.domain.node import Node
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json
from gpusharectl.state.read import ClusterState
from gpusharectl.state.render import source
from gpusharectl.why.explain import why
from gpusharectl.why.render import draw_answer
from gpusharectl.why.serialize import answer_data
from gpusharectl.why.verdict import judge
from tests.builders import AT, FIRST_FIT, bound_json, card, placement, pod_json, share
from tests.gpusharectl.cluster_states import NOW, SCENES, asking, cluster_state, node_of
from tests.gpusharectl.golden import assert_as_kept, drawn
from tests.test_card_laws import asked, mixed, only_wanted
from tests.test_laws import moderately


def pod_in(seen: ClusterState, name: str) -> Json:
    return next(one.body for one in seen.pods.values() if one.record.pod.name == name)


def said(seen: ClusterState, pod: Json) -> str:
    answer = why(seen, pod)
    books = source(seen.placements)
    return drawn(partial(draw_answer, answer=answer, now=NOW, source=books))


@pytest.mark.parametrize(
    ("scene", "name"),
    [
        ("small", "big"),
        ("small", "app-2"),
        ("small", "cuda-3"),
        ("sick", "next"),
        ("cordoned", "next"),
        ("whole_card", "two"),
        ("whole_card", "alone"),
        ("swapped", "mover"),
        ("unplaced", "byhand"),
        ("unplaced", "next"),
        ("making_room", "vip"),
        ("making_room", "old"),
        ("for_cores", "hungry"),
        ("fragmented", "both"),
        ("unknown_policy", "big"),
        ("apart", "pair"),
        ("selected", "picky"),
        ("selected", "mine"),
        ("crowd", "p-00"),
        ("ready_soon", "next"),
        ("troubled", "left-behind"),
    ],
)
def test_each_pod_has_its_answer(scene: str, name: str) -> None:
    """At 80 columns, the answer first and the next step last."""
    seen = SCENES[scene]()
    found = said(seen, pod_in(seen, name))
    assert [line for line in found.splitlines() if len(line) > 80] == []
    assert_as_kept(f"why-{scene}-{name}", found)


def test_a_card_that_was_planned_is_named_by_its_index() -> None:
    """Also one that the policy likes less than the pod's own."""
    plan = placement("p", 1, 5, 1, node="n")
    pod = bound_json(plan)
    actual = replace(plan, shares=(share(0, 5, 1),))
    pod["metadata"]["annotations"][names.ACTUAL] = encode_placement(actual, AT)
    seen = cluster_state([node_of("n", card(0), card(1))], [pod])
    assert "The plan was card 1; kubelet chose another card" in said(seen, pod)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (None, "first-fit, the cluster's default"),
        ("spread", "spread, its own choice"),
        ("best-fit", "best-fit takes the card with the least room that is enough"),
    ],
)
def test_the_policy_is_told(policy: str | None, words: str) -> None:
    """Whose it is, and what it likes."""
    pod = bound_json(placement("p", 0, 5, 1, node="n"))
    if policy:
        pod["metadata"]["annotations"][names.POLICY] = policy
    seen = cluster_state([node_of("n", card(0))], [pod])
    assert words in " ".join(said(seen, pod).split())


def test_a_card_that_it_went_by_is_told_with_its_reason() -> None:
    """Too little room, sick, or cordoned."""
    its = (card(0, 3), card(1, healthy=False), card(2, cordoned=True), card(3))
    pod = bound_json(placement("p", 3, 5, 1, node="n"))
    found = said(cluster_state([node_of("n", *its)], [pod]), pod)
    order = "comes before it in this order: it"
    assert f"Card 0 {order} has too little room, 3 units" in found
    assert f"Card 1 {order} is sick" in found
    assert f"Card 2 {order} is cordoned" in found


def test_less_important_pods_may_be_evicted() -> None:
    """kube-scheduler does that by itself, so nobody need do it by hand."""
    low = bound_json(placement("low", 0, 25, 1, node="n", priority=1))
    pod = asking(units=20, priority=5)
    seen = cluster_state([node_of("n", card(0))], [low, pod])
    words = "so kube-scheduler may preempt them"
    assert words in " ".join(said(seen, pod).split())
    equal = asking(units=20, priority=1)
    seen = cluster_state([node_of("n", card(0))], [low, equal])
    assert words not in " ".join(said(seen, equal).split())


def test_many_nodes_are_cut() -> None:
    """The ten nearest to fitting are shown; the others are counted."""

    nodes = [node_of(f"n-{n:02}", card(0, 10 + n, uuid=f"G{n}")) for n in range(40)]
    pod = asking(units=60)
    found = said(cluster_state(nodes, [pod]), pod)
    assert "and 30 nodes more, which are no nearer" in found
    assert "n-39" in found
    assert "n-29" not in found


def test_what_a_pod_says_in_vain_is_said() -> None:
    """A misspelt annotation counts for nothing: on the screen and in the data."""
    told = (
        "the annotation baidu.com/vcuda-model is unknown here; did you mean "
        "baidu.com/vcuda-models?"
    )
    for size in ({"units": 40}, {"units": 4}, {}):
        pod = asking(annotations={"baidu.com/vcuda-model": "Tesla P4"}, **size)
        seen = cluster_state([node_of("n", card())], [pod])
        assert f"Note: {told}" in " ".join(said(seen, pod).split())
        assert answer_data(why(seen, pod), seen.placements)["warnings"] == [told]
    pod = asking(units=4, annotations={names.MODELS: "Tesla P4"})
    seen = cluster_state([node_of("n", card())], [pod])
    assert answer_data(why(seen, pod), seen.placements)["warnings"] == []


def test_a_pod_that_asks_nothing() -> None:
    """It is told so, whatever else may be wrong with it."""
    found = said(cluster_state(), pod_json("plain"))
    assert "default/plain requests no part of a card" in found


def test_a_pod_that_asks_zero() -> None:
    """Zero of our resource is nothing either."""
    assert why(cluster_state(), pod_json("zero", units=0)).state == "asks-nothing"


def test_a_pod_that_ended() -> None:
    """It holds nothing, and its own status says why it ended."""
    pod = pod_json("done", units=5, node="n", phase="Failed")
    pod["status"] |= {"reason": "UnexpectedAdmissionError", "message": "no room"}
    found = said(cluster_state(), pod)
    assert "has ended on n: Failed (UnexpectedAdmissionError: no room)" in found


def test_an_invalid_request() -> None:
    """The words say what to ask instead."""
    found = said(cluster_state(), asking(cores=150))
    assert "can run on no node" in found
    assert "ask 100 or 200" in " ".join(found.split())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"schedulerName": "mine"}, 'one named "mine" runs'),
        ({}, 'one named "default-scheduler" runs'),
        ({"schedulingGates": [{"name": "team/quota"}]}, "team/quota"),
    ],
    ids=["another-scheduler", "no-scheduler-yet", "gated"],
)
def test_reasons_that_are_not_ours(spec: Json, words: str) -> None:
    """There is room, and nobody has looked at the pod: it says who should."""

    pod = asking(units=5)
    pod["spec"] |= spec
    found = said(cluster_state([node_of("n", card(0, 29))], [pod]), pod)
    assert words in " ".join(found.split())


def test_a_container_that_is_kept_waiting() -> None:
    """kubelet's words, which are the device plugin's; exit code 3."""
    seen = SCENES["small"]()
    pod = pod_in(seen, "app-1")
    waits = {"reason": "CreateContainerConfigError", "message": "kubelet chose card X"}
    pod["status"]["containerStatuses"] = [{"state": {"waiting": waits}}]
    assert why(seen, pod).code == 3
    assert "does not start; kubelet says: CreateContainerConfigError" in said(seen, pod)


P4, T4 = card(0, 29), card(1, 29, model="Tesla T4")


def answered(seen: ClusterState, pod: Json) -> str:
    answer = why(seen, pod)
    found = drawn(
        partial(draw_answer, answer=answer, now=NOW, source=source(seen.placements))
    )
    return " ".join(found.split())


def two_cards(
    *pods: Json, wish: str, key: str = names.MODELS
) -> tuple[ClusterState, Json]:
    pod = asking(units=20, annotations={key: wish})
    return cluster_state([node_of("n", P4, T4)], [*pods, pod]), pod


def test_no_card_is_of_such_a_model() -> None:
    """How many are excluded, by what, and what to do."""
    found = answered(*two_cards(wish="H100, *GH200*"))
    assert (
        "no node has a card that is open to it; 2 of 2 cards excluded by "
        "baidu.com/vcuda-models."
    ) in found
    assert "It may use cards of the models *gh200*, h100, and no others." in found
    assert found.count("excluded by baidu.com/vcuda-models") == 3
    assert "To run it: let it use more cards (baidu.com/vcuda-models)." in found


def test_what_it_may_not_have_is_said() -> None:
    """A list that denies a model leaves the others."""
    full = bound_json(placement("p", 1, 25, 1))
    found = answered(*two_cards(full, wish="!Tesla P4"))
    assert "It may use cards of any model but tesla p4, and no others." in found
    assert "0 29 units, 100 cores excluded by baidu.com/vcuda-models" in found
    assert "delete default/p from n card 1" in found
    found = answered(*two_cards(full, wish="!GPU-0", key=names.UUIDS))
    assert "It may use cards with any UUID but gpu-0, and no others." in found


def test_both_lists_are_named() -> None:
    """Each card with the ones that exclude it."""
    pod = asking(annotations={names.MODELS: "Tesla P4", names.UUIDS: "GPU-9"})
    found = answered(cluster_state([node_of("n", P4, T4)], [pod]), pod)
    both = "baidu.com/vcuda-models and baidu.com/vcuda-uuids"
    assert f"2 of 2 cards excluded by {both}" in found
    assert f"1 29 units, 100 cores excluded by {both}" in found
    assert "of the model tesla p4, and with the UUID gpu-9, and no others" in found


def test_more_cards_help_only_where_one_has_room() -> None:
    """Else the pods on those it may have are named alone."""
    full = [bound_json(placement(f"p{n}", n, 25, 1)) for n in (0, 1)]
    found = answered(*two_cards(*full, wish="Tesla T4"))
    assert "delete default/p1 from n card 1" in found
    assert "let it use more cards" not in found
    assert "default/p0" not in found


def test_what_it_may_have_is_too_small_for_ever() -> None:
    """Asking less, other cards, or a node."""
    pod = asking(units=40, annotations={names.MODELS: "Tesla T4"})
    held = bound_json(placement("p", 1, 29, 1))
    found = answered(cluster_state([node_of("n", P4, T4)], [held, pod]), pod)
    assert "no card that it may use is large enough" in found


def test_room_on_a_card_that_it_may_have() -> None:
    """Nothing is said of exclusion where it is not the reason."""
    found = answered(*two_cards(wish="Tesla T4"))
    assert "there is room on n" in found
    assert "2 of 2" not in found


def test_exclusion_in_numbers() -> None:
    """The pod's lists, and for each card the annotations that exclude it."""
    seen = SCENES["selected"]()
    picky, mine = (pod_in(seen, name) for name in ("picky", "mine"))
    data = answer_data(why(seen, picky), seen.placements)
    assert (data["models"], data["uuids"]) == (["a10", "rtx 3090"], None)
    excluded = [card["excluded_by"] for node in data["nodes"] for card in node["cards"]]
    assert excluded == [[], [names.MODELS], [names.MODELS]]
    assert [node["fits_now"]["shares"] for node in data["nodes"]][1] == []
    placed = answer_data(why(seen, mine), seen.placements)
    assert (placed["models"], placed["uuids"]) == (None, ["gpu-7cf0b881"])
    assert placed["earlier"][0]["because"] == "is excluded by baidu.com/vcuda-uuids"


@moderately
@given(mixed(), asked)
def test_a_card_that_is_excluded_never_fits(page: Node, asks: PodRequest) -> None:
    """And what would fit now is of the others alone."""
    verdict = judge(asks, page, FIRST_FIT)
    for one in verdict.cards:
        if one.excluded:
            assert not one.fits
            assert not one.ever
    seen = only_wanted(page.as_seen_by(asks.pod), asks)
    assert verdict.offers.shares == judge(asks, seen, FIRST_FIT).offers.shares
