"""Kubernetes JSON to our nouns."""

from typing import Any

import pytest

from extender.bitfusion.resources import CARD_MIB
from gpushare.domain.model import Amount, PodRequest
from gpushare.domain.refusal import Reason, Refusal, invalid
from gpushare.kube import codec, names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from tests.builders import (
    AT,
    bound_json,
    card,
    claim,
    container_json,
    node_json,
    placement,
    pod_json,
    ref,
)


def asked(pod: Json) -> PodRequest:
    found = codec.pod_request(pod, codec.pod_ref(pod))
    assert isinstance(found, PodRequest)
    return found


def detail(pod: Json) -> str:
    found = codec.pod_request(pod, codec.pod_ref(pod))
    assert isinstance(found, Refusal)
    assert found.reason is Reason.INVALID
    return found.detail


def changed(pod: Json, path: str, value: Any) -> Json:
    """The pod with the value at a path such as ``spec.containers.0.name``."""
    *way, last = path.split(".")
    at: Any = pod
    for step in way:
        at = at[int(step) if isinstance(at, list) else step]
    at[last] = value
    return pod


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        (Refusal(Reason.MEMORY), "Insufficient baidu.com/vcuda-memory on one card"),
        (Refusal(Reason.CORE), "Insufficient baidu.com/vcuda-core on one card"),
        (
            Refusal(Reason.CORE_AND_MEMORY),
            "Insufficient baidu.com/vcuda-core and baidu.com/vcuda-memory on one card",
        ),
        (Refusal(Reason.UNTOUCHED_CARDS), "Insufficient untouched cards"),
        (Refusal(Reason.NO_CARDS), "No shared cards"),
        (invalid("what is wrong"), "Invalid vcuda request: what is wrong"),
    ],
    ids=lambda value: value.reason if isinstance(value, Refusal) else "",
)
def test_the_words_of_each_refusal(refusal: Refusal, text: str) -> None:
    """Fixed, so that the event counts nodes together; never a percent sign."""
    assert codec.refusal_text(refusal) == text


def test_every_reason_has_words() -> None:
    """A new reason without words would be a traceback in filter."""
    assert all(codec.refusal_text(Refusal(reason)) for reason in Reason)


@pytest.mark.parametrize(
    ("pod", "amounts"),
    [
        (pod_json(), []),
        (pod_json(units=0, cores=0), []),
        (pod_json(units=4), [Amount(0, 4)]),
        (pod_json(cores=30), [Amount(30, 0)]),
        (pod_json(units=4, cores=1), [Amount(1, 4)]),
        (pod_json(units="1k"), [Amount(0, 1000)]),
        (pod_json(units="4000m", cores="1e1"), [Amount(10, 4)]),
        (pod_json(cores=200, units=8), [Amount(200, 8)]),
        (
            pod_json(containers=[container_json("a", 4), container_json("b", 2)]),
            [Amount(0, 6)],
        ),
        (
            pod_json(
                containers=[container_json("a", 4)],
                init=[
                    container_json("s", 2, restart="Always"),
                    container_json("i", 9),
                ],
            ),
            [Amount(0, 11)],
        ),
        (
            pod_json(
                containers=[container_json("a", 4), container_json("b", 2)],
                annotations={names.CONTAINERS: "apart"},
            ),
            [Amount(0, 4), Amount(0, 2)],
        ),
    ],
    ids=[
        "nothing",
        "zeros",
        "memory alone",
        "core alone",
        "both",
        "thousands",
        "thousandths and exponents",
        "whole cards",
        "containers add up",
        "init and sidecar",
        "apart",
    ],
)
def test_what_a_pod_asks(pod: Json, amounts: list[Amount]) -> None:
    """Quantities in any notation, by the effective request of contracts 5."""
    assert [one.amount for one in asked(pod).claims] == amounts


@pytest.mark.parametrize("part", ["requests", "limits"])
def test_either_requests_or_limits_may_stand_alone(part: str) -> None:
    """The API server copies limits to requests; a pod may come before it did."""
    pod = pod_json(units=4)
    del pod["spec"]["containers"][0]["resources"][
        "limits" if part == "requests" else "requests"
    ]
    assert asked(pod).claims == (claim(4),)


def test_requests_go_before_limits() -> None:
    """As kube-scheduler counts."""
    pod = changed(
        pod_json(units=4), "spec.containers.0.resources.limits", {names.MEMORY: "9"}
    )
    assert asked(pod).claims == (claim(4),)


