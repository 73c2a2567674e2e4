"""The adapter's rules over the real exporter, by way of a real Prometheus."""

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare.addresses import find_free_address
from gpushare.domain.model import NodeName, PodRef, PodUID
from gpushare.domain.model import Placement as Held
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Kind, PodTarget
from gpusharectl.demo.api_server import ApiServerOnLoopback
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import AT, container_json, pod_json, share
from tests.monitoring.adapter import Adapter, Metric, rules_of
from tests.monitoring.scene import (
    ALLOCATED,
    FB_USED,
    GPU_UTIL,
    MEM_USED,
    MENDED,
    RATIO,
    SEED,
    SM_UTIL,
)
from tests.nvml.build import STATE_VARIABLE, Stub, the_stub
from tests.nvml.driver import StubCard, StubDriver, stub_card
from tests.testbed.process import Launcher
from tests.testbed.prometheus import MonitoringPrograms, Prometheus
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.processes


@dataclass
class ExportedNode:
    """One node; ``pod`` runs a pod on it, ``runs`` a process of a cgroup."""

    name: str
    folder: Path
    stub: Stub
    cards: list[StubCard]
    cluster: Embedded
    server: ApiServerOnLoopback
    launcher: Launcher

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.driver = StubDriver(self.folder, self.cards)
        self.host = self.folder / "host"
        (self.host / "proc").mkdir(parents=True)
        self.address = str(find_free_address())

    def start(self) -> None:
        own = {
            "NODE_NAME": self.name,
            "KUBECONFIG": str(self.server.kubeconfig(self.folder / "kubeconfig")),
            "LISTEN": self.address,
            "COLLECT_LISTEN": "off",
            "HOST_ROOT": str(self.host),
            "KUBELET_DIR": str(self.folder / "kubelet"),
            "LOG_FORMAT": "text",
        }
        environment = {
            # Settings that whoever runs the tests may have are left out.
            **{key: text for key, text in os.environ.items() if "GPUSHARE_" not in key},
            "LD_LIBRARY_PATH": str(self.stub.library.parent),
            STATE_VARIABLE: str(self.driver.path),
            **{f"GPUSHARE_{key}": text for key, text in own.items()},
        }
        command = [sys.executable, "-m", "exporter"]
        self.launcher.start(f"exporter-{self.name}", command, environment)

    def pod(self, name: str, namespace: str, card: int, pid: int) -> None:
        """Run a pod of one container ``main`` that was allotted 4 units of a card."""
        body = pod_json(name, containers=[container_json("main", 4, 1)])
        body["metadata"] |= {"namespace": namespace, "uid": ""}
        made = self.cluster.create(Kind.PODS, body)
        uid = str(made["metadata"]["uid"])
        ref = PodRef(PodUID(uid), namespace, name, 0)
        one = share(self.cards[card].uuid, 4, 1)
        held = Held(ref, NodeName(self.name), (one,))
        note = {names.PLACEMENT: encode_placement(held, AT)}
        self.cluster.bind(PodTarget(namespace, name, uid), self.name, note)
        container = hashlib.sha256(uid.encode()).hexdigest()
        runs = {
            "name": "main",
            "containerID": f"containerd://{container}",
            "state": {"running": {"startedAt": AT}},
        }
        body = {"status": {"phase": "Running", "containerStatuses": [runs]}}
        self.cluster.patch(Kind.PODS, namespace, name, body, subresource="status")
        self.runs(pid, f"/kubepods/burstable/pod{uid}/{container}")

    def uses(self, card: int, pid: int, *, mib: int, sm: int) -> None:
        """Let a process use a card, from now on."""
        uuid = self.cards[card].uuid
        self.driver.process(uuid, pid, mib=mib)
        self.driver.busy(uuid, pid, sm=sm)

    def runs(self, pid: int, cgroup: str) -> None:
        folder = self.host / "proc" / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (python) S {' '.join(['1'] * 49)}\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")


A, B, SHOP, BANK, NOBODY = 101, 102, 103, 104, 900
"""Processes."""


@dataclass
class Chain:
    """Two nodes' exporters, and the Prometheus that scrapes them."""

    first: ExportedNode
    second: ExportedNode
    prometheus: Prometheus

    def comes_to(
        self,
        expected: dict[str, float],
        resource: str,
        name: str,
        *,
        namespace: str = "",
        rules: Path = SEED,
    ) -> None:
        """Wait until these objects have these values, and no others have any."""
        metric = Metric(resource, name, namespaced=resource == "pods")
        adapter = Adapter(self.prometheus, rules_of(rules))

        def found() -> dict[str, float]:
            try:
                return adapter.values(metric, namespace, *expected)
            except KeyError:
                # Not listed: nobody has told of it yet.
                return {}

        what = f"{resource}/{name} {expected}"
        wait_until(found, what, 60, accept=expected.__eq__, every_s=0.3)


