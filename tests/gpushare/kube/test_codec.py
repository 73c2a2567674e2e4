"""Kubernetes JSON to our nouns."""

from typing import Any

import pytest

from gpushare.domain.model import Amount, PodRequest, Reason, Refusal
from gpushare.kube import codec, names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from tests.builders import (
    AT,
    bound_json,
    claim,
    container_json,
    placement,
    pod_json,
    ref,
)

MAIN = "spec.containers.0"
APART = {names.CONTAINERS: names.APART}


def asked(pod: Json) -> PodRequest:
    read = codec.read_pod_request(pod, codec.read_pod_ref(pod))
    assert isinstance(read, PodRequest)
    return read


def detail(pod: Json) -> str:
    read = codec.read_pod_request(pod, codec.read_pod_ref(pod))
    assert read.reason is Reason.INVALID
    return read.detail


def changed(pod: Json, path: str, value: Any) -> Json:
    """The pod with the value at a path such as ``spec.containers.0.name``."""
    *way, last = path.split(".")
    at: Any = pod
    for step in way:
        at = at[int(step) if isinstance(at, list) else step]
    at[last] = value
    return pod


def test_the_words_of_each_refusal() -> None:
    """Fixed, so that the event counts nodes together; never a percent sign."""
    read = {reason: codec.refusal_text(Refusal(reason, "x")) for reason in Reason}
    core, memory = names.CORE, names.MEMORY
    assert read == {
        Reason.MEMORY: f"Insufficient {memory} on one card",
        Reason.CORE: f"Insufficient {core} on one card",
        Reason.CORE_AND_MEMORY: f"Insufficient {core} and {memory} on one card",
        Reason.UNTOUCHED_CARDS: "Insufficient untouched cards",
        Reason.NO_CARDS: "No shared cards",
        Reason.CHANGING: "The node changes faster than a pod can be placed on it",
        Reason.INVALID: "Invalid vcuda request: x",
    }


@pytest.mark.parametrize(
    ("pod", "amounts"),
    [
        (pod_json(), []),
        (pod_json(units=0, cores=0), []),
        (pod_json(units=4, cores=1), [Amount(1, 4)]),
        (pod_json(units="1k"), [Amount(0, 1000)]),
        (pod_json(units="4000m", cores="1e1"), [Amount(10, 4)]),
        (
            pod_json(
                containers=[container_json("a", 4)],
                init=[container_json("s", 2, restart="Always"), container_json("i", 9)],
            ),
            [Amount(0, 11)],
        ),
        (
            pod_json(
                containers=[container_json("a", 4), container_json("b", 2)],
                annotations={names.CONTAINERS: "apart", "example.com/x": "3"},
            ),
            [Amount(0, 4), Amount(0, 2)],
        ),
    ],
    ids=["nothing", "zeros", "both", "1k", "notations", "init and sidecar", "apart"],
)
def test_what_a_pod_asks(pod: Json, amounts: list[Amount]) -> None:
    """Quantities in any notation, by the effective request of contracts 5."""
    assert [first.amount for first in asked(pod).claims] == amounts


@pytest.mark.parametrize(
    "resources",
    [
        {"requests": {names.MEMORY: "4"}},
        {"limits": {names.MEMORY: "4"}},
        {"requests": {names.MEMORY: "4"}, "limits": {names.MEMORY: "9"}},
    ],
    ids=["requests", "limits", "requests go first"],
)
def test_either_requests_or_limits_may_stand_alone(resources: Json) -> None:
    """The API server copies limits to requests; a pod may come before it did."""
    pod = changed(pod_json(), "spec.containers.0.resources", resources)
    assert asked(pod).claims == (claim(4),)


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        ({"units": "1.5"}, "baidu.com/vcuda-memory is 1.5; it must be whole"),
        ({"units": "500m"}, "baidu.com/vcuda-memory is 500m; it must be whole"),
        ({"cores": "0.5"}, "baidu.com/vcuda-core is 0.5; it must be whole"),
        *(
            (
                {"units": size},
                f"{names.MEMORY} is {size}, but it counts units of 256 MiB; ask {n}",
            )
            for size, n in (("16Gi", 64), ("257Mi", 2))
        ),
        ({"cores": "1Ki"}, "baidu.com/vcuda-core is 1Ki; it must be a plain num"),
        ({"cores": 150}, "150 cores are neither a share of one card (1 to 99)"),
        (
            {"units": 4, "annotations": {names.CONTAINERS: "a%s\npart"}},
            'baidu.com/vcuda-containers is "aspart"; the only value is "apart"',
        ),
        (
            {"init": [container_json("i", 1)], "annotations": APART},
            "containers cannot be apart when an init container asks",
        ),
        ({"units": 1, "annotations": {names.UUIDS: ","}}, f"{names.UUIDS} names noth"),
    ],
)
def test_requests_that_no_card_can_meet(asks: Json, words: str) -> None:
    """Refused with what is wrong and, where there is one, the remedy."""
    read = detail(pod_json(**asks))
    assert read.startswith(words)
    assert "%" not in read


