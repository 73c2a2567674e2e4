"""A real cluster comes up and does what clusters do."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.testbed.kubeadm import Cluster, Node, Programs
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
TWO_SCHEDULERS = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
profiles:
- schedulerName: default-scheduler
- schedulerName: second
"""
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
    """A cluster of one node, ``cp``; a test may join more, under names of its own."""
    return lifetime.cluster


@pytest.fixture(scope="module")
def worker(kubeadm_cluster: Cluster) -> Node:
    """A second node."""
    return kubeadm_cluster.join("worker")


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


def test_a_pod_runs_and_answers(kubeadm_cluster: Cluster, running: list[str]) -> None:
    """kubectl exec reaches into it, under the name that the seed's pods ask for too."""
    start(kubeadm_cluster, running, pod("one"))
    seed = pod("two")
    seed["spec"]["containers"][0]["image"] = "nvidia/cuda:11.0-base"
    start(kubeadm_cluster, running, seed)
    for name in running:
        assert kubeadm_cluster.kubectl("exec", name, "--", "hostname") == f"{name}\n"


def test_pods_reach_the_api_server(
    kubeadm_cluster: Cluster, running: list[str]
) -> None:
    """By its ClusterIP, as every client inside a cluster does."""
    start(kubeadm_cluster, running, pod("caller"))
    call = 'nc -w 5 "$KUBERNETES_SERVICE_HOST" 443 < /dev/null'
    kubeadm_cluster.kubectl("exec", "caller", "--", "sh", "-c", call)


def test_a_second_node(
    kubeadm_cluster: Cluster, worker: Node, running: list[str]
) -> None:
    """It has its own network and files; its pods are reached from here."""
    seen = start(kubeadm_cluster, running, pod("far", nodeName="worker"))
    assert seen["status"]["hostIP"] == worker.address
    assert kubeadm_cluster.kubectl("exec", "far", "--", "hostname") == "far\n"
    assert worker.must("hostname") == "worker\n"
    worker.write("/var/lib/kubelet/mark", "worker's")
    assert worker.must("cat", "/var/lib/kubelet/mark") == "worker's"
    assert not kubeadm_cluster.nodes["cp"].path("/var/lib/kubelet/mark").exists()
    assert not Path("/var/lib/kubelet/mark").exists()
    ping = ["/bin/busybox", "ping", "-c1", "-W5", seen["status"]["podIP"]]
    assert subprocess.run(ping, capture_output=True, check=False).returncode == 0


def test_processes_of_a_node(worker: Node) -> None:
    """They log, can be hung, and say how they ended."""
    process = worker.launch("sleeper", ["sh", "-c", "echo up; exec sleep 600"])
    process.wait_ready(lambda: "up" in process.log_tail())
    process.send(signal.SIGSTOP)
    process.send(signal.SIGCONT)
    process.stop()
    assert process.popen.returncode == -signal.SIGTERM
    short = worker.launch("short", ["sh", "-c", "exit 3"])
    assert short.popen.wait() == 3


def test_a_node_reboots(
    kubeadm_cluster: Cluster, worker: Node, running: list[str]
) -> None:
    """Files stay, processes do not, and the kubelet starts its pods again."""
    start(kubeadm_cluster, running, pod("lasting", nodeName="worker"))
    worker.write("/var/lib/kubelet/mark", "kept")
    other = worker.launch("other", ["sleep", "600"])
    kubeadm_cluster.reboot("worker")
    assert not other.running
    assert worker.path("/var/lib/kubelet/mark").read_text() == "kept"
    wait_until(
        lambda: kubeadm_cluster.rest.must("GET", f"{PODS}/lasting")["status"],
        "restarted container",
        60,
        accept=lambda seen: (
            seen["containerStatuses"][0]["restartCount"] == 1
            and seen["containerStatuses"][0]["ready"]
        ),
    )
    assert kubeadm_cluster.kubectl("exec", "lasting", "--", "hostname") == "lasting\n"


def test_containers_outlive_containerd_and_kubelet(
    kubeadm_cluster: Cluster, worker: Node, running: list[str]
) -> None:
    """Both come back to the same containers."""
    before = start(kubeadm_cluster, running, pod("calm", nodeName="worker"))
    worker.kill_kubelet()
    worker.kill_containerd()
    worker.start_containerd()
    worker.start_kubelet()
    wait_until(
        lambda: kubeadm_cluster.try_kubectl("exec", "calm", "--", "hostname").stdout,
        "answering pod",
        60,
    )
    after = kubeadm_cluster.rest.must("GET", f"{PODS}/calm")
    ids = [
        each["status"]["containerStatuses"][0]["containerID"]
        for each in (before, after)
    ]
    assert ids[0] == ids[1]


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


def test_kube_scheduler_takes_a_configuration(
    kubeadm_cluster: Cluster, running: list[str]
) -> None:
    """When the call returns, the new one schedules."""
    kubeadm_cluster.set_scheduler_config(TWO_SCHEDULERS)
    start(kubeadm_cluster, running, pod("second", schedulerName="second"))


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