def test_a_pods_policy_and_priority_are_read() -> None:
    """The policy's name is looked up later, where the refusal can name the others."""
    pod = pod_json(units=4, priority=7, annotations={names.POLICY: "spread"})
    found = asked(pod)
    assert found.policy == "spread"
    assert found.pod == ref(priority=7)


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (pod_json(units="1.5"), "baidu.com/vcuda-memory is 1.5; it must be whole"),
        (pod_json(units="500m"), "baidu.com/vcuda-memory is 500m; it must be whole"),
        (pod_json(cores="0.5"), "baidu.com/vcuda-core is 0.5; it must be whole"),
        (
            pod_json(units="16Gi"),
            "baidu.com/vcuda-memory is 16Gi, but it counts units of 256 MiB; ask 64",
        ),
        (
            pod_json(units="257Mi"),
            "baidu.com/vcuda-memory is 257Mi, but it counts units of 256 MiB; ask 2",
        ),
        (pod_json(cores="1Ki"), "baidu.com/vcuda-core is 1Ki; it must be a plain num"),
        (pod_json(cores=150), "150 cores are neither a share of one card (1 to 99)"),
        (
            pod_json(units=4, annotations={names.CONTAINERS: "a%s\npart"}),
            'baidu.com/vcuda-containers is "aspart"; the only value is "apart"',
        ),
        (
            pod_json(
                units=4,
                init=[container_json("i", 1)],
                annotations={names.CONTAINERS: "apart"},
            ),
            "containers cannot be apart when an init container asks",
        ),
    ],
    ids=[
        "fraction",
        "thousandths",
        "fraction of a core",
        "bytes",
        "bytes are rounded up",
        "bytes of cores",
        "neither share nor whole",
        "unknown word",
        "apart with init",
    ],
)
def test_requests_that_no_card_can_meet(pod: Json, words: str) -> None:
    """Refused with what is wrong and, where there is one, the remedy."""
    assert detail(pod).startswith(words)
    assert "%" not in detail(pod)


def test_an_absurd_request_is_refused_in_few_words() -> None:
    """Sums of 1000 digits do not fit into an event (1024 bytes)."""
    containers = [container_json("a", 1, "1e999"), container_json("b", 1, 50)]
    assert len(detail(pod_json(containers=containers))) < 500


_NO_QUANTITIES: tuple[object, ...] = ("-4", "x", "", 1.5, True, [], {}, "9" * 100)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("metadata", None, "metadata"),
        ("metadata", [], "metadata"),
        ("metadata.uid", "", "metadata.uid"),
        ("metadata.uid", 7, "metadata.uid"),
        ("metadata.name", None, "metadata.name"),
        ("metadata.namespace", {}, "metadata.namespace"),
        ("metadata.annotations", "x", "metadata.annotations"),
        (
            "metadata.annotations",
            {names.POLICY: 3},
            f"metadata.annotations.{names.POLICY}",
        ),
        ("spec", None, "spec"),
        ("spec", "x", "spec"),
        ("spec.priority", "high", "spec.priority"),
        ("spec.containers", {"a": 1}, "spec.containers"),
        ("spec.containers", "", "spec.containers"),
        ("spec.containers", ["x"], "spec.containers[0]"),
        ("spec.initContainers", 3, "spec.initContainers"),
        ("spec.initContainers", [{}], "spec.initContainers[0].name"),
        (
            "spec.initContainers",
            [{"name": "i", "restartPolicy": 1}],
            "spec.initContainers[0].restartPolicy",
        ),
        ("spec.containers.0.name", "", "spec.containers[0].name"),
        ("spec.containers.0.resources", [], "spec.containers[0].resources"),
        (
            "spec.containers.0.resources.requests",
            "x",
            "spec.containers[0].resources.requests",
        ),
        *(
            (
                "spec.containers.0.resources.requests",
                {names.MEMORY: wrong},
                f"spec.containers[0].resources.requests.{names.MEMORY}",
            )
            for wrong in _NO_QUANTITIES
        ),
    ],
)
def test_malformed_pods_name_the_field(path: str, value: object, field: str) -> None:
    """What no API server would send is the sender's mistake, not the pod's."""
    pod = changed(pod_json(units=4), path, value)
    with pytest.raises(Malformed) as caught:
        codec.pod_request(pod, codec.pod_ref(pod))
    assert caught.value.field == field


def test_annotations_of_others_are_none_of_our_business() -> None:
    """Whatever their type."""
    pod = changed(pod_json(units=4), "metadata.annotations", {"example.com/x": 3})
    assert asked(pod).claims == (claim(4),)


def test_a_bound_pods_record() -> None:
    """All that the house keeps."""
    held = placement("web", 1, 4, 1, priority=3)
    record = codec.pod_record(bound_json(held))
    assert record.pod == held.pod
    assert record.node == held.node
    assert record.placement == held
    assert record.asks
    assert not record.terminal
    assert not record.terminating
    assert not record.nominated


