"""Reviews of any pod at all: never a 500, and never a patch that does not fit."""

from copy import deepcopy
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonpatch import apply_patch

from extender.bitfusion.resources import BitfusionRules
from extender.pool import Pool
from extender.server.webhook_app import PATHS
from extender.webhook.rules import Rules, review
from gpushare.kube.cluster import Json
from tests.extender.random_pods import ANYTHING, PODS
from tests.extender.webhook_client import answered, asked, steps_of, webhook

RULES = Rules(
    void=True,
    set_scheduler="vcuda",
    set_runtime_class="nvidia",
    env_from="deny",
    quotas=True,
    bitfusion=BitfusionRules(auto=True, quota=True),
)
POOL = Pool(29, 29, has_resource=True, node_of_address={"10.0.0.1": "node-1"})
OOPS = "internal error"

PATH = st.sampled_from(list(PATHS))
NO_HURRY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def client() -> Any:
    found, _ = webhook(RULES, POOL)
    return found


@NO_HURRY
@given(pod=PODS, path=PATH)
def test_any_pod(client: Any, pod: Any, path: str) -> None:
    """Allowed with a patch that fits, or denied with a reason; the body is kept."""
    response = answered(client, asked(pod), path)
    if not response["allowed"]:
        assert response["status"]["message"]
        assert OOPS not in response["status"]["message"]
        return
    after = apply_patch(pod, steps_of(response))
    again = answered(client, asked(after), path)
    assert again["allowed"], again
    assert steps_of(again) == []
    assert all(len(text) <= 120 for text in response.get("warnings", ()))


@NO_HURRY
@given(pod=PODS, mutating=st.booleans(), mode=st.sampled_from(["", "all"]))
def test_the_patch_is_the_verdict(
    client: Any, pod: Any, mutating: bool, mode: str
) -> None:
    """The rules change nothing but a copy; the patch makes that of the pod."""
    kept = deepcopy(pod)
    verdict = review(
        pod, namespace="default", mutating=mutating, mode=mode, rules=RULES, pool=POOL
    )
    path = f"/mutate/bitfusion-{mode}" if mode else "/mutate"
    response = answered(client, asked(pod), path if mutating else "/validate")
    assert response["allowed"] is not bool(verdict.denials)
    assert pod == kept
    assert apply_patch(pod, steps_of(response)) == verdict.pod


@NO_HURRY
@given(old=PODS, pod=PODS, path=PATH)
def test_any_debugging_container(client: Any, old: Any, pod: Any, path: str) -> None:
    body = asked(
        pod, operation="UPDATE", subResource="ephemeralcontainers", oldObject=old
    )
    response = answered(client, body, path)
    if not response["allowed"]:
        assert OOPS not in response["status"]["message"]
    for step in steps_of(response):
        assert step["path"].startswith("/spec/ephemeralContainers/")


BODIES = st.one_of(
    ANYTHING.map(lambda pod: orjson.dumps(asked(pod))),
    ANYTHING.map(orjson.dumps),
    st.tuples(PODS, st.floats(0, 0.99)).map(lambda both: cut(*both)),
    st.binary(max_size=200),
)


def cut(pod: Json, part: float) -> bytes:
    whole = orjson.dumps(asked(pod))
    return whole[: int(part * len(whole))]


@NO_HURRY
@given(data=BODIES, path=PATH)
def test_any_body(client: Any, data: bytes, path: str) -> None:
    """Any JSON as a pod or as a review, half a review, any bytes: never a 500."""
    got = client.post(path, data=data, content_type="application/json")
    assert got.status_code in (200, 400)
    assert got.status_code == 400 or b'"uid":"u-1"' in got.data
    assert OOPS.encode() not in got.data


@pytest.mark.parametrize("depth", [200, 300, 1000, 5000, 100_000])
def test_depths(client: Any, depth: int) -> None:
    """No pod is so deep; nobody's stack is for somebody else to use up."""
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    pod = b'{"metadata":' + deep + b',"spec":{"containers":[]}}'
    body = orjson.dumps(asked("POD")).replace(b'"POD"', pod)
    for path in PATHS:
        got = client.post(path, data=body, content_type="application/json")
        assert got.status_code in (200, 400)
        assert OOPS.encode() not in got.data
