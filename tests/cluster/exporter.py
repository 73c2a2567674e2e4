"""The exporter as a process of a node, over the node's stub driver."""

import contextlib
import sys
from dataclasses import dataclass

from tests.cluster.gpus import ROOT, Gpus
from tests.cluster.site import SYSTEM
from tests.nvml.build import STATE_VARIABLE
from tests.testbed.credentials import grant
from tests.testbed.kubeadm.node import Node
from tests.testbed.manifests import rights
from tests.testbed.process import Process
from tests.testbed.rest import Json

ACCOUNT = "gpushare-exporter"
PORT = 9400
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set=-all", "--no-new-privs")
"""As its manifest says: it may not trace processes, although it is root."""


@dataclass
class Exporter:
    """Runs with the rights that its manifest gives it."""

    gpus: Gpus
    process: Process | None = None

    @property
    def address(self) -> str:
        """Where its pages are, as this machine reaches them."""
        return f"{self.gpus.node.address}:{PORT}"

    def start(self) -> None:
        site, node = self.gpus.site, self.gpus.node
        user = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
        grant(site.cluster.rest, user, rights(ACCOUNT))
        site._write_kubeconfig(ACCOUNT)
        environment = {
            "PYTHONPATH": str(ROOT),
            "LD_LIBRARY_PATH": str(self.gpus.stub.library.parent),
            STATE_VARIABLE: str(self.gpus.driver.path),
            "GPUSHARE_NODE_NAME": node.name,
            "GPUSHARE_STATE_DIR": str(self.gpus.folder / "state"),
            "GPUSHARE_KUBECONFIG": str(site.kubeconfig(ACCOUNT)),
            "GPUSHARE_LISTEN": f"0.0.0.0:{PORT}",
            "GPUSHARE_COLLECT_LISTEN": "off",
            "GPUSHARE_LOG_FORMAT": "text",
        }
        command = [*WITHOUT_CAPABILITIES, sys.executable, "-m", "exporter"]
        self.process = node.launch("exporter", command, environment)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()


def process_of(node: Node, pod: Json, program: str = "") -> int:
    """Give the first process of a pod's only container, as the node counts it.

    Or that of a program. By its real cgroup, which names the container: nothing of ours
    is asked.
    """
    (status,) = pod["status"]["containerStatuses"]
    container = status["containerID"].rpartition("/")[2]
    found = []
    for path in node.path("/proc").glob("[0-9]*/cgroup"):
        # It may have ended since its folder was listed.
        with contextlib.suppress(OSError):
            name = path.with_name("comm").read_text().strip()
            if container in path.read_text() and program in ("", name):
                found.append(int(path.parent.name))
    return min(found)
