"""The webhook's HTTP: answers to reviews, and status codes for all else."""

from copy import deepcopy
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonpatch import apply_patch

from gpushare.kube import names
from gpushare.kube.admission import API_VERSION
from gpushare.kube.cluster import Json
from tests.builders import container_json, pod_json
from tests.webhook.bitfusion_pods import HALF, rules
from tests.webhook.random_pods import ANYTHING, PODS
from tests.webhook.webhook_client import answered, asked, count, steps_of, webhook
from webhook import app as webhook_app
from webhook.app import DRA_PATH, PATHS
from webhook.bitfusion.resources import BitfusionRules
from webhook.pool import CardPool
from webhook.rules.review import ReviewSettings, review_pod


def test_a_pod_is_changed_by_a_patch() -> None:
    client, registry = webhook()
    pod = pod_json(units=4)
    response = answered(client, asked(pod, uid="abc-1"))
    assert response["allowed"] is True
    after = apply_patch(pod, steps_of(response))
    limits = after["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {names.MEMORY: "4", names.CORE: "1"}
    assert count(registry, "/mutate", "changed") == 1


@pytest.mark.parametrize("path", sorted({*PATHS} - {DRA_PATH}))
def test_a_pod_in_order_gets_no_patch(path: str) -> None:
    client, registry = webhook()
    response = answered(client, asked(pod_json(units=4, cores=1)), path)
    assert response == {"uid": "u-1", "allowed": True}
    assert count(registry, path, "allowed") == 1


@pytest.mark.parametrize("path", PATHS)
def test_a_denial_has_a_line_for_each_reason(path: str) -> None:
    """Nothing else, and no reason that kubectl would put into brackets."""
    client, registry = webhook()
    wrong = [container_json("a", "1.5"), container_json("b", "2.5")]
    response = answered(client, asked(pod_json(containers=wrong)), path)
    assert response.keys() == {"uid", "allowed", "status"}
    assert response["allowed"] is False
    status = response["status"]
    assert (status.keys(), status["code"]) == ({"code", "message"}, 400)
    lines = status["message"].splitlines()
    assert len(lines) == 2
    for place, line in enumerate(lines):
        assert line.startswith(f"spec.containers[{place}].resources")
    assert count(registry, path, "denied") == 1


def test_warnings_come_along() -> None:
    client, registry = webhook(ReviewSettings(set_scheduler="vcuda"))
    pod = pod_json(units=4)
    pod["spec"]["schedulerName"] = "volcano"
    response = answered(client, asked(pod))
    assert response["allowed"] is True
    assert len(response["warnings"]) == 1
    assert registry.get_sample_value("vcuda_webhook_warnings_total") == 1


@pytest.mark.parametrize(
    ("path", "wrapped"),
    [
        ("/mutate", None),
        ("/mutate/bitfusion-all", ["/bin/bash", "-c", "python a.py"]),
        ("/mutate/bitfusion-injection", ["python a.py"]),
    ],
)
def test_the_path_says_how_a_namespace_has_its_bitfusion_pods(
    path: str, wrapped: list[str] | None
) -> None:
    client, _ = webhook(ReviewSettings(bitfusion=rules()))
    pod = pod_json()
    pod["spec"]["containers"][0] |= {"command": ["python a.py"], "resources": HALF}
    steps = steps_of(answered(client, asked(pod), path))
    assert bool(steps) is bool(wrapped)
    if wrapped:
        main = apply_patch(pod, steps)["spec"]["containers"][0]
        assert main["command"] == wrapped
        assert main["resources"]["limits"][names.CORE] == "50"


def test_the_path_says_that_a_namespace_has_claims() -> None:
    """Nothing else of the review does: it has no labels of the namespace."""
    client, registry = webhook()
    pod = pod_json(units=4, cores=1)
    steps = steps_of(answered(client, asked(pod), DRA_PATH))
    (claim,) = apply_patch(pod, steps)["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == "vcuda-m4-c1"
    assert count(registry, DRA_PATH, "changed") == 1


@pytest.mark.parametrize(
    "request_part",
    [
        {"namespace": "kube-system"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
        {"kind": {"group": "x", "version": "v1", "kind": "Pod"}},
        {"operation": "DELETE", "object": None},
        {"operation": "UPDATE", "oldObject": pod_json(units="1.5")},
        {"operation": "CREATE", "subResource": "binding"},
        {"operation": "UPDATE", "subResource": "status", "oldObject": {}},
        {"operation": "CONNECT", "subResource": "exec"},
    ],
)
def test_what_we_have_no_rules_for_is_let_through(request_part: Any) -> None:
    """Somebody sent it here by a slip of a configuration."""
    client, _ = webhook()
    response = answered(client, asked(pod_json(units="1.5"), **request_part))
    assert response == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize("path", PATHS)
def test_a_debugging_container_is_looked_at(path: str) -> None:
    client, _ = webhook()
    old, pod = (pod_json(units=4, cores=1) for _ in range(2))
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pod["spec"]["ephemeralContainers"] = [{"name": "debug", "env": env}]
    change: Any = {"operation": "UPDATE", "subResource": "ephemeralcontainers"}
    response = answered(client, asked(pod, oldObject=old, **change), path)
    assert "spec.ephemeralContainers[0]" in response["status"]["message"]


def test_an_error_of_our_own_is_an_answer_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """People read a sentence, and not that some webhook failed with 500."""

    def fails(*_args: object) -> None:
        raise LookupError("a bug")

    client, registry = webhook()
    monkeypatch.setattr(webhook_app, "patch_between", fails)
    response = answered(client, asked(pod_json(units=4)))
    assert response["allowed"] is False
    assert "internal error" in response["status"]["message"]
    assert "gpushare-webhook" in response["status"]["message"]
    (record,) = caplog.records
    assert record.exc_info
    assert count(registry, "/mutate", "failed") == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 404),
        ("GET", "/readyz", 404),
        ("GET", "/metrics", 404),
        ("POST", "/other", 404),
        ("GET", "/mutate", 405),
    ],
)
def test_there_is_nothing_but_reviews(method: str, path: str, status: int) -> None:
    """The rest is on the public listener: its answers are long, and anybody's."""
    client, registry = webhook()
    assert client.open(path, method=method, json={}).status_code == status
    for name in PATHS:
        assert count(registry, name, "allowed") == 0


