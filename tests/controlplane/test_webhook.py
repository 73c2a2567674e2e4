"""The webhook's general rules on a real API server: what is kept, denied and told."""

import pytest

from tests.controlplane.gate import FREE, PODS, Gate
from tests.controlplane.newpods import asking, container, limits_of
from tests.testbed.objects import CORE, MEMORY, pod, post_node
from tests.testbed.rest import Json

pytestmark = pytest.mark.controlplane

DENIED = f'admission webhook "{PODS}" denied the request: '
LIMITS = "spec.containers[0].resources.limits"
APART = {"baidu.com/vcuda-containers": "apart"}
SHARE = {MEMORY: 4, CORE: 10}


def env(name: str, value: str = "all") -> list[Json]:
    return [{"name": name, "value": value}]


WRONG: dict[str, tuple[Json, tuple[str, ...]]] = {
    "cores-of-no-kind": (
        asking(container({MEMORY: 4, CORE: 150})),
        (f'{LIMITS}["{CORE}"]: 150 cores are neither', "100 or 200"),
    ),
    "half-a-unit": (
        asking(container({MEMORY: "1.5", CORE: 1})),
        (f'{LIMITS}["{MEMORY}"]', "1500m", "whole"),
    ),
    "neither-here-nor-there": (
        asking(container(SHARE), annotations={"baidu.com/vcuda-containers": "asunder"}),
        ("baidu.com/vcuda-containers", "asunder", "apart"),
    ),
    "forged": (
        asking(container(SHARE), annotations={"baidu.com/vcuda-placement": "{}"}),
        ("baidu.com/vcuda-placement",),
    ),
    "its-own-share-file": (
        asking(
            container(SHARE, volumeMounts=[{"name": "v", "mountPath": "/etc/vcuda"}]),
            volumes=[{"name": "v", "emptyDir": {}}],
        ),
        ("spec.containers[0].volumeMounts[0].mountPath", "/etc/vcuda"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_denied_in_our_words(gate: Gate, name: str) -> None:
    """As kubectl prints it: field, value, what is allowed. Nothing is made."""
    a_pod, says = WRONG[name]
    done = gate.kubectl("create", "-f", "-", stdin=a_pod)
    assert done.returncode != 0, done.stdout
    assert DENIED in done.stderr
    # RBAC says so, and that is where people would look.
    assert "(Forbidden)" not in done.stderr
    told = done.stderr.partition(DENIED)[2]
    assert [each for each in says if each not in told] == [], told
    assert gate.pods() == []


def test_all_that_is_wrong_is_told_at_once(gate: Gate) -> None:
    """One line for each."""
    worst = asking(
        container({MEMORY: 4, CORE: 150}, env=env("NVIDIA_VISIBLE_DEVICES")),
        annotations={"baidu.com/vcuda-policy": "tetris"},
    )
    lines = gate.denied(worst).partition(DENIED)[2].strip().splitlines()
    for word in ("150", "NVIDIA_VISIBLE_DEVICES", "tetris"):
        assert len([line for line in lines if word in line]) == 1, lines


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
    for one in (made["spec"]["containers"][0], made["spec"]["initContainers"][0]):
        for kind in ("limits", "requests"):
            del one["resources"][kind][CORE]
    assert made["spec"] == free["spec"]
    assert made["metadata"]["annotations"] == free["metadata"]["annotations"]


@pytest.mark.parametrize("asks", [{CORE: 50}, {MEMORY: 0}, {"cpu": "10m"}])
def test_nothing_is_added_where_no_memory_is_asked(
    gate: Gate, asks: dict[str, object]
) -> None:
    """Not for cores alone, nor for none, nor for others' resources."""
    made = gate.admitted(asking(container(asks)))
    assert limits_of(made) == {key: str(value) for key, value in asks.items()}


def test_whole_cards_and_shares_pass(gate: Gate) -> None:
    """Each kind that there is."""
    for cores in (1, 99, 100, 200):
        made = gate.admitted(asking(container({MEMORY: 4, CORE: cores})))
        assert limits_of(made)[CORE] == str(cores)
    apart = [container({MEMORY: 4, CORE: 60}, name) for name in ("a", "b")]
    gate.admitted(asking(*apart, annotations=APART))


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
        made = gate.at(namespace).admitted(WRONG["cores-of-no-kind"][0])
        assert limits_of(made)[CORE] == "150"
    assert gate.reviews() == before
    gate.admitted(asking(container(SHARE)))
    assert gate.reviews() == {kind: count + 1 for kind, count in before.items()}


def test_updates_of_a_pod_with_a_card_are_not_reviewed(gate: Gate) -> None:
    """Labels, its binding, its end: none of them needs us."""
    gate.admitted(asking(container(SHARE)), dry_run=False)
    before = gate.reviews()
    path = f"/api/v1/namespaces/{gate.namespace}/pods/tried"
    gate.rest.must("PATCH", path, {"metadata": {"labels": {"a": "b"}}})
    gate.rest.must("PATCH", f"{path}/status", {"status": {"message": "said"}})
    target = {"metadata": {"name": "tried"}, "target": {"kind": "Node", "name": "n"}}
    gate.rest.must("POST", f"{path}/binding", target)
    gate.rest.must("DELETE", path)
    assert gate.reviews() == before


@pytest.mark.parametrize(
    ("name", "allowed"), [("NVIDIA_VISIBLE_DEVICES", False), ("MINE", True)]
)
def test_a_container_for_debugging(gate: Gate, name: str, allowed: bool) -> None:
    """It comes to a pod that has a card already, and must not see more of them."""
    gate.admitted(asking(container(SHARE)), dry_run=False)
    path = f"/api/v1/namespaces/{gate.namespace}/pods/tried"
    extra = {"name": "debug", "image": "local.test/pause:1", "env": env(name)}
    patch: Json = {"spec": {"ephemeralContainers": [extra]}}
    kind = "application/strategic-merge-patch+json"
    status, answer = gate.rest.patch(f"{path}/ephemeralcontainers", patch, kind)
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


def test_a_copied_pod_brings_its_placement_in_vain(gate: Gate) -> None:
    """Such as ``kubectl get pod -o yaml | kubectl create -f -`` makes; told why."""
    made = gate.admitted(asking(container(SHARE)), dry_run=False)
    copied = {
        **made,
        "metadata": {
            "name": "copied",
            "annotations": {"baidu.com/vcuda-actual": '{"v": 1}'},
        },
    }
    assert "baidu.com/vcuda-actual" in gate.denied(copied)
