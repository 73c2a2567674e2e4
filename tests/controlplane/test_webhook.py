"""The webhook's general rules on a real API server: what is kept, denied and told."""

import pytest

from tests.controlplane.gate import FREE, PODS, Gate, asking, container, limits_of
from tests.testbed.objects import CORE, MEMORY, pod, post_node
from tests.testbed.rest import Json

pytestmark = pytest.mark.controlplane

DENIED = f'admission webhook "{PODS}" denied the request: '
MIB = f"{MEMORY}-mib"
LIMITS = "spec.containers[0].resources.limits"
SHARE = {MEMORY: 4, CORE: 10}


def env(name: str, value: str = "all") -> list[Json]:
    return [{"name": name, "value": value}]


WHOLE_AND_A_HALF = asking(container({MEMORY: 4, CORE: 150}))


def test_denied_in_our_words(gate: Gate) -> None:
    """As kubectl prints it: one line for each fault, and nothing is made."""
    worst = asking(
        container(
            {MEMORY: "1.5", CORE: 150},
            env=env("NVIDIA_VISIBLE_DEVICES"),
            volumeMounts=[{"name": "v", "mountPath": "/etc/vcuda"}],
        ),
        annotations={
            "baidu.com/vcuda-policy": "tetris",
            "baidu.com/vcuda-containers": "asunder",
            "baidu.com/vcuda-placement": "{}",
        },
        volumes=[{"name": "v", "emptyDir": {}}],
    )
    done = gate.kubectl("create", "-f", "-", stdin=worst)
    assert done.returncode != 0, done.stdout
    # RBAC says so, and that is where people would look.
    assert "(Forbidden)" not in done.stderr
    lines = done.stderr.partition(DENIED)[2].strip().splitlines()
    for words in (
        (f'{LIMITS}["{MEMORY}"]', "1500m", "whole"),
        ("NVIDIA_VISIBLE_DEVICES",),
        ("spec.containers[0].volumeMounts[0].mountPath", "/etc/vcuda"),
        ("tetris",),
        ("baidu.com/vcuda-containers", "asunder", "apart"),
        ("baidu.com/vcuda-placement",),
    ):
        faults = [line for line in lines if all(word in line for word in words)]
        assert len(faults) == 1, lines
    told = gate.denied(WHOLE_AND_A_HALF)
    assert f'{LIMITS}["{CORE}"]: 150 cores are neither' in told
    assert gate.pods() == []


def test_memory_in_mib(gate: Gate) -> None:
    """As units, rounded up, and kubectl says so; bytes get the right number."""
    asked = asking(container({MIB: 5000}))
    done = gate.kubectl("create", "--dry-run=server", "-f", "-", stdin=asked)
    assert done.returncode == 0, done.stderr
    told = "Warning: spec.containers[0]: 5000 MiB are 20 units (5120 MiB)"
    assert done.stderr.splitlines()[0] == told
    assert limits_of(gate.admitted(asked)) == {MEMORY: "20", CORE: "1"}
    for _ in range(2):
        done = gate.kubectl("apply", "-f", "-", stdin=asked)
        assert done.returncode == 0, done.stderr
    other = asking(container({MIB: 6000}))
    done = gate.kubectl("apply", "-f", "-", stdin=other)
    assert "it has 20 units, and 6000 MiB are 24" in done.stderr
    told = gate.denied(asking(container({MIB: "5Gi"})))
    assert f'{LIMITS}["{MIB}"]: 5Gi is in bytes' in told
    assert "for 5 GiB write 5120" in told


def test_core_is_one_where_memory_is_asked(gate: Gate) -> None:
    """In that container alone; else the pod is what it would be without us."""
    a_pod = asking(
        container({MEMORY: 4}),
        container({"cpu": "10m"}, "plain"),
        container({MEMORY: 2, CORE: 7}, "told"),
        initContainers=[container({MEMORY: 1}, "before")],
        annotations={"mine": "kept"},
    )
    made = gate.admitted(a_pod, dry_run=False)
    assert limits_of(made) == {MEMORY: "4", CORE: "1"}
    assert limits_of(made, 1) == {"cpu": "10m"}
    assert limits_of(made, 2) == {MEMORY: "2", CORE: "7"}
    assert limits_of(made, kind="initContainers") == {MEMORY: "1", CORE: "1"}
    free = gate.at(FREE).admitted(a_pod)
    for changed in (made["spec"]["containers"][0], made["spec"]["initContainers"][0]):
        for kind in ("limits", "requests"):
            del changed["resources"][kind][CORE]
    assert made["spec"] == free["spec"]
    assert made["metadata"]["annotations"] == free["metadata"]["annotations"]


def test_pods_that_ask_nothing_are_not_reviewed(gate: Gate) -> None:
    """Their admission waits for nobody; those of the system neither, whatever they ask.

    Where we are asked, it is once each way.
    """
    before = gate.reviews()
    gate.admitted(pod("plain"))
    gate.admitted(asking(container({"cpu": "1"}), annotations={"mine": "1"}))
    nvidia = container(env=env("NVIDIA_VISIBLE_DEVICES"))
    gate.admitted(asking(nvidia))
    for namespace in ("kube-system", "kube-public", "kube-node-lease"):
        made = gate.at(namespace).admitted(WHOLE_AND_A_HALF)
        assert limits_of(made)[CORE] == "150"
    assert gate.reviews() == before
    gate.admitted(asking(container(SHARE)))
    assert gate.reviews() == {kind: count + 1 for kind, count in before.items()}


@pytest.mark.parametrize(
    ("name", "allowed"), [("NVIDIA_VISIBLE_DEVICES", False), ("MINE", True)]
)
def test_a_container_for_debugging(gate: Gate, name: str, allowed: bool) -> None:
    """It comes to a pod that has a card already, and must not see more of them."""
    a_pod = gate.admitted(asking(container(SHARE)), dry_run=False)
    status, answer = gate.debug(a_pod, env=env(name))
    if allowed:
        assert status == 200, answer
    else:
        assert PODS in answer["message"]
        assert "spec.ephemeralContainers[0].env" in answer["message"]


def test_a_mirror_is_believed_from_kubelet_alone(gate: Gate) -> None:
    """Anybody else who writes its annotation is judged like everybody."""
    post_node(gate.rest, "here")
    mirror = asking(
        container({MEMORY: 4, CORE: 150}),
        annotations={"kubernetes.io/config.mirror": "4f1c"},
        nodeName="here",
    )
    assert "150 cores are neither" in gate.denied(mirror)
    kubelet = ["--as=system:node:here", "--as-group=system:masters"]
    made = gate.kubectl("create", *kubelet, "-f", "-", stdin=mirror)
    assert made.returncode == 0, made.stderr