@pytest.fixture(scope="module")
def chain(
    monitoring_programs: MonitoringPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chain]:
    folder = tmp_path_factory.mktemp("chain")
    cluster = Embedded()
    launcher = Launcher(folder)
    stub = the_stub()
    cards = [stub_card(number, used_mib=used) for number, used in ((0, 2100), (1, 120))]
    other = [stub_card(7, used_mib=4000)]
    with ApiServerOnLoopback(cluster) as server:
        first, second = (
            ExportedNode(name, folder / name, stub, its, cluster, server, launcher)
            for name, its in (("node-1", cards), ("node-2", other))
        )
        furnish(first, second)
        try:
            for node in (first, second):
                node.start()
            targets = {"exporter": [first.address, second.address]}
            with Prometheus(
                monitoring_programs, folder / "prometheus", targets
            ) as prometheus:
                prometheus.wait_scraped()
                yield Chain(first, second, prometheus)
        finally:
            launcher.end_all()


def furnish(first: ExportedNode, second: ExportedNode) -> None:
    """Run four pods of 4 units (1024 MiB) each, and a process of nobody's."""
    first.pod("bert-a", "default", card=0, pid=A)
    first.pod("bert-b", "default", card=0, pid=B)
    first.pod("web-0", "shop", card=1, pid=SHOP)
    second.pod("web-0", "bank", card=0, pid=BANK)
    first.runs(NOBODY, "/system.slice/xorg.service")
    first.uses(0, A, mib=512, sm=23)
    first.uses(0, B, mib=256, sm=0)
    first.uses(1, SHOP, mib=512, sm=10)
    first.uses(1, NOBODY, mib=100, sm=0)
    second.uses(0, BANK, mib=256, sm=30)
    first.driver.values(first.cards[0].uuid, gpu_util=20)
    second.driver.values(second.cards[0].uuid, gpu_util=40)


def test_the_five_values(chain: Chain) -> None:
    """As the rules are printed: by node, by pod, and memory beside the allotted.

    What runs outside Kubernetes counts for its node alone, and a card has one series
    however many share it.
    """
    chain.comes_to({"node-1": 10, "node-2": 40}, "nodes", GPU_UTIL)
    chain.comes_to({"node-1": 2220, "node-2": 4000}, "nodes", FB_USED)
    default = "default"
    chain.comes_to({"bert-a": 23, "bert-b": 0}, "pods", SM_UTIL, namespace=default)
    chain.comes_to({"bert-a": 512, "bert-b": 256}, "pods", MEM_USED, namespace=default)
    chain.comes_to({"bert-a": 0.5, "bert-b": 0.25}, "pods", RATIO, namespace=default)
    chain.comes_to({"node-1": 512 + 256 + 512 + 100}, "nodes", MEM_USED)
    chain.comes_to({"default": 768, "shop": 512}, "namespaces", MEM_USED)
    assert chain.prometheus.value(f'count({FB_USED}{{NodeName="node-1"}})') == 2


def test_a_pod_of_the_same_name_elsewhere(chain: Chain) -> None:
    """512 of 1024 MiB: a quarter by the rule as printed, a half by the mended one."""
    chain.comes_to({"web-0": 0.25}, "pods", RATIO, namespace="shop")
    chain.comes_to({"web-0": 0.5}, "pods", RATIO, namespace="shop", rules=MENDED)
    chain.comes_to({"web-0": 0.25}, "pods", RATIO, namespace="bank", rules=MENDED)


def test_the_load_comes_and_goes_while_all_runs(chain: Chain) -> None:
    """0, 23, 0; and with the pod its series go."""
    node = chain.first
    late = 110
    node.pod("late", "default", card=1, pid=late)
    node.uses(1, late, mib=128, sm=0)
    for sm in (0, 23, 0):
        node.uses(1, late, mib=128, sm=sm)
        chain.comes_to({"late": sm}, "pods", SM_UTIL, namespace="default")
    node.driver.leave(node.cards[1].uuid, late)
    node.cluster.delete(Kind.PODS, "default", "late", grace_period_s=0)
    series = f'{{__name__=~"{SM_UTIL}|{MEM_USED}|{ALLOCATED}",PodName="late"}}'
    wait_until(lambda: not chain.prometheus.query(series), "series gone")
