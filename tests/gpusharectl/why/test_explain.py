"""why on a screen: ``screens/why-*.txt`` (``golden`` renews them), and its cases."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings

from gpushare.domain.model import PodRequest
from gpushare.domain.node import Node
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards, encode_placement
from gpushare.kube.cluster import Json
from gpusharectl.state.read import ClusterState
from gpusharectl.why.command import draw_answer, encode_answer
from gpusharectl.why.explain import MOST_WAYS, explain_pod
from gpusharectl.why.verdict import judge_node
from tests.builders import (
    AT,
    FIRST_FIT,
    bound_json,
    card,
    container_json,
    node_json,
    placement,
    pod_json,
    share,
)
from tests.gpusharectl.cluster_states import (
    SCENES,
    A,
    B,
    asking,
    cluster_state,
    crowded_cards,
    held,
    node_of,
)
from tests.gpusharectl.golden import assert_as_kept, drawn
from tests.test_card_laws import asked, mixed, only_wanted


def pod_in(seen: ClusterState, name: str) -> Json:
    return next(one.body for one in seen.pods.values() if one.record.pod.name == name)


def data_of(seen: ClusterState, pod: Json) -> Any:
    return encode_answer(explain_pod(seen, pod), seen.placements)


def shown(seen: ClusterState, pod: Json) -> str:
    return drawn(partial(draw_answer, answer=explain_pod(seen, pod), state=seen))


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
        ("tied", "next"),
        ("limited", "next"),
        ("limited", "a"),
        ("troubled", "left-behind"),
    ],
)
def test_each_pod_has_its_answer(scene: str, name: str) -> None:
    """At 80 columns, the answer first and the next step last."""
    seen = SCENES[scene]()
    found = shown(seen, pod_in(seen, name))
    assert [line for line in found.splitlines() if len(line) > 80] == []
    assert_as_kept(f"why-{scene}-{name}", found)


@pytest.mark.parametrize(
    ("units", "cores"), [(100, 1), (500, 1), (20, 1), (0, 300), (0, 500)]
)
def test_equal_answers_of_many_cards_are_told_once(units: int, cores: int) -> None:
    """The nearest cards or nodes by name, the others counted; all of them by -v."""
    seen = crowded_cards(units, cores)
    found = shown(seen, pod_in(seen, "big"))
    assert [line for line in found.splitlines() if len(line) > 80] == []
    assert_as_kept(f"why-46-cards-{units}-{cores}", found)
    draw = partial(
        draw_answer, answer=explain_pod(seen, pod_in(seen, "big")), state=seen
    )
    whole = drawn(partial(draw, verbose=True))
    assert len(set(re.findall(r"^gpu-\S+ card \d", whole, re.MULTILINE))) == 44


def test_a_node_that_the_pod_may_not_use_has_no_advice() -> None:
    """Neither its room nor its pods help; without any other node that is said."""
    seen = SCENES["tied"]()
    pod = pod_in(seen, "next")
    data = data_of(seen, pod)
    barred = {node["name"]: node["barred"] for node in data["nodes"]}
    assert [name for name, why in barred.items() if why is None] == ["node-1"]
    assert not any(node["fits"] for node in data["nodes"])
    assert {way["node"] for way in data["ways"]} == {"node-1"}
    pod["spec"]["nodeSelector"] = {"zone": "c"}
    seen = cluster_state(seen.nodes, [pod])
    found = " ".join(shown(seen, pod).split())
    assert "It has waited for 5m55s: it may use no node with cards. card" in found
    assert "node-1 may not use its nodeSelector is zone=c, the node has zone=a" in found
    assert "To run it: correct what keeps it away, or add a node" in found


def test_a_node_whose_cards_are_refused_says_why() -> None:
    """The extender leaves it out as a whole; 65 cards are more than a server has."""
    seen = SCENES["tied"]()
    pod = pod_in(seen, "next")
    text = encode_cards(card(index, 29) for index in range(65))
    bad = node_json("bad", annotations={names.CARDS: text})
    seen = cluster_state((*seen.nodes, bad), [pod])
    found = " ".join(shown(seen, pod).split())
    assert "bad may not use baidu.com/vcuda-cards.cards:" in found
    assert "has 65 cards; a node may share 64" in found


LONG = "ip-10-0-12-34.eu-central-1.compute.internal"


def test_long_names_of_nodes_leave_room_for_the_answer() -> None:
    """They are on a line of their own, and not cut."""
    nodes = [node_of(LONG, card(0, uuid=A), card(1, uuid=B))]
    pods = [held("a", A, 20, node=LONG), held("b", B, 20, node=LONG)]
    seen = cluster_state(nodes, [*pods, asking(units=29)])
    found = shown(seen, pod_in(seen, "big"))
    assert f"{LONG} card 0\n" in found
    assert [line for line in found.splitlines() if len(line) > 80] == []
    assert "lacks 20 units; would fit without default/a (20" in " ".join(found.split())


P4, T4 = card(0, 29), card(1, 29, model="Tesla T4")
ONE, BOTH = node_of("n", P4), node_of("n", P4, T4)
EARLIER = "before this one; card"


def bound(index: int, units: int, name: str = "p", priority: int = 0) -> Json:
    return bound_json(placement(name, index, units, 1, node="n", priority=priority))


def noted(pod: Json, key: str, text: str) -> Json:
    pod["metadata"].setdefault("annotations", {})[key] = text
    return pod


def swapped() -> Json:
    plan = placement("p", 1, 5, 1, node="n")
    actual = replace(plan, shares=(share(0, 5, 1),))
    return noted(bound_json(plan), names.ACTUAL, encode_placement(actual, AT))


def failed() -> Json:
    pod = pod_json("done", units=5, node="n", phase="Failed")
    pod["status"] |= {"reason": "UnexpectedAdmissionError", "message": "no room"}
    return pod


def with_spec(**spec: object) -> Json:
    pod = asking(units=5)
    pod["spec"] |= spec
    return pod


def picky(wish: str, units: int = 20) -> Json:
    return asking(units=units, annotations={names.MODELS: wish})


CASES = {
    "own-policy": (
        [ONE],
        [noted(bound(0, 5), names.POLICY, "spread")],
        ["spread, its own choice"],
    ),
    "rule": (
        [ONE],
        [noted(bound(0, 5), names.POLICY, "best-fit")],
        ["best-fit takes the card with the least room that is enough"],
    ),
    "planned-elsewhere": (
        [node_of("n", card(0), card(1))],
        [swapped()],
        ["The plan was card 1; kubelet chose another card"],
    ),
    "earlier-cards": (
        [
            node_of(
                "n", card(0, 3), card(1, healthy=False), card(2, cordoned=True), card(3)
            )
        ],
        [bound(3, 5)],
        [
            f"card 0 {EARLIER} 0 has too little room, 3 units",
            f"card 1 {EARLIER} 1 is sick",
            f"card 2 {EARLIER} 2 is cordoned",
        ],
    ),
    "lower-priority": (
        [ONE],
        [asking(units=20, priority=5), bound(0, 25, priority=1)],
        ["kube-scheduler may preempt pods of a lower priority on n"],
    ),
    "equal-priority": (
        [ONE],
        [asking(units=20, priority=1), bound(0, 25, priority=1)],
        ["!kube-scheduler may preempt"],
    ),
    "many-nodes": (
        [node_of(f"n-{n:02}", card(0, 10 + n, uuid=f"G{n}")) for n in range(40)],
        [asking(units=60)],
        [
            "60 units are asked, but the largest card has 49, so it can never run",
            "40 cards of 40 nodes the card has only 10 to 49 units",
            "To run it: request at most 49 units (12.25 GiB); now 49 are free",
        ],
    ),
    "zero": ([], [pod_json("zero", units=0)], ["requests no part of a card"]),
    "ended": (
        [],
        [failed()],
        ["has ended on n: Failed (UnexpectedAdmissionError: no room)"],
    ),
    "invalid": ([], [asking(cores=150)], ["can run on no node", "ask 100 or 200"]),
    "another-scheduler": (
        [ONE],
        [with_spec(schedulerName="mine")],
        ['one named "mine" runs'],
    ),
    "gated": ([ONE], [with_spec(schedulingGates=[{"name": "team/x"}])], ["team/x"]),
    "no-such-model": (
        [BOTH],
        [picky("H100, *GH200*")],
        [
            "It has waited for 5m55s: baidu.com/vcuda-models allows no card.",
            "It may use cards of the models *gh200*, h100, and no others.",
            "To run it: let it use more cards (baidu.com/vcuda-models) -o json",
        ],
    ),
    "denied-model": (
        [BOTH],
        [picky("!Tesla P4"), bound(1, 25)],
        [
            "It may use cards of any model but tesla p4, and no others.",
            "0 29 units, 100 cores excluded by baidu.com/vcuda-models",
            "delete default/p from n card 1",
        ],
    ),
    "no-room-on-others-either": (
        [BOTH],
        [picky("Tesla T4"), bound(0, 25, "p0"), bound(1, 25, "p1")],
        ["delete default/p1 from n card 1", "!let it use more cards", "!default/p0"],
    ),
    "too-small-for-ever": (
        [BOTH],
        [picky("Tesla T4", units=40), bound(1, 29)],
        ["40 units are asked, but the largest card that it may use has 29, so it can"],
    ),
}


@pytest.mark.parametrize(("nodes", "pods", "words"), CASES.values(), ids=CASES)
def test_the_answer_for_the_first_pod_says(
    nodes: Sequence[Json], pods: Sequence[Json], words: Sequence[str]
) -> None:
    """Words after ``!`` are not in it."""
    found = " ".join(shown(cluster_state(nodes, pods), pods[0]).split())
    for one in words:
        assert (one.removeprefix("!") in found) != one.startswith("!"), one


def test_the_nearest_node_is_found_wherever_it_is() -> None:
    """The last of more nodes than are looked at is the only one that can fit."""
    small = [node_of(f"n-{n:02}", card(0, uuid=f"G{n}")) for n in range(MOST_WAYS + 5)]
    large = node_of("z", card(0, uuid="Z0"), card(1, uuid="Z1"))
    holder = bound_json(placement("holder", node="z", shares=[share("Z1", 5, 1)]))
    pod = asking(cores=200)
    found = shown(cluster_state([*small, large], [pod, holder]), pod)
    assert "\nz " in found
    assert "would fit without default/holder" in " ".join(found.split())


def test_memory_in_mib_that_no_webhook_has_changed() -> None:
    """No node offers it, so the pod waits for ever."""
    pod = pod_json(containers=[container_json("a"), container_json("b", mib=5000)])
    seen = cluster_state([node_of("n", card())], [pod])
    found = " ".join(shown(seen, pod).split())
    assert "Note: it asks for baidu.com/vcuda-memory-mib, which no node offers" in found


def test_a_misspelt_annotation_is_reported() -> None:
    """On the screen and in the data."""
    told = (
        "the annotation baidu.com/vcuda-model is unknown here; did you mean "
        "baidu.com/vcuda-models?"
    )
    for units in (40, 4, 30):
        pod = asking(units=units, annotations={"baidu.com/vcuda-model": "Tesla P4"})
        seen = cluster_state([node_of("n", card())], [pod])
        assert f"Note: {told}" in " ".join(shown(seen, pod).split())
        assert data_of(seen, pod)["warnings"] == [told]
    pod = picky("Tesla P4", units=4)
    assert data_of(seen, pod)["warnings"] == []


def test_words_on_quotas_are_notes() -> None:
    """On the screen and in the data, beside those on the pod."""
    note = "quota edge/gpu: keys that count nothing: limits.baidu.com/vcuda-core"
    for units in (40, 4):
        pod = asking(units=units)
        seen = cluster_state([node_of("n", card())], [pod])
        answer = replace(explain_pod(seen, pod), notes=[note])
        text = drawn(partial(draw_answer, answer=answer, state=seen))
        assert f"Note: {note}" in " ".join(text.split())
        assert encode_answer(answer, seen.placements)["warnings"] == [note]


def test_a_container_that_is_kept_waiting() -> None:
    """kubelet's words, which are the device plugin's; exit code 3."""
    seen = SCENES["small"]()
    pod = pod_in(seen, "app-1")
    waits = {"reason": "CreateContainerConfigError", "message": "kubelet chose card X"}
    pod["status"]["containerStatuses"] = [{"state": {"waiting": waits}}]
    assert explain_pod(seen, pod).code == 3
    words = "does not start; kubelet says: CreateContainerConfigError"
    assert words in shown(seen, pod)


@settings(max_examples=50)
@given(mixed(), asked)
def test_a_card_that_is_excluded_never_fits(page: Node, asks: PodRequest) -> None:
    """What would fit now is of the others alone."""
    verdict = judge_node(asks, page, FIRST_FIT)
    assert not any(one.excluded and (one.fits or one.ever) for one in verdict.cards)
    seen = only_wanted(page.as_seen_by(asks.pod), asks)
    assert verdict.fits_now.shares == judge_node(asks, seen, FIRST_FIT).fits_now.shares


@pytest.mark.parametrize(
    ("units", "nominated", "in_sum"),
    [
        (20, "", {"node": "n", "cores": 198, "units": 28, "memory_mib": 7168}),
        # Its preempted pods leave: it waits for no autoscaler.
        (20, "n", None),
        # It fits on no card of this kind, so another node would not help either.
        (28, "", None),
    ],
    ids=["fragmented", "nominated", "never"],
)
def test_an_autoscaler_does_not_help_against_fragmentation(
    units: int, nominated: str, in_sum: Json | None
) -> None:
    node = node_of("n", card(0, 27, uuid=A), card(1, 27, uuid=B))
    pods = [held("a", A, 13, node="n"), held("b", B, 13, node="n")]
    pod = asking(units=units)
    if nominated:
        pod["status"]["nominatedNodeName"] = nominated
    seen = cluster_state([node], [*pods, pod])
    assert data_of(seen, pod)["fits_in_sum"] == in_sum
    # kube-scheduler counts also what requests a card that is gone.
    lost = cluster_state([node], [*pods, held("c", "GPU-gone", 20, node="n"), pod])
    assert data_of(lost, pod)["fits_in_sum"] is None
    words = "No autoscaler adds a node for its card: n has 28 units and 198 cores free"
    assert (words in " ".join(shown(seen, pod).split())) == bool(in_sum)


PREEMPTS = "kube-scheduler may preempt pods of a lower priority on n."
SPARES = "kube-scheduler preempts none for its cards"


@pytest.mark.parametrize(
    ("units", "spec", "says"),
    [
        # 27 of each card's 29 units are held, so 4 are free in all.
        (20, {}, PREEMPTS),
        (3, {}, f"{SPARES}: their nodes have enough in all, not on one card."),
        (20, {"preemptionPolicy": "Never"}, f"{SPARES}: its preemptionPolicy is Never"),
        (
            20,
            {"schedulingGates": [{"name": "g"}]},
            f"{SPARES}: it has scheduling gates",
        ),
        (20, {"priority": 0}, ""),
        (30, {}, ""),
    ],
    ids=["short", "fragmented", "never", "gated", "equal priority", "too large"],
)
def test_preemption_is_promised_only_where_kube_scheduler_may_preempt(
    units: int, spec: Json, says: str
) -> None:
    """It compares a node's sums, and evicts nobody where they suffice."""
    node = node_of("n", card(0, 29, uuid=A), card(1, 29, uuid=B))
    pod = asking("vip", units, priority=1000)
    pod["spec"] |= spec
    pods = [held("a", A, 27, node="n"), held("b", B, 27, node="n"), pod]
    seen = cluster_state([node], pods)
    words = " ".join(shown(seen, pod).split())
    assert says in words
    assert ("preempt" in words) == bool(says)
    evicts = data_of(seen, pod)["evicts"]
    assert evicts == (says == PREEMPTS)


