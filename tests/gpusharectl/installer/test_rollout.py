"""What is said of a pod that is not Ready, on which node, and for how long."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpushare.kube.cluster import Json
from gpusharectl.installer.progress import Waiting
from gpusharectl.installer.rollout import Rollout, newest_revision, rollout_waits

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


def containers(restarts: int = 0, **state: Json) -> Json:
    """A pod whose one container is in this state."""
    one = {"image": "gpushare:1", "restartCount": restarts, "state": state}
    return pod(containerStatuses=[one])


def waiting(reason: str, message: str = "", restarts: int = 0) -> Json:
    return containers(restarts, waiting={"reason": reason, "message": message})


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


def rollout(
    workload: Json, pods: Sequence[Json], events: Sequence[Json] = ()
) -> Rollout:
    def of(name: str) -> list[Json]:
        return [one for one in events if one["involvedObject"]["name"] == name]

    return Rollout(workload, pods, of, lambda _: "out of memory / bye")


def seen(*pods: Json, events: tuple[Json, ...] = (), **status: Any) -> list[Waiting]:
    return rollout_waits(rollout(daemonset(**status), pods, events), ["gpu-1"])


CREATING = waiting("ContainerCreating")
PULLING = event("Pulling", 'Pulling image "gpushare:1"')
NEVER, UNPULLED = "ErrImageNeverPull", "the image gpushare:1 cannot be pulled"
BYE = "Its log says: out of memory / bye"
OLD = "its old pod to be replaced"
LEAVING = pod(ready=True)
LEAVING["metadata"]["deletionTimestamp"] = MOMENT
CASES = {
    "all ready": (seen(pod(ready=True), pod("gpu-2")), None),
    "no pod yet": (seen(), "its pod to be created"),
    "no pod can be": (
        rollout_waits(
            replace(rollout(daemonset(), ()), why_barred=lambda _: "x"), ["gpu-1"]
        ),
        "its pod, which is not made there: x",
    ),
    "the controller has not seen it": (
        seen(observedGeneration=1),
        "kube-controller-manager to see the DaemonSet and make its pod",
    ),
    "no node counts": (
        seen(desiredNumberScheduled=0),
        "its pod to be created; the DaemonSet counts no fitting node yet",
    ),
    "a pod that leaves does not count": (seen(LEAVING), "its pod to be created"),
    "no pod may be made": (
        seen(events=(event("FailedCreate", "pods forbidden:\n quota", NAME),)),
        "pods forbidden: quota",
    ),
    "no room": (
        seen(aimed("gpu-1")),
        Waiting(WHO, "its pod cannot be scheduled: Insufficient cpu", MOMENT),
    ),
    "another node's pod has no room": (seen(aimed("gpu-2")), "its pod to be created"),
    "pulling": (
        seen(CREATING, events=(PULLING,)),
        Waiting(WHO, "pulling the image gpushare:1", MOMENT),
    ),
    "pulled": (
        seen(CREATING, events=(PULLING, event("Pulled", "done"))),
        "its containers to be created",
    ),
    "no such image": (
        seen(waiting("ImagePullBackOff", "Back-off 401")),
        Waiting(WHO, f"{UNPULLED}: Back-off 401", topic="no gpushare:1"),
    ),
    "never pulled": (
        seen(waiting(NEVER)),
        Waiting(WHO, f"{UNPULLED}: {NEVER}", hopeless=True, topic="no gpushare:1"),
    ),
    "crashing": (
        seen(waiting("CrashLoopBackOff", restarts=4)),
        f"its container has ended 4 times. {BYE}",
    ),
    "just ended": (
        seen(containers(terminated={"exitCode": 1})),
        f"its container has ended once. {BYE}",
    ),
    "something new": (
        seen(waiting("CreateContainerError", "x")),
        "CreateContainerError: x",
    ),
    "not ready": (
        seen(containers(running={}), events=(event("Unhealthy", "HTTP 503"),)),
        "HTTP 503",
    ),
    "starting": (
        seen(
            containers(running={}),
            events=(event("Unhealthy", "Startup probe failed: refused"),),
        ),
        "its pod runs, but is not Ready yet",
    ),
    "just bound": (seen(pod()), "kubelet to start its pod"),
    "ended well": (
        seen(containers(terminated={"exitCode": 0})),
        "its container has ended with success, its pod not yet",
    ),
    "the controller has not looked": (seen(pod(ready=True), observedGeneration=1), OLD),
    "an old pod": (seen(pod(ready=True), updatedNumberScheduled=0), OLD),
}


@pytest.mark.parametrize(("found", "expected"), CASES.values(), ids=CASES.keys())
def test_one_wait_in_words(
    found: list[Waiting], expected: Waiting | str | None
) -> None:
    wait = Waiting(WHO, expected) if isinstance(expected, str) else expected
    assert found == [one for one in [wait] if one]


def revision(number: int, digest: str, of: str = "ours") -> Json:
    return {
        "revision": number,
        "metadata": {
            "labels": {"controller-revision-hash": digest},
            "ownerReferences": [{"uid": of}],
        },
    }


def test_the_revision_says_which_pods_are_old() -> None:
    """Not the generation, which a pod that outlived a rollback does not share.

    So that a rollout over many nodes names only those with the old pod, and an old
    revision that is used again, now with the highest number, is the present one.
    """
    kept, failed = pod(ready=True), pod("gpu-2", ready=True)
    for one, digest, generation in ((kept, "good", "1"), (failed, "bad", "2")):
        one["metadata"]["labels"] = {
            "controller-revision-hash": digest,
            "pod-template-generation": generation,
        }
    body = daemonset(updatedNumberScheduled=1, desiredNumberScheduled=2)
    body["metadata"]["uid"] = "ours"
    body["metadata"]["annotations"] = {"deprecated.daemonset.template.generation": "3"}
    others = [revision(2, "bad"), revision(9, "x", of="another's")]
    newest = newest_revision(body, [revision(3, "good"), *others])
    found = rollout_waits(
        replace(rollout(body, [kept, failed]), revision=newest), ["gpu-1", "gpu-2"]
    )
    assert found == [Waiting(f"{NAME} on gpu-2", OLD)]


def deployment(
    *pods: Json, ready: int = 2, updated: int = 2, number: int = 2
) -> list[Waiting]:
    """What a Deployment of two replicas waits for."""
    body = {
        "kind": "Deployment",
        "metadata": {"name": "webhook", "generation": 1},
        "spec": {"replicas": 2},
        "status": {
            "observedGeneration": 1,
            "availableReplicas": ready,
            "updatedReplicas": updated,
            "replicas": number,
        },
    }
    return rollout_waits(rollout(body, pods, (PULLING,)), [])


DOWN = pod()
DOWN["metadata"]["deletionTimestamp"] = MOMENT


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (deployment(), []),
        (deployment(ready=1), ["webhook: 1 of 2 pods are up to date and ready"]),
        (
            deployment(updated=1, number=3),
            ["webhook: 1 of 2 pods are up to date and ready"],
        ),
        (deployment(number=3), ["webhook: 2 of 2 pods are up to date and ready"]),
        (
            deployment(CREATING, ready=0),
            ["webhook on gpu-1: pulling the image gpushare:1"],
        ),
        # Old ones are waited for while they answer; nobody would ever say that those
        # of a node that is down have ended.
        (
            deployment(pod(ready=True), LEAVING),
            ["webhook on gpu-1: its old pod to end"],
        ),
        (deployment(pod(ready=True), DOWN), []),
    ],
)
def test_a_deployment_counts_its_replicas(
    found: list[Waiting], expected: list[str]
) -> None:
    assert [str(one) for one in found] == expected
