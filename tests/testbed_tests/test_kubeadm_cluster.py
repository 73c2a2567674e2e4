"""What other tests on a real cluster cannot notice: who sees a card, what is left."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.testbed.kubeadm import Cluster, Programs
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until
from tests.testbed_tests.traces import (
    outside,
    processes,
    record_of,
    settings,
    traces,
    wait_for_end,
)

pytestmark = pytest.mark.cluster
PODS = "/api/v1/namespaces/default/pods"
CARD: Json = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {
            "name": "GPU-1",
            "containerEdits": {
                "mounts": [
                    {
                        "hostPath": "/etc/hostname",
                        "containerPath": "/card",
                        "options": ["ro", "bind"],
                    }
                ]
            },
        }
    ],
}


@dataclass(frozen=True)
class Lifetime:
    """A cluster that ``end`` closes, and what the machine was like before it."""

    cluster: Cluster
    folder: Path
    end: ExitStack
    outside: dict[str, list[str]]
    settings: dict[str, str]


@pytest.fixture(scope="module")
def lifetime(
    cluster_programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lifetime]:
    folder = tmp_path_factory.mktemp("kubeadm")
    before, calm = outside(), settings()
    with ExitStack() as end:
        cluster = end.enter_context(Cluster(cluster_programs, folder))
        yield Lifetime(cluster, folder, end, before, calm)


@pytest.fixture(scope="module")
def kubeadm_cluster(lifetime: Lifetime) -> Cluster:
    """A cluster of one node, ``cp``."""
    return lifetime.cluster


def pod(name: str, **spec: object) -> Json:
    container = {
        "name": "main",
        "image": "local.test/base:1",
        "command": ["sleep", "100000"],
    }
    default = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"metadata": {"name": name}, "spec": {**default, **spec}}


@pytest.fixture
def running(kubeadm_cluster: Cluster) -> Iterator[list[str]]:
    """Names of pods that the test started; they go with it."""
    names: list[str] = []
    yield names
    for name in names:
        kubeadm_cluster.rest.must("DELETE", f"{PODS}/{name}")


def start(cluster: Cluster, names: list[str], wanted: Json) -> Json:
    """Start a pod and give it back once it runs."""
    names.append(wanted["metadata"]["name"])
    cluster.rest.must("POST", PODS, wanted)
    return wait_until(
        lambda: cluster.rest.must("GET", f"{PODS}/{names[-1]}"),
        f"running pod {names[-1]}",
        60,
        accept=lambda seen: all(
            each["ready"]
            for each in seen["status"].get("containerStatuses", [{"ready": 0}])
        ),
    )


def test_cards_come_from_cdi(kubeadm_cluster: Cluster, running: list[str]) -> None:
    """NVIDIA's real runtime gives a pod the card that it names, and no other."""
    node = kubeadm_cluster.nodes["cp"]
    node.write_cdi(CARD)
    wanted = pod("carded", nodeName="cp", runtimeClassName="nvidia")
    named = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "GPU-1"}]
    wanted["spec"]["containers"][0]["env"] = named
    start(kubeadm_cluster, running, wanted)
    start(kubeadm_cluster, running, pod("bare", nodeName="cp"))
    look = ("--", "ls", "/card")
    assert kubeadm_cluster.try_kubectl("exec", "carded", *look).returncode == 0
    assert kubeadm_cluster.try_kubectl("exec", "bare", *look).returncode != 0


def test_the_end_leaves_no_trace(lifetime: Lifetime) -> None:
    """Neither files nor links, groups, mounts or processes; only the logs stay.

    The last test here, because it ends the cluster, with a pod that still runs.
    """
    cluster, folder = lifetime.cluster, lifetime.folder
    record = record_of(folder / "nodes")
    cluster.rest.must("POST", PODS, pod("last"))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/last", "--timeout=60s")
    made = processes(cluster.nodes["cp"].spaces.holder.pid)
    there = traces(record)
    lifetime.end.close()
    assert len(there) >= 5
    assert len(made) > len(cluster.nodes)
    assert traces(record) == []
    assert outside() == lifetime.outside
    assert list(folder.glob("*.log"))
    wait_for_end(made)
    assert not lifetime.settings or settings() in ({}, lifetime.settings)