def test_an_absurd_request_is_refused_in_few_words() -> None:
    """Sums of 1000 digits do not fit into an event (1024 bytes)."""
    containers = [container_json("a", 1, "1e999"), container_json("b", 1, 50)]
    assert len(detail(pod_json(containers=containers))) < 500


@pytest.mark.parametrize(
    ("path", "value", "below"),
    [
        *(("metadata", None, ""), ("metadata", [], ""), ("metadata.uid", "", "")),
        *(("metadata.uid", 7, ""), ("metadata.name", None, "")),
        *(("metadata.namespace", {}, ""), ("metadata.annotations", "x", "")),
        ("metadata.annotations", {names.POLICY: 3}, f".{names.POLICY}"),
        *(("spec", None, ""), ("spec", "x", ""), ("spec.priority", "high", "")),
        *(("spec.containers", {"a": 1}, ""), ("spec.containers", "", "")),
        *(("spec.containers", ["x"], "[0]"), ("spec.initContainers", 3, "")),
        ("spec.initContainers", [{}], "[0].name"),
        (
            *("spec.initContainers", [{"name": "i", "restartPolicy": 1}]),
            "[0].restartPolicy",
        ),
        *((f"{MAIN}.name", "", ""), (f"{MAIN}.resources", [], "")),
        (f"{MAIN}.resources.requests", "x", ""),
        *(
            (f"{MAIN}.resources.requests", {names.MEMORY: wrong}, f".{names.MEMORY}")
            for wrong in ("-4", "x", "", 1.5, True, [], {}, "9" * 100)
        ),
    ],
)
def test_malformed_pods_name_the_field(path: str, value: object, below: str) -> None:
    """What no API server would send is the sender's mistake, not the pod's."""
    pod = changed(pod_json(units=4), path, value)
    with pytest.raises(Malformed) as caught:
        codec.read_pod_request(pod, codec.read_pod_ref(pod))
    assert caught.value.field == path.replace(".0", "[0]") + below


def test_a_bound_pods_record() -> None:
    placed = placement("web", 1, 4, 1, priority=3)
    record = codec.read_pod_record(bound_json(placed))
    assert (record.pod, record.node, record.placement) == (
        placed.pod,
        placed.node,
        placed,
    )
    assert record.asks
    assert not any((record.terminal, record.terminating, record.nominated))
    wish = pod_json(units=4, priority=7, annotations={names.POLICY: "spread"})
    assert (asked(wish).policy, asked(wish).pod) == ("spread", ref(priority=7))
    null = changed(pod_json(), "metadata.deletionTimestamp", None)
    assert not codec.read_pod_record(null).terminating
    waits = pod_json(terminating=True, nominated="n", labels={"app": "x"})
    read = codec.read_pod_record(waits)
    assert (read.terminating, read.nominated, read.labels) == (
        *(True, "n", {"app": "x"}),
    )


def test_a_placement_on_an_unbound_pod_counts_for_nothing() -> None:
    """It can only have been copied: ours appears together with the node's name."""
    notes = {names.PLACEMENT: encode_placement(placement(), AT)}
    assert codec.read_pod_record(pod_json(units=1, annotations=notes)).placement is None