@pytest.mark.parametrize(
    ("phase", "terminal"),
    [
        ("Pending", False),
        ("Running", False),
        ("Unknown", False),
        ("Succeeded", True),
        ("Failed", True),
    ],
)
def test_a_terminal_phase(phase: str, terminal: bool) -> None:
    """Only then have all containers ended for good."""
    assert codec.pod_record(pod_json(phase=phase)).terminal is terminal


def test_a_pod_on_its_way_out_and_one_that_waits_for_it() -> None:
    """The deletion timestamp, the nominated node, the labels."""
    assert codec.pod_record(pod_json(terminating=True)).terminating
    assert codec.pod_record(pod_json(nominated="n")).nominated == "n"
    assert codec.pod_record(pod_json(labels={"app": "x"})).labels == {"app": "x"}


def test_a_null_deletion_timestamp_is_none() -> None:
    """As Go's JSON has it for every field."""
    pod = changed(pod_json(), "metadata.deletionTimestamp", None)
    assert not codec.pod_record(pod).terminating


def test_an_actual_placement_of_another_pod_does_not_hide_the_planned_one() -> None:
    """A forged UID counts for nothing, on either annotation."""
    forged = placement("other", 1, 9)
    notes = {
        names.PLACEMENT: encode_placement(placement(), AT),
        names.ACTUAL: encode_placement(forged, AT),
    }
    record = codec.pod_record(pod_json(units=1, node="n", annotations=notes))
    assert record.placement == placement()


def test_a_placement_on_an_unbound_pod_counts_for_nothing() -> None:
    """It can only have been copied: ours appears together with the node's name."""
    notes = {names.PLACEMENT: encode_placement(placement(), AT)}
    assert codec.pod_record(pod_json(units=1, annotations=notes)).placement is None


def test_a_broken_placement_is_named_by_its_annotation() -> None:
    """So that the log says which one to look at; the other one is taken."""
    planned = encode_placement(placement("pod"), "now")
    pod = pod_json(
        units=1,
        node="n",
        annotations={names.ACTUAL: "{", names.PLACEMENT: planned},
    )
    record = codec.pod_record(pod)
    assert record.complaint.startswith("baidu.com/vcuda-actual: is not JSON")
    assert record.placement == placement("pod")


def test_an_invalid_request_is_on_record_too() -> None:
    """The pod exists; it just asks for no card that there is."""
    record = codec.pod_record(pod_json(cores=150))
    assert isinstance(record.request, Refusal)
    assert not record.asks


@pytest.mark.parametrize(
    ("pod", "ours"),
    [
        (pod_json(), False),
        (pod_json(units=0), True),
        (pod_json(cores=1), True),
        (pod_json(init=[container_json("i", 1)]), True),
        ({"metadata": {}}, False),
        ({"spec": {"containers": None}}, False),
    ],
    ids=["asks nothing", "asks zero", "core", "init", "no spec", "null"],
)
def test_whose_pod_it_is(pod: Json, ours: bool) -> None:
    """One that names our resources anywhere, a zero included."""
    assert codec.is_ours(pod) is ours


def test_a_nodes_cards() -> None:
    """None where it has no annotation of ours, a complaint where it is broken."""
    assert codec.cards(node_json("n", card(0), card(1))) == (card(0), card(1))
    assert codec.cards(node_json()) == ()
    with pytest.raises(Malformed, match=r"baidu\.com/vcuda-cards: is not JSON"):
        codec.cards(node_json(annotations={names.CARDS: "{"}))


@pytest.mark.parametrize("units", [0, 3])
def test_a_placement_that_charges_less_than_is_asked_counts_for_nothing(
    units: int,
) -> None:
    """Users may write into their own pods; the planned one stands."""
    forged = encode_placement(placement("pod", 0, units), "now")
    planned = encode_placement(placement("pod", 0, 4), "now")
    pod = pod_json(
        units=4,
        node="n",
        annotations={names.ACTUAL: forged, names.PLACEMENT: planned},
    )
    record = codec.pod_record(pod)
    assert record.placement == placement("pod", 0, 4)
    assert record.complaint == f"{names.ACTUAL}: charges less than the pod asks"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("GPU-0", ["GPU-0"]),
        ("GPU-0,GPU-1", ["GPU-0", "GPU-1"]),
        (" GPU-0 ,\n\tGPU-1, ,,GPU-0,", ["GPU-0", "GPU-1"]),
        (" , ", []),
    ],
    ids=["nothing", "one", "two", "untidy", "commas alone"],
)
def test_a_list_with_commas(text: str, found: list[str]) -> None:
    """As people write it: spaces, empty entries and repeats do no harm."""
    assert sorted(codec.uuids(text)) == found


