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
from gpushare.kube import names
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

TEXTS = st.sampled_from(["", "a", "0", "void", "all", "nvidia", "x y", "1", "é\u00a0"])
QUANTITIES = st.sampled_from(
    ["0", "1", "4", "50", "99", "100", "101", "1.5", "8000M", "8Gi", "-1", "1k", "x"]
) | st.sampled_from([0, 1, 50, None, True, 1.5, [], {}])
RESOURCES = st.dictionaries(
    st.sampled_from(
        [
            names.CORE,
            names.MEMORY,
            "baidu.com/vcuda-x",
            "bitfusion.io/gpu",
            "bitfusion.io/gpu-amount",
            "bitfusion.io/gpu-percent",
            "bitfusion.io/gpu-memory",
            "nvidia.com/gpu",
            "cpu",
        ]
    ),
    QUANTITIES,
    max_size=4,
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [
            names.CONTAINERS,
            names.POLICY,
            names.MODELS,
            names.UUIDS,
            names.PLACEMENT,
            "auto-management/bitfusion",
            "auto-management/status",
            "bitfusion-client/filter",
            "bitfusion-client/os",
        ]
    ),
    st.sampled_from(
        [
            "apart",
            "spread",
            "all",
            "injection",
            "injected",
            "none",
            "",
            "Tesla P4",
            "server.addr=10.0.0.1",
            "device.name=T4,server.hostname=a b",
        ]
    )
    | TEXTS,
    max_size=4,
)
ENV = st.fixed_dictionaries(
    {"name": st.sampled_from(["A", "NVIDIA_VISIBLE_DEVICES", "VCUDA_CORES"])},
    optional={"value": TEXTS | st.none(), "valueFrom": st.just({}) | st.none()},
)
COMMAND = st.lists(
    st.sampled_from(
        [
            "python a.py",
            "/bin/bash",
            "-c",
            "bitfusion run -n 1 -p 0.5 -- python a.py",
            "bitfusion run -n 2",
            "bitfusion",
            "run",
            "--",
            "'",
            "",
        ]
    ),
    max_size=4,
)
CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "c"])},
    optional={
        "resources": st.none()
        | st.fixed_dictionaries(
            {}, optional={"limits": RESOURCES, "requests": RESOURCES}
        )
        | RESOURCES.map(lambda one: {"limits": one, "requests": dict(one)}),
        "env": st.none() | st.lists(ENV, max_size=3),
        "envFrom": st.lists(
            st.fixed_dictionaries({}, optional={"prefix": TEXTS}), max_size=2
        ),
        "command": st.none() | COMMAND,
        "args": st.none() | COMMAND,
        "restartPolicy": st.sampled_from([None, "Always"]),
        "volumeMounts": st.just([{"name": "v", "mountPath": "/usr/bin/bitfusion"}]),
    },
)
PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {}, optional={"annotations": st.none() | ANNOTATIONS, "name": TEXTS}
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.lists(CONTAINER, max_size=3),
                "initContainers": st.none() | st.lists(CONTAINER, max_size=2),
                "ephemeralContainers": st.lists(CONTAINER, max_size=2),
                "volumes": st.just([{"name": "v"}]) | st.none(),
                "runtimeClassName": TEXTS | st.none(),
                "schedulerName": TEXTS | st.none(),
                "nodeSelector": st.none() | st.just({"a": "b"}),
                "affinity": st.none() | st.just({"nodeAffinity": {}}),
            },
        ),
    }
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXTS
KEYS = st.sampled_from(
    ["metadata", "spec", "annotations", "containers", "env", "resources", "limits"]
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXTS, inner, max_size=4)
    ),
    max_leaves=20,
)
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
    """What the API server makes of the pod is what the rules said, who kept theirs."""
    kept = deepcopy(pod)
    verdict = review(
        pod, namespace="default", mutating=mutating, mode=mode, rules=RULES, pool=POOL
    )
    path = (
        ("/mutate" + (f"/bitfusion-{mode}" if mode else ""))
        if mutating
        else ("/validate")
    )
    response = answered(client, asked(pod), path)
    assert response["allowed"] is not bool(verdict.denials)
    assert pod == kept
    assert apply_patch(pod, steps_of(response)) == verdict.pod


@NO_HURRY
@given(old=PODS, pod=PODS, path=PATH)
def test_any_debugging_container(client: Any, old: Any, pod: Any, path: str) -> None:
    """The same, of a pod that runs; only its debugging containers are changed."""
    body = asked(
        pod, operation="UPDATE", subResource="ephemeralcontainers", oldObject=old
    )
    response = answered(client, body, path)
    if not response["allowed"]:
        assert OOPS not in response["status"]["message"]
    for step in steps_of(response):
        assert step["path"].startswith("/spec/ephemeralContainers/")


@NO_HURRY
@given(pod=ANYTHING, path=PATH)
def test_anything_as_a_pod(client: Any, pod: Any, path: str) -> None:
    """Denied by its field, or told that it is no review; never a 500."""
    body = orjson.dumps(asked(pod))
    got = client.post(path, data=body, content_type="application/json")
    assert got.status_code in (200, 400)
    assert OOPS.encode() not in got.data


@NO_HURRY
@given(body=ANYTHING, path=PATH)
def test_anything_as_a_review(client: Any, body: Any, path: str) -> None:
    """It has no uid to echo."""
    data = orjson.dumps(body)
    got = client.post(path, data=data, content_type="application/json")
    assert got.status_code == 400


@NO_HURRY
@given(pod=PODS, part=st.floats(0, 1), path=PATH)
def test_half_a_review(client: Any, pod: Any, part: float, path: str) -> None:
    """Cut anywhere."""
    body = orjson.dumps(asked(pod))
    data = body[: int(part * (len(body) - 1))]
    got = client.post(path, data=data, content_type="application/json")
    assert got.status_code == 400


@NO_HURRY
@given(data=st.binary(max_size=200))
def test_any_bytes(client: Any, data: bytes) -> None:
    """Of whatever encoding."""
    got = client.post("/mutate", data=data, content_type="application/json")
    assert got.status_code == 400


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
