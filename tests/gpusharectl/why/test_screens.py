"""What why says of each pod: ``screens/why-*.txt`` (``golden`` renews them)."""

from dataclasses import replace
from functools import partial

import pytest

from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json
from gpusharectl.state.read import Picture
from gpusharectl.state.render import source
from gpusharectl.why.explain import why
from gpusharectl.why.render import draw_answer
from gpusharectl.why.serialize import answer_data
from tests.builders import AT, bound_json, card, placement, pod_json, share
from tests.gpusharectl.golden import assert_as_kept, drawn
from tests.gpusharectl.pictures import NOW, node_of, picture
from tests.gpusharectl.scenes import SCENES, asking


def pod_in(seen: Picture, name: str) -> Json:
    return next(pod for pod in seen.pods if pod["metadata"]["name"] == name)


def said(seen: Picture, pod: Json) -> str:
    answer = why(seen, pod)
    books = source(seen.books)
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
    seen = picture([node_of("n", card(0), card(1))], [pod])
    assert "Planned was card 1; kubelet chose otherwise" in said(seen, pod)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (None, "first-fit, the cluster's own"),
        ("spread", "spread, its own wish"),
        ("best-fit", "best-fit takes the card with the least room that is enough"),
    ],
)
def test_the_policy_is_told(policy: str | None, words: str) -> None:
    """Whose it is, and what it likes."""
    pod = bound_json(placement("p", 0, 5, 1, node="n"))
    if policy:
        pod["metadata"]["annotations"][names.POLICY] = policy
    seen = picture([node_of("n", card(0))], [pod])
    assert words in " ".join(said(seen, pod).split())


def test_a_card_that_it_went_by_is_told_with_its_reason() -> None:
    """Too little room, sick, or cordoned."""
    its = (card(0, 3), card(1, healthy=False), card(2, cordoned=True), card(3))
    pod = bound_json(placement("p", 3, 5, 1, node="n"))
    found = said(picture([node_of("n", *its)], [pod]), pod)
    assert "before it comes card 0, which has too little, 3 units" in found
    assert "before it comes card 1, which is sick" in found
    assert "before it comes card 2, which is cordoned" in found


def test_less_important_pods_may_be_evicted() -> None:
    """kube-scheduler does that by itself, so nobody need do it by hand."""
    low = bound_json(placement("low", 0, 25, 1, node="n", priority=1))
    pod = asking(units=20, priority=5)
    seen = picture([node_of("n", card(0))], [low, pod])
    words = "kube-scheduler may evict them by itself"
    assert words in " ".join(said(seen, pod).split())
    equal = asking(units=20, priority=1)
    seen = picture([node_of("n", card(0))], [low, equal])
    assert words not in " ".join(said(seen, equal).split())


def test_many_nodes_are_cut() -> None:
    """The ten nearest to fitting are shown, and how many there are beside them."""

    nodes = [node_of(f"n-{n:02}", card(0, 10 + n, uuid=f"G{n}")) for n in range(40)]
    pod = asking(units=60)
    found = said(picture(nodes, [pod]), pod)
    assert "and 30 nodes more, which lack no less (-o json)" in found
    assert "n-39" in found
    assert "n-29" not in found


def test_what_a_pod_says_in_vain_is_said() -> None:
    """A misspelt annotation counts for nothing: on the screen and in the data."""
    told = (
        "the annotation baidu.com/vcuda-model is unknown here; did you mean "
        "baidu.com/vcuda-models?"
    )
    for asked in ({"units": 40}, {"units": 4}, {}):
        pod = asking(annotations={"baidu.com/vcuda-model": "Tesla P4"}, **asked)
        seen = picture([node_of("n", card())], [pod])
        assert f"Mind: {told}" in " ".join(said(seen, pod).split())
        assert answer_data(why(seen, pod), seen.books)["warnings"] == [told]
    pod = asking(units=4, annotations={names.MODELS: "Tesla P4"})
    seen = picture([node_of("n", card())], [pod])
    assert answer_data(why(seen, pod), seen.books)["warnings"] == []


def test_a_pod_that_asks_nothing() -> None:
    """It is told so, whatever else may be wrong with it."""
    found = said(picture(), pod_json("plain"))
    assert "default/plain asks for no part of a card" in found


def test_a_pod_that_asks_zero() -> None:
    """Zero of our resource is nothing either."""
    assert why(picture(), pod_json("zero", units=0)).state == "asks-nothing"


def test_a_pod_that_ended() -> None:
    """It holds nothing, and its own status says why it ended."""
    pod = pod_json("done", units=5, node="n", phase="Failed")
    pod["status"] |= {"reason": "UnexpectedAdmissionError", "message": "no room"}
    found = said(picture(), pod)
    assert "has ended on n: Failed (UnexpectedAdmissionError: no room)" in found


def test_an_invalid_request() -> None:
    """The words say what to ask instead."""
    found = said(picture(), asking(cores=150))
    assert "can run on no node" in found
    assert "ask 100 or 200" in " ".join(found.split())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"schedulerName": "mine"}, 'it waits for "mine"'),
        ({}, 'it waits for "default-scheduler"'),
        ({"schedulingGates": [{"name": "team/quota"}]}, "team/quota"),
    ],
    ids=["another-scheduler", "no-scheduler-yet", "gated"],
)
def test_reasons_that_are_not_ours(spec: Json, words: str) -> None:
    """There is room, and nobody has looked at the pod: it says who should."""

    pod = asking(units=5)
    pod["spec"] |= spec
    found = said(picture([node_of("n", card(0, 29))], [pod]), pod)
    assert words in " ".join(found.split())


def test_a_container_that_is_kept_waiting() -> None:
    """kubelet's words, which are the device plugin's; exit code 3."""
    seen = SCENES["small"]()
    pod = pod_in(seen, "app-1")
    waits = {"reason": "CreateContainerConfigError", "message": "kubelet chose card X"}
    pod["status"]["containerStatuses"] = [{"state": {"waiting": waits}}]
    assert why(seen, pod).code == 3
    assert "does not start; kubelet says: CreateContainerConfigError" in said(seen, pod)


@pytest.mark.parametrize(
    ("scene", "name", "code"),
    [("small", "big", 3), ("small", "app-1", 0), ("unplaced", "byhand", 3)],
)
def test_exit_codes(scene: str, name: str, code: int) -> None:
    """0 where it has its card, 3 where it waits or nobody knows."""
    seen = SCENES[scene]()
    assert why(seen, pod_in(seen, name)).code == code
