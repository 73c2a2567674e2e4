"""What is said of a pod that is not Ready, on which node, and for how long."""

from typing import Any

import pytest

from gpushare.kube.cluster import Json
from gpusharectl.install.progress import Waiting
from gpusharectl.install.rollout import Rollout, last_lines, waits

NAME = "gpushare-device-plugin"
WHO = f"{NAME} on gpu-1"
MOMENT = "2026-11-21T12:00:00Z"


def daemonset(**status: Any) -> Json:
    counted = {"observedGeneration": 2, "desiredNumberScheduled": 1}
    return {
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "generation": 2},
        "status": {**counted, "updatedNumberScheduled": 1, **status},
    }


def pod(node: str = "gpu-1", *, ready: bool = False, **status: Any) -> Json:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": f"{NAME}-x"},
        "spec": {"nodeName": node} if node else {},
        "status": {"conditions": conditions, **status},
    }


def container(restarts: int = 0, **state: Json) -> Json:
    return {"image": "gpushare:1", "restartCount": restarts, "state": state}


def containers(restarts: int = 0, **state: Json) -> Json:
    return pod(containerStatuses=[container(restarts, **state)])


def event(reason: str, message: str, name: str = f"{NAME}-x") -> Json:
    return {
        "reason": reason,
        "message": message,
        "involvedObject": {"name": name},
        "lastTimestamp": MOMENT,
        "metadata": {},
    }