def test_a_whole_card_counts_in_the_sums_as_what_its_pod_requests() -> None:
    """It is charged in full here, and kube-scheduler knows only of the request."""
    node = node_of("n", card(0, 29, uuid=A), card(1, 29, uuid=B))
    whole = held("whole", A, 29, 100, node="n")
    for amounts in whole["spec"]["containers"][0]["resources"].values():
        amounts[names.MEMORY] = "2"
    pod = asking("vip", 10, priority=1000)
    seen = cluster_state([node], [whole, held("b", B, 20, node="n"), pod])
    words = " ".join(shown(seen, pod).split())
    assert f"{SPARES}: their nodes have enough in all, not on one card." in words
    in_sum = data_of(seen, pod)["fits_in_sum"]
    assert (in_sum["units"], in_sum["cores"]) == (36, 99)


def test_the_fewest_pods_to_delete_are_not_those_that_are_preempted() -> None:
    """One pod of a higher priority would be enough; kube-scheduler takes two others."""
    node = node_of("n", card(0, 29, uuid=A), card(1, 29, uuid=B))
    important = held("a", A, 28, node="n")
    important["spec"]["priority"] = 2000
    others = [held(name, B, 14, node="n") for name in ("b", "c")]
    pod = asking("vip", 20, priority=1000)
    seen = cluster_state([node], [important, *others, pod])
    assert data_of(seen, pod)["evicts"]
