"""What pods ask, kept by the part of the spec that says it."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.model import NOTHING, Amount, HostAmount
from gpushare.domain.request import peak_amount
from gpushare.kube import codec, names
from gpushare.kube.codec import (
    LONGEST_KEY,
    RequestedResources,
    Unmeetable,
    effective_request,
    read_containers,
    read_pod_ref,
    read_pod_request,
)
from gpushare.kube.json_reader import Malformed
from tests.builders import pod_json

LARGE = "x" * LONGEST_KEY
QUANTITIES = st.sampled_from(
    ["1", "4", 2, "100", "1k", "0.5", "1500m", "2Gi", "nonsense", True, None, [], -1]
)
RESOURCES = st.dictionaries(
    st.sampled_from([names.CORE, names.MEMORY, "cpu", "memory"]), QUANTITIES
)
CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from(["main", "side", "", None, 7]), "image": st.text()},
    optional={
        "resources": st.none()
        | st.text()
        | st.dictionaries(st.sampled_from(["requests", "limits"]), RESOURCES),
        "restartPolicy": st.sampled_from(["Always", "Never", None, 3]),
        "env": st.lists(st.text()),
    },
)
LIST = st.lists(CONTAINER | st.none() | st.text(), max_size=3) | st.sampled_from(
    [None, "", {}, 5]
)
SPEC = st.fixed_dictionaries(
    {"containers": LIST, "nodeName": st.text()},
    optional={
        "initContainers": LIST,
        "overhead": RESOURCES,
        "resources": st.none() | st.fixed_dictionaries({"requests": RESOURCES}),
    },
)


def key(pod: Any) -> bytes | None:
    return codec._key(pod)


def read(pod: Any) -> Any:
    try:
        return read_containers(pod)
    except (Malformed, Unmeetable) as error:
        return type(error), str(error)


@given(SPEC)
def test_the_key_has_all_that_is_asked(spec: Any) -> None:
    """Containers and the host's amounts, and each complaint, word for word."""
    read_key = key({"spec": spec})
    if read_key is not None:
        alike = {"spec": orjson.loads(read_key)}
        assert read(alike) == read({"spec": spec})
        assert (
            RequestedResources(alike)._host()
            == RequestedResources({"spec": spec})._host()
        )


@given(SPEC, SPEC)
def test_pods_read_before_make_no_difference(before: Any, spec: Any) -> None:
    """The second answer, after other pods, is the first one."""
    pod = {"metadata": pod_json()["metadata"], "spec": spec}

    def answer() -> Any:
        try:
            return read_pod_request(pod, read_pod_ref(pod)), RequestedResources(
                pod
            ).host()
        except Malformed as error:
            return str(error)

    first = answer()
    RequestedResources({"spec": before}).host()
    assert answer() == first


@given(SPEC)
def test_a_readable_pod_counts_in_sum_as_its_containers_do(spec: Any) -> None:
    """Together by kube-scheduler's formula; what it does not take counts as nothing."""
    read_key = read({"spec": spec})
    if isinstance(read_key, list):
        assert effective_request({"spec": spec}) == peak_amount(read_key)


def test_what_a_pod_counts_in_sum() -> None:
    """Init containers count by their peak, and a request in bytes as bytes."""
    pod = pod_json(units="1Ki", cores=1)
    first = {"name": "first", "resources": {"limits": {names.CORE: "7"}}}
    pod["spec"]["initContainers"] = [first, first]
    assert effective_request(pod) == Amount(7, 1024)
    assert effective_request(pod_json(units="0.5")) == NOTHING


def test_names_and_images_are_not_in_the_key() -> None:
    first, other = pod_json("a", units=4), pod_json("b", units=4)
    other["spec"]["containers"][0] |= {"image": "x", "env": [{"name": "A"}]}
    other["spec"]["nodeName"] = "n"
    assert key(first) == key(other) != key(pod_json("a", units=5))


@pytest.mark.parametrize("pod", [{}, {"spec": None}, {"spec": []}])
def test_a_malformed_pod_has_no_key(pod: Any) -> None:
    assert key(pod) is None
    assert RequestedResources(pod).host() is None


def test_a_spec_that_is_too_deep_has_no_key() -> None:
    """orjson parses deeper objects than it writes; no pod may end a thread."""
    deep: Any = {}
    for _ in range(900):
        deep = {"a": deep}
    pod = pod_json()
    pod["spec"]["containers"][0]["resources"] = {"requests": {}, "junk": deep}
    assert key(pod) is None
    assert RequestedResources(pod).host() is None
    assert read_pod_request(pod, read_pod_ref(pod)).claims == ()


def test_large_pods_are_not_kept() -> None:
    """Any user can create pods; large ones are read and not kept."""
    pod = pod_json(units=4)
    pod["spec"]["containers"][0]["resources"]["requests"] |= {"cpu": "1", LARGE: "1"}
    before = len(codec._KINDS)
    read_request = read_pod_request(pod, read_pod_ref(pod))
    assert read_request.host == HostAmount(1000, 0)
    assert [claim.amount.units for claim in read_request.claims] == [4]
    assert len(codec._KINDS) == before


def test_a_kind_of_pod_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods of a Deployment differ by their names alone."""
    read_pods = []

    def counted(pod: Any) -> Any:
        read_pods.append(pod["metadata"]["name"])
        return read_containers(pod)

    monkeypatch.setattr(codec, "_KINDS", {})
    monkeypatch.setattr(codec, "read_containers", counted)
    for name, units in (("a", 4), ("b", 4), ("other", 5)):
        pod = pod_json(name, units=units)
        assert read_pod_request(pod, read_pod_ref(pod)).claims[0].amount.units == units
    assert read_pods == ["a", "other"]


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MOST_KINDS", 2)
    monkeypatch.setattr(codec, "_KINDS", {})
    for cpu in range(1, 6):
        pod = pod_json()
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": str(cpu)}}
        assert RequestedResources(pod).host() == HostAmount(1000 * cpu, 0)
        assert len(codec._KINDS) <= 2