def aimed(node: str) -> Json:
    """A DaemonSet's pod that no node has taken yet, as its controller makes it."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    body = pod("")
    body["spec"] = {"affinity": {"nodeAffinity": {rule: terms}}}
    body["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "message": "Insufficient cpu",
            "lastTransitionTime": MOMENT,
        }
    ]
    return body


def seen(*pods: Json, events: tuple[Json, ...] = (), **status: Any) -> list[Waiting]:
    look = Rollout(daemonset(**status), pods, events)
    return waits(look, ["gpu-1"], lambda _: "out of memory / bye")


CREATING = {"waiting": {"reason": "ContainerCreating"}}
PULLING = event("Pulling", 'Pulling image "gpushare:1"')
CASES = {
    "no pod yet": (seen(), Waiting(WHO, "its pod to be created")),
    "no pod may be made": (
        seen(events=(event("FailedCreate", "pods forbidden:\n quota", NAME),)),
        Waiting(WHO, "pods forbidden: quota"),
    ),
    "no room": (
        seen(aimed("gpu-1")),
        Waiting(WHO, "its pod cannot be scheduled: Insufficient cpu", MOMENT),
    ),
    "another node's pod has no room": (
        seen(aimed("gpu-2")),
        Waiting(WHO, "its pod to be created"),
    ),
    "pulling": (
        seen(containers(**CREATING), events=(PULLING,)),
        Waiting(WHO, "pulling the image gpushare:1", MOMENT),
    ),
    "pulled": (
        seen(containers(**CREATING), events=(PULLING, event("Pulled", "done"))),
        Waiting(WHO, "its containers to be created"),
    ),
    "a folder is missing": (
        seen(containers(**CREATING), events=(event("FailedMount", "no /x"),)),
        Waiting(WHO, "no /x"),
    ),
    "no such image": (
        seen(
            containers(
                waiting={"reason": "ImagePullBackOff", "message": "Back-off 401"}
            )
        ),
        Waiting(
            WHO,
            "the image gpushare:1 cannot be pulled: Back-off 401",
            topic="no gpushare:1",
        ),
    ),
    "never pulled": (
        seen(containers(waiting={"reason": "ErrImageNeverPull"})),
        Waiting(
            WHO,
            "the image gpushare:1 cannot be pulled: ErrImageNeverPull",
            hopeless=True,
            topic="no gpushare:1",
        ),
    ),
    "crashing": (
        seen(containers(4, waiting={"reason": "CrashLoopBackOff"})),
        Waiting(
            WHO, "its container has ended 4 times. Its log says: out of memory / bye"
        ),
    ),
    "just ended": (
        seen(containers(0, terminated={"exitCode": 1})),
        Waiting(WHO, "its container has ended once. Its log says: out of memory / bye"),
    ),
    "something new": (
        seen(containers(waiting={"reason": "CreateContainerError", "message": "x"})),
        Waiting(WHO, "CreateContainerError: x"),
    ),
    "not ready": (
        seen(containers(running={}), events=(event("Unhealthy", "HTTP 503"),)),
        Waiting(WHO, "HTTP 503"),
    ),
    "starting": (
        seen(
            containers(running={}),
            events=(event("Unhealthy", "Startup probe failed: refused"),),
        ),
        Waiting(WHO, "its pod runs, but is not Ready yet"),
    ),
    "just bound": (seen(pod()), Waiting(WHO, "kubelet to start its pod")),
    "ended well": (
        seen(containers(terminated={"exitCode": 0})),
        Waiting(WHO, "its container has ended with success, its pod not yet"),
    ),
    "the controller has not looked": (
        seen(pod(ready=True), observedGeneration=1),
        Waiting(WHO, "its old pod to be replaced"),
    ),
    "an old pod": (
        seen(pod(ready=True), updatedNumberScheduled=0),
        Waiting(WHO, "its old pod to be replaced"),
    ),
}


@pytest.mark.parametrize(("found", "expected"), CASES.values(), ids=CASES.keys())
def test_one_wait_in_words(found: list[Waiting], expected: Waiting) -> None:
    assert found == [expected]


def test_nothing_is_waited_for_once_all_are_ready() -> None:
    assert seen(pod(ready=True)) == []
    assert seen(pod(ready=True), pod("gpu-2")) == []


def test_a_pod_that_leaves_does_not_count() -> None:
    leaving = pod(ready=True)
    leaving["metadata"]["deletionTimestamp"] = MOMENT
    assert seen(leaving) == [Waiting(WHO, "its pod to be created")]


def test_the_templates_own_number_is_believed_over_the_count() -> None:
    """So that a rollout over many nodes names just those with the old pod."""
    old, new = pod(ready=True), pod("gpu-2", ready=True)
    for one, number in ((old, "1"), (new, "2")):
        one["metadata"]["labels"] = {"pod-template-generation": number}
    body = daemonset(updatedNumberScheduled=1, desiredNumberScheduled=2)
    body["metadata"]["annotations"] = {"deprecated.daemonset.template.generation": "2"}
    found = waits(Rollout(body, [old, new], ()), ["gpu-1", "gpu-2"], lambda _: "")
    assert found == [Waiting(WHO, "its old pod to be replaced")]


@pytest.mark.parametrize(
    ("ready", "updated", "all_", "expected"),
    [
        (2, 2, 2, []),
        (1, 2, 2, ["1 of 2 pods are up to date and ready"]),
        (2, 1, 3, ["1 of 2 pods are up to date and ready"]),
        (2, 2, 3, ["2 of 2 pods are up to date and ready"]),
    ],
)
def test_a_deployment_counts_its_replicas(
    ready: int, updated: int, all_: int, expected: list[str]
) -> None:
    body = {
        "kind": "Deployment",
        "metadata": {"name": "gpushare-scheduler", "generation": 1},
        "spec": {"replicas": 2},
        "status": {
            "observedGeneration": 1,
            "availableReplicas": ready,
            "updatedReplicas": updated,
            "replicas": all_,
        },
    }
    found = waits(Rollout(body, [], ()), [], lambda _: "")
    assert [one.what for one in found] == expected


@pytest.mark.parametrize("ready", [True, False])
def test_a_deployments_old_pods_are_waited_for_while_they_answer(ready: bool) -> None:
    """Not those of a node that is down: nobody would ever say that they have ended."""
    body: Json = {
        "kind": "Deployment",
        "metadata": {"name": "gpushare-webhook", "generation": 1},
        "spec": {"replicas": 1},
        "status": {
            "observedGeneration": 1,
            **dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), 1),
        },
    }
    old = pod(ready=ready)
    old["metadata"]["deletionTimestamp"] = MOMENT
    found = waits(Rollout(body, [pod(ready=True), old], []), (), lambda _: "")
    wait = Waiting("gpushare-webhook on gpu-1", "its old pod to end")
    assert found == ([wait] if ready else [])


def test_a_deployments_pod_says_what_it_lacks() -> None:
    body = {
        "kind": "Deployment",
        "metadata": {"name": "gpushare-scheduler", "generation": 1},
        "spec": {"replicas": 1},
        "status": {},
    }
    found = waits(Rollout(body, [containers(**CREATING)], (PULLING,)), [], lambda _: "")
    assert found == [
        Waiting("gpushare-scheduler on gpu-1", "pulling the image gpushare:1", MOMENT)
    ]


def test_last_lines_are_the_last() -> None:
    assert last_lines("") == ""
    assert last_lines("a\n\n b \nc\nd\n") == "b / c / d"
