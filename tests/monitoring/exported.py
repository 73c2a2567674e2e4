"""A node's exporter as a process: over the driver's stub and an API server in memory.

Its pods' processes are files of a made-up ``/proc``, so that neither containers nor
root are needed; ``tests/cluster`` has real ones.
"""

import hashlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.addresses import free_address
from gpushare.domain.model import NodeName, PodRef, PodUID
from gpushare.domain.model import Placement as Held
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Kind, Target
from gpusharectl.demo.api_server import ApiServerOnLoopback
from tests.builders import AT, container_json, pod_json, share
from tests.nvml.build import STATE_VARIABLE, Stub
from tests.nvml.driver import StubCard, StubDriver
from tests.testbed.process import Launcher, Process

NOT_OURS = "GPUSHARE_"
"""Settings that whoever runs the tests may have in the environment."""


@dataclass
class ExportedNode:
    """One node; ``pod`` runs a pod on it, ``outside`` a process of nobody's."""

    name: str
    folder: Path
    stub: Stub
    cards: list[StubCard]
    cluster: Embedded
    server: ApiServerOnLoopback
    launcher: Launcher
    settings: dict[str, str] = field(default_factory=dict)
    process: Process | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.driver = StubDriver(self.folder, self.cards)
        self.host = self.folder / "host"
        (self.host / "proc").mkdir(parents=True)
        self.address = str(free_address())

    def start(self) -> None:
        inherited = {
            key: text for key, text in os.environ.items() if NOT_OURS not in key
        }
        own = {
            "NODE_NAME": self.name,
            "KUBECONFIG": str(self.server.kubeconfig(self.folder / "kubeconfig")),
            "LISTEN": self.address,
            "COLLECT_LISTEN": "off",
            "HOST_ROOT": str(self.host),
            "KUBELET_DIR": str(self.folder / "kubelet"),
            "LOG_FORMAT": "text",
            **self.settings,
        }
        environment = {
            **inherited,
            "LD_LIBRARY_PATH": str(self.stub.library.parent),
            STATE_VARIABLE: str(self.driver.path),
            **{f"GPUSHARE_{key}": text for key, text in own.items()},
        }
        command = [sys.executable, "-m", "deviceplugin", "export"]
        self.process = self.launcher.start(
            f"exporter-{self.name}", command, environment
        )

    def pod(
        self, name: str, *, namespace: str, card: int, units: int, pid: int
    ) -> None:
        """Run a pod of one container ``main`` that was allotted so much of a card."""
        body = pod_json(name, containers=[container_json("main", units, 1)])
        body["metadata"] |= {"namespace": namespace, "uid": ""}
        made = self.cluster.create(Kind.PODS, body)
        uid = str(made["metadata"]["uid"])
        ref = PodRef(PodUID(uid), namespace, name, 0)
        one = share(self.cards[card].uuid, units, 1)
        held = Held(ref, NodeName(self.name), (one,))
        note = {names.PLACEMENT: encode_placement(held, AT)}
        self.cluster.bind(Target(namespace, name, uid), self.name, note)
        container = hashlib.sha256(uid.encode()).hexdigest()
        status = {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": "main",
                    "containerID": f"containerd://{container}",
                    "state": {"running": {"startedAt": AT}},
                }
            ],
        }
        self.cluster.patch(
            Kind.PODS, namespace, name, {"status": status}, subresource="status"
        )
        self._process(pid, f"/kubepods/burstable/pod{uid}/{container}")

    def end(self, name: str, *, namespace: str) -> None:
        """Let a pod end, and be gone."""
        self.cluster.delete(Kind.PODS, namespace, name, grace_period_s=0)

    def outside(self, pid: int) -> None:
        """Run a process outside Kubernetes."""
        self._process(pid, "/system.slice/xorg.service")

    def uses(self, card: int, pid: int, *, mib: int, sm: int) -> None:
        """Let a process use a card, from now on."""
        uuid = self.cards[card].uuid
        self.driver.process(uuid, pid, mib=mib)
        self.driver.busy(uuid, pid, sm=sm)

    def _process(self, pid: int, cgroup: str) -> None:
        folder = self.host / "proc" / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (python) S {' '.join(['1'] * 49)}\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
