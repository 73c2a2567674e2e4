"""What tells pods that ask the same."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.domain.model import HostAmount
from gpushare.domain.quantity import NotAQuantity
from gpushare.kube import codec, names
from gpushare.kube import codec as room
from gpushare.kube.codec import (
    LONGEST_KEPT,
    Unmeetable,
    amount_of,
    containers,
    essence,
    host_amount,
    pod_ref,
    pod_request,
)
from gpushare.kube.json_reader import Malformed
from tests.builders import pod_json

LARGE = "x" * LONGEST_KEPT
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


def read(pod: Any) -> Any:
    try:
        return containers(pod)
    except (Malformed, Unmeetable) as error:
        return type(error), str(error)


def reckoned(spec: Any) -> HostAmount | None:
    try:
        return codec._host_amount(spec)
    except (NotAQuantity, KeyError, TypeError, AttributeError):
        return None


@given(SPEC)
def test_the_same_is_read_from_it(spec: Any) -> None:
    """What containers ask, and each complaint, word for word."""
    kind = essence({"spec": spec})
    if kind is not None:
        assert read(orjson.loads(kind)) == read({"spec": spec})
        assert amount_of(kind) == reckoned(spec)


@given(SPEC, SPEC)
def test_other_pods_asked_before_make_no_difference(before: Any, spec: Any) -> None:
    """Asked twice and after others, the answer is what it was."""
    pod = {"metadata": pod_json()["metadata"], "spec": spec}

    def answer() -> Any:
        try:
            return pod_request(pod, pod_ref(pod)), host_amount(pod)
        except Malformed as error:
            return str(error)

    first = answer()
    host_amount({"spec": before})
    assert answer() == first


def test_names_and_images_make_no_kind_of_their_own() -> None:
    """Pods of one Deployment are alike; one that asks more is not."""
    one, other = pod_json("a", units=4), pod_json("b", units=4)
    other["spec"]["containers"][0] |= {"image": "x", "env": [{"name": "A"}]}
    other["spec"]["nodeName"] = "n"
    assert essence(one) == essence(other)
    assert essence(one) != essence(pod_json("a", units=5))


@pytest.mark.parametrize("pod", [{}, {"spec": None}, {"spec": []}])
def test_what_is_no_pod_has_none(pod: Any) -> None:
    """Its complaints are for whoever reads it."""
    assert essence(pod) is None
    assert host_amount(pod) is None


def test_too_deep_is_none() -> None:
    """JSON is read deeper than it is written, and nobody's pod may end a thread."""
    deep: Any = {}
    for _ in range(900):
        deep = {"a": deep}
    pod = pod_json()
    pod["spec"]["containers"][0]["resources"] = {"requests": {}, "junk": deep}
    assert essence(pod) is None
    assert host_amount(pod) is None
    assert pod_request(pod, pod_ref(pod)).claims == ()


def test_large_pods_are_not_kept() -> None:
    """Else whoever may make pods could fill our memory; they are read as all are."""
    pod = pod_json(units=4)
    pod["spec"]["containers"][0]["resources"]["requests"] |= {"cpu": "1", LARGE: "1"}
    kept = [codec._kept, room._claims_of]
    before = [each.cache_info().currsize for each in kept]
    asked = pod_request(pod, pod_ref(pod))
    assert asked.host == HostAmount(1000, 0)
    assert [claim.amount.units for claim in asked.claims] == [4]
    assert [each.cache_info().currsize for each in kept] == before