def test_a_cordoned_card_says_so() -> None:
    """And is as healthy as before; what the node does not have is ignored."""
    thing = node_json("n", card(0), card(1), annotations={names.CORDON: "GPU-1,GPU-9"})
    assert codec.cards(thing) == (card(0), card(1, cordoned=True))
    assert codec.cordon(thing) == {"GPU-1", "GPU-9"}
    assert codec.cordon(node_json("n", card(0))) == frozenset()


def test_a_cordon_is_nothing_that_cards_are_written_with() -> None:
    """It is the operator's, and the device plugin writes the cards."""
    thing = node_json("n", card(0, cordoned=True))
    del thing["metadata"]["annotations"][names.CORDON]
    assert codec.cards(thing) == (card(0),)
    assert "cordon" not in thing["metadata"]["annotations"][names.CARDS]


def test_the_plan_is_kept_beside_the_actual_placement() -> None:
    """It stands where the actual one turns out to be impossible."""
    planned, actual = placement(on=0), placement(on=1)
    both = {
        names.PLACEMENT: encode_placement(planned, AT),
        names.ACTUAL: encode_placement(actual, AT),
    }
    for keys, found in (
        ((names.PLACEMENT, names.ACTUAL), (actual, planned)),
        ((names.PLACEMENT,), (planned, planned)),
        ((names.ACTUAL,), (actual, None)),
        ((), (None, None)),
    ):
        notes = {key: both[key] for key in keys}
        record = codec.pod_record(pod_json(units=1, node="n", annotations=notes))
        assert (record.placement, record.plan) == found


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
    """One that looks like ours, with the one that was meant."""
    (told,) = codec.unknown_annotations(pod_json(units=1, annotations={key: "x"}))
    assert told.startswith(f"the annotation {key} is unknown here; {meant}")


def test_annotations_that_mean_something_or_are_of_others_are_not_told() -> None:
    """Whoever writes them."""
    ours = (names.PLACEMENT, names.ACTUAL, names.CONTAINERS, names.POLICY, names.MODELS)
    others = ("prometheus.io/scrape", "example.com/model", "baidu.com/owner", "policy")
    known = (*ours, *others, names.UUIDS, names.BITFUSION_CLIENT, CARD_MIB)
    pod = pod_json(units=1, annotations=dict.fromkeys(known, "x"))
    assert list(codec.unknown_annotations(pod)) == []
    assert list(codec.unknown_annotations({"metadata": {}})) == []


def test_only_a_few_are_told() -> None:
    """A pod may have thousands."""
    many = {f"baidu.com/vcuda-{n}": "" for n in range(1000)}
    assert len(list(codec.unknown_annotations(pod_json(annotations=many)))) == 5


def test_cores_that_apart_could_have_are_told_of_it() -> None:
    """100 and 80 are a whole card and a share of another, but not together."""
    two = [container_json("a", 1, 100), container_json("b", 1, 80)]
    assert detail(pod_json(containers=two)) == (
        "180 cores are neither a share of one card (1 to 99) nor whole cards; ask 100 "
        'or 200, or set baidu.com/vcuda-containers to "apart": each container may then '
        "have a card of its own"
    )
    apart = pod_json(containers=two, annotations={names.CONTAINERS: names.APART})
    assert [one.amount.cores for one in asked(apart).claims] == [100, 80]


WHOLE = container_json("a", 1, 100)


@pytest.mark.parametrize(
    ("pod", "named"),
    [
        (pod_json(containers=[container_json("a", 1, 180)]), False),
        (pod_json(containers=[WHOLE, container_json("b", 1, 150)]), False),
        (pod_json(containers=[WHOLE], init=[container_json("i", 1, 150)]), False),
        (
            pod_json(
                containers=[WHOLE], init=[container_json("i", 1, 80, restart="Always")]
            ),
            True,
        ),
    ],
    ids=["one container", "one of two", "an init container", "a sidecar"],
)
def test_apart_is_named_only_where_it_would_do(pod: Json, *, named: bool) -> None:
    """It is no help to one container alone, nor where an init container asks."""
    assert (names.CONTAINERS in detail(pod)) == named


@pytest.mark.parametrize(
    ("spec", "group"),
    [
        ({}, ""),
        ({"schedulingGroup": None}, ""),
        ({"schedulingGroup": {}}, ""),
        ({"schedulingGroup": {"podGroupName": "gang"}}, "default/gang"),
    ],
)
def test_the_scheduling_group_of_a_pod(spec: Json, group: str) -> None:
    """PodGroups of one name in two namespaces are two."""
    pod = pod_json(units=4)
    pod["spec"] |= spec
    assert codec.scheduling_group(pod) == group