@pytest.mark.parametrize(
    ("pod", "ours"),
    [
        *((pod_json(), False), (pod_json(units=0), True), (pod_json(cores=1), True)),
        (pod_json(init=[container_json("i", 1)]), True),
        *(({"metadata": {}}, False), ({"spec": {"containers": None}}, False)),
    ],
)
def test_whose_pod_it_is(pod: Json, ours: bool) -> None:
    """One that names our resources anywhere, a zero included."""
    assert codec.is_ours(pod) is ours


@pytest.mark.parametrize(
    ("actual", "complaint"),
    [
        ("{", f"{names.ACTUAL}: is not JSON"),
        (encode_placement(placement("pod", 0, 0), AT), "charges less than the pod"),
        (encode_placement(placement("pod", 0, 3), AT), "charges less than the pod"),
        (encode_placement(placement("other", 1, 9), AT), ""),
    ],
    ids=["broken", "nothing", "too little", "of another pod"],
)
def test_an_actual_placement_that_is_not_believed(actual: str, complaint: str) -> None:
    """Users may write into their own pods; the planned one stands."""
    planned = encode_placement(placement("pod", 0, 4), AT)
    notes = {names.ACTUAL: actual, names.PLACEMENT: planned}
    record = codec.read_pod_record(pod_json(units=4, node="n", annotations=notes))
    assert record.placement == placement("pod", 0, 4)
    assert complaint in record.complaint
    assert bool(complaint) == bool(record.complaint)


def test_cores_that_apart_could_have_are_told_of_it() -> None:
    two = [container_json("a", 1, 100), container_json("b", 1, 80)]
    assert detail(pod_json(containers=two)) == (
        "180 cores are neither a share of one card (1 to 99) nor whole cards; ask 100 "
        'or 200, or set baidu.com/vcuda-containers to "apart": each container may then '
        "have a card of its own"
    )
    apart = pod_json(containers=two, annotations={names.CONTAINERS: names.APART})
    assert [first.amount.cores for first in asked(apart).claims] == [100, 80]


WHOLE = container_json("a", 1, 100)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"containers": [container_json("a", 1, 180)]}, False),
        ({"containers": [WHOLE, container_json("b", 1, 150)]}, False),
        ({"init": [container_json("i", 1, 150)]}, False),
        ({"init": [container_json("i", 1, 80, restart="Always")]}, True),
    ],
    ids=["one container", "one of two", "an init container", "a sidecar"],
)
def test_apart_is_named_only_where_it_would_do(other: Json, *, named: bool) -> None:
    """It is no help to one container alone, nor where an init container asks."""
    pod = pod_json(**{"containers": [WHOLE], **other})
    assert (names.CONTAINERS in detail(pod)) == named


@pytest.mark.parametrize(
    ("group", "read"),
    [(None, ""), ({}, ""), ({"podGroupName": "gang"}, "default/gang")],
)
def test_the_scheduling_group_of_a_pod(group: Json | None, read: str) -> None:
    """PodGroups of one name in two namespaces are two."""
    pod = changed(pod_json(units=4), "spec.schedulingGroup", group)
    assert codec.read_scheduling_group(pod) == read
    assert codec.read_scheduling_group(pod_json()) == ""


def test_pods_of_a_deployment_share_their_labels() -> None:
    """A hundred thousand pods would have as many dictionaries of the same texts."""
    few, others = {"app": "a", "pod-template-hash": "5d"}, {"app": "a"}
    first, two, three = (
        codec.read_pod_record(pod_json(name, labels=labels)).labels
        for name, labels in (("a", few), ("b", dict(few)), ("c", others))
    )
    assert first is two
    assert (first, three) == (few, others)
    assert codec.read_pod_record(pod_json("a")).labels is codec.NO_LABELS


def test_many_labels_are_not_kept() -> None:
    """Any user can create pods; what is kept beside them is bounded."""
    many = {f"l{number}": "x" for number in range(17)}
    first, two = (codec.read_pod_record(pod_json(n, labels=many)).labels for n in "ab")
    assert first == two == many
    assert first is not two