JSON = "application/json"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"nonsense", "body"),
        (b'{"kind": ', "body"),
        (b"[]", "body"),
        (b"{}", "apiVersion"),
        (orjson.dumps({"apiVersion": "admission.k8s.io/v1beta1"}), "apiVersion"),
        (orjson.dumps({"apiVersion": API_VERSION, "kind": "Pod"}), "kind"),
        (orjson.dumps(asked(None) | {"request": None}), "request"),
        (orjson.dumps(asked({}, uid="")), "request.uid"),
        (orjson.dumps(asked({}, kind=None)), "request.kind"),
        (orjson.dumps(asked(None)), "request.object"),
        (orjson.dumps(asked([])), "request.object"),
        (orjson.dumps(asked({}, namespace=7)), "request.namespace"),
    ],
)
def test_what_is_no_review_is_400(body: bytes, field: str) -> None:
    client, registry = webhook()
    got = client.post("/mutate", data=body, content_type=JSON)
    assert got.status_code == 400
    assert orjson.loads(got.data)["field"] == field
    assert count(registry, "/mutate", "malformed") == 1


def test_bodies_that_are_not_read_are_counted() -> None:
    """No API server sends one; ``test_gunicorn_conf`` has each kind."""
    client, registry = webhook()
    headers = {"Expect": "100-continue"}
    answer = client.post("/mutate", data=b"{}", content_type=JSON, headers=headers)
    assert (answer.status_code, b"without Expect" in answer.data) == (417, True)
    assert count(registry, "/mutate", "malformed") == 1


RULES = ReviewSettings(
    void=True,
    set_scheduler="vcuda",
    set_runtime_class="nvidia",
    env_from="deny",
    quotas=True,
    bitfusion=BitfusionRules(auto=True, quota=True),
)
POOL = CardPool(29, 29, has_resource=True, node_of_address={"10.0.0.1": "node-1"})
OOPS = "internal error"

PATH = st.sampled_from(list(PATHS))
NO_HURRY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
    verdict = review_pod(
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
