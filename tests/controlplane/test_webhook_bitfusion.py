"""Pods written for Bitfusion on a real API server: seed 004, and what goes wrong."""

from collections.abc import Iterator

import pytest

from tests.controlplane.bitfusionpods import (
    ALL,
    AMOUNT,
    BY_MEMORY,
    BY_PERCENT,
    DEPLOYMENT,
    GPU_MEMORY,
    IMAGE,
    LINE,
    MODE,
    NAMESPACE,
    PERCENT,
    STATUS,
    share,
)
from tests.controlplane.gate import (
    Gate,
    asking,
    container,
    limits_of,
    raised,
    space_named,
)
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import CORE, MEMORY, sweep
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

DENIED = 'admission webhook "bitfusion.vcuda.baidu.com" denied the request: '
WRAPPED = ["/bin/bash", "-c", LINE]
LABEL = "baidu.com/vcuda-bitfusion"
CODE = {
    "volumeMounts": [{"name": "code", "mountPath": "/benchmark"}],
    "volumes": [{"name": "code", "hostPath": {"path": "/home/benchmarks", "type": ""}}],
}


@pytest.fixture(scope="module")
def shared(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gate]:
    """The webhook as seed 004 sets it: cards of 16000 MB."""
    folder = tmp_path_factory.mktemp("webhook-bitfusion")
    with (
        space_named(plane, NAMESPACE),
        plane.start_controller_manager(),
        raised(plane, folder, TOTAL_GPU_MEMORY="16000") as gate,
    ):
        yield gate.at(NAMESPACE)


@pytest.fixture
def gate(shared: Gate) -> Iterator[Gate]:
    yield shared
    relabel(shared, None)
    sweep(shared.rest)


def relabel(gate: Gate, mode: str | None) -> None:
    """Say how the namespace's pods are translated, or nothing."""
    body: Json = {"metadata": {"labels": {LABEL: mode}}}
    gate.rest.must("PATCH", f"/api/v1/namespaces/{NAMESPACE}", body)


def assert_seeds(a_pod: Json, cores: int, units: int) -> None:
    """Insist on all that a pod of the seed must have become, and stayed."""
    assert limits_of(a_pod) == {CORE: str(cores), MEMORY: str(units)}
    (one,) = a_pod["spec"]["containers"]
    assert one["command"] == WRAPPED
    assert "args" not in one
    assert one["image"] == IMAGE
    assert one["volumeMounts"] == CODE["volumeMounts"]
    assert a_pod["spec"]["volumes"] == CODE["volumes"]
    annotations = a_pod["metadata"]["annotations"]
    assert annotations.items() >= {**ALL, STATUS: "injected"}.items()


@pytest.mark.parametrize(
    ("text", "units"), [(BY_PERCENT, 29), (BY_MEMORY, 30)], ids=["percent", "memory"]
)
def test_the_seeds_pods(gate: Gate, text: str, units: int) -> None:
    """Half a card of 16000 MB, and 8000M of it: unchanged YAML, by kubectl."""
    done = gate.kubectl("create", "-f", "-", stdin=text)
    assert done.returncode == 0, done.stderr
    (made,) = gate.pods()
    assert_seeds(made, 50, units)


def test_the_seeds_deployment(gate: Gate) -> None:
    """Whose pods come from a controller; they name their namespace nowhere."""
    done = gate.kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    assert done.returncode == 0, done.stderr
    made = wait_until(gate.pods, "two pods", accept=lambda found: len(found) == 2)
    for a_pod in made:
        assert_seeds(a_pod, 30, 17)
    # What the pods became is no change of the Deployment's.
    assert gate.kubectl("apply", "-f", "-", stdin=DEPLOYMENT).returncode == 0
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/bfdeploy"
    assert gate.rest.must("GET", path)["metadata"]["generation"] == 1


def test_a_denied_deployment_says_so(gate: Gate) -> None:
    """In an event of the ReplicaSet, which tries again."""
    wrong = DEPLOYMENT.replace("gpu-percent: 30", "gpu-percent: 101")
    assert gate.kubectl("apply", "-f", "-", stdin=wrong).returncode == 0
    denials = wait_until(lambda: gate.events("FailedCreate"), "event of the denial")
    assert "Invalid bitfusion.io/gpu-percent quantity: 101 " in denials[0]
    assert gate.pods() == []


@pytest.mark.parametrize("label", ["all", "injection"])
def test_a_namespaces_label(gate: Gate, label: str) -> None:
    """It holds for pods that name bitfusion.io and say nothing; the annotation wins.

    Others are not reviewed.
    """
    relabel(gate, label)
    silent = asking(container(share(), command=[LINE]))
    # The API server hears of the label a moment later.
    entry = f"bitfusion-{label}.vcuda.baidu.com"
    before = gate.reviews(entry)["admit"]
    wait_until(lambda: CORE in limits_of(gate.admitted(silent)), "label to hold")
    after = gate.reviews(entry)["admit"]
    assert after > before
    gate.admitted(asking(container({"cpu": "1"}), annotations={"mine": "1"}))
    assert gate.reviews(entry)["admit"] == after
    for own in ("all", "injection", "none", None):
        annotations = {MODE: own} if own else None
        made = gate.admitted(
            asking(container(share(), command=[LINE]), annotations=annotations)
        )
        kept, ours = {AMOUNT: "1", PERCENT: "50"}, {CORE: "50", MEMORY: "29"}
        assert limits_of(made) == (kept if own == "none" else ours)
        command = made["spec"]["containers"][0]["command"]
        assert command == (WRAPPED if (own or label) == "all" else [LINE])


def test_injection_is_taken_whole(gate: Gate) -> None:
    """M11: the stand-in's script lies in the pod itself, where scripts look for it."""
    script = ["bitfusion run -n 1 -p 0.5 -- nvidia-smi; bitfusion health"]
    a_pod = asking(
        container(share(), command=script),
        container(name="sidecar"),
        annotations={**ALL, MODE: "injection"},
    )
    made = gate.admitted(a_pod, dry_run=False)
    first, second = made["spec"]["containers"]
    assert first["command"] == script
    paths = {mount["mountPath"] for mount in first["volumeMounts"]}
    assert "/usr/bin/bitfusion" in paths
    assert "volumeMounts" not in second
    text = made["metadata"]["annotations"]["baidu.com/vcuda-bitfusion-client"]
    assert text.startswith("#!/bin/sh")
    (volume,) = made["spec"]["volumes"]
    (item,) = volume["downwardAPI"]["items"]
    assert "baidu.com/vcuda-bitfusion-client" in item["fieldRef"]["fieldPath"]


def test_denied_as_the_original_did(gate: Gate) -> None:
    """In the words that its users search for, and more, as kubectl prints them."""
    a_pod = asking(container({AMOUNT: 1, GPU_MEMORY: 8000}), annotations=ALL)
    done = gate.kubectl("create", "-f", "-", stdin=a_pod)
    assert done.returncode != 0, done.stdout
    for words in (DENIED, "did you mean 8000M", "spec.containers[0]"):
        assert words in done.stderr
    assert gate.pods() == []


@pytest.mark.parametrize("annotations", [ALL, {}], ids=["ours", "nobodys"])
def test_v6_requests_are_limits(gate: Gate, annotations: dict[str, str]) -> None:
    """Of such resources they must be: translated pods get no way round that."""
    one = container(share(50))
    one["resources"]["requests"] = {AMOUNT: "1", PERCENT: "30"}
    told = gate.denied(asking(one, annotations=annotations))
    assert PERCENT in told
    assert "30" in told or "must be equal to" in told
