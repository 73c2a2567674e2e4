"""A cluster that knows nothing of us, and what an administrator types on its host."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.cluster.gpus import ROOT
from tests.cluster.site import SYSTEM, Site
from tests.nvml.build import Stub
from tests.nvml.driver import StubCard, StubDriver, cdi_spec, with_library
from tests.testbed.audit import Call
from tests.testbed.kubeadm import Cluster
from tests.testbed.kubeadm.files import STATIC_PODS
from tests.testbed.waiting import wait_until

FILES = "/etc/kubernetes"
PART = "app.kubernetes.io/part-of=gpushare"
# What the cluster writes all the time by itself.
PASSING = (
    "componentstatuses",
    "events",
    "events.events.k8s.io",
    "leases.coordination.k8s.io",
)
Tree = dict[str, tuple[int, bytes]]
Before = tuple[Tree, dict[str, object]]


@dataclass
class Fresh(Site):
    """A site on which nothing of ours runs but what the installer makes."""

    drivers: dict[str, StubDriver] = field(default_factory=dict)
    since: int = 0
    """Where the audit log stood when this file's tests began."""

    def begin(self, cards: Sequence[StubCard]) -> Self:
        """Put these cards into ``cp``, and look at no call of before."""
        self.put_cards("cp", cards)
        self.since = self.cluster.audit.mark()
        return self

    def calls(self, user: str) -> list[Call]:
        """Give what this user has asked of the API server since then."""
        calls = self.cluster.audit.calls(self.since)
        return [call for call in calls if call.user == user]

    def put_cards(self, name: str, cards: Sequence[StubCard]) -> StubDriver:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        driver = self.drivers[name] = StubDriver(folder, cards)
        spec = cdi_spec(self.stub, driver.path, cards, self.folder / "markers" / name)
        self.cluster.nodes[name].write_cdi(with_library(spec, self.stub))
        return driver

    def ctl(
        self, *arguments: str, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run gpusharectl on the control-plane host; look at its ``returncode``."""
        command = [sys.executable, "-m", "gpusharectl", *arguments]
        own = ["env", f"PYTHONPATH={ROOT}", "HOME=/root/nobody", "COLUMNS=100"]
        return self.cluster.nodes["cp"].run([*own, *command], stdin)

    def must(self, *arguments: str) -> str:
        """Run gpusharectl, which has to succeed, and give all that it printed."""
        ran = self.ctl(*arguments)
        assert ran.returncode == 0, f"{arguments}: {ran.returncode}\n{printed(ran)}"
        return printed(ran)

    def tree(self, node: str = "cp") -> Tree:
        """Read /etc/kubernetes of a node."""
        return read_tree(self.cluster.nodes[node].path(FILES))

    def everything_but(self, before: Before) -> dict[str, Any]:
        """Wait until no object is there that was not before; give them all."""
        _, objects = before
        # A Service's endpoints go a moment after it.
        wait_until(
            lambda: self.everything().keys() - objects.keys(),
            "nothing left over",
            accept=lambda more: not more,
        )
        return self.everything()

    def everything(self) -> dict[str, Any]:
        kinds = self.kubectl("api-resources", "--verbs=list", "-o", "name").split()
        wanted = ",".join(sorted(set(kinds) - set(PASSING)))
        items = self.get(wanted, "--all-namespaces")["items"]
        return dict(sorted((_name(body), _lasting(body)) for body in items))

    def versions(self) -> dict[str, str]:
        """Give the resource versions of all that carries our label, and of nodes.

        Not of pods: their statuses are kubelet's.
        """
        kinds = (
            "daemonsets,deployments,configmaps,services,serviceaccounts,clusterroles,"
            "clusterrolebindings,roles,rolebindings,poddisruptionbudgets,"
            "validatingadmissionpolicies,validatingadmissionpolicybindings,"
            "mutatingwebhookconfigurations,validatingwebhookconfigurations,secrets"
        )
        items = self.get(kinds, "--all-namespaces", "-l", PART)["items"]
        return {_name(body): body["metadata"]["resourceVersion"] for body in items}

    def services(self) -> dict[str, str]:
        """Give our pods in kube-system, by application, with their phase."""
        pods = self.get("pods", "-n", SYSTEM, "-l", PART)["items"]
        return {
            pod["metadata"]["labels"]["app.kubernetes.io/name"]: pod["status"]["phase"]
            for pod in pods
        }


def fresh(cluster: Cluster, stub: Stub, folder: Path) -> Fresh:
    """Make a site of a bare cluster, with the namespace of seed 001's applications."""
    made = Fresh(cluster, stub, folder)
    made.kubectl("create", "namespace", "baetyl-edge")
    own = {f"{name}-cp" for name in STATIC_PODS}
    # Some are shown a moment after they run, and would then be new to whoever compares.
    wait_until(lambda: own <= _ready(made), "the control plane's own pods", 120)
    return made


def _ready(site: Site) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in site.get("pods", "-n", SYSTEM)["items"]
        for each in pod["status"].get("conditions", ())
        if (each["type"], each["status"]) == ("Ready", "True")
    }


def printed(ran: subprocess.CompletedProcess[str]) -> str:
    return ran.stdout + ran.stderr


def read_tree(top: Path) -> Tree:
    """Read every file and folder below this one: its mode and its bytes."""
    return {
        str(path.relative_to(top)): (
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(top.rglob("*"))
    }


def _name(body: dict[str, Any]) -> str:
    metadata = body["metadata"]
    return f"{body['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


def _lasting(body: dict[str, Any]) -> dict[str, Any]:
    """Leave out what says when it was written, and how it is just now."""
    lasting = json.loads(json.dumps(body))
    lasting.pop("status", None)
    metadata = lasting["metadata"]
    for key in ("resourceVersion", "managedFields", "generation"):
        metadata.pop(key, None)
    if body["kind"] == "Pod":
        # A static pod's mirror is made anew when its file was changed and changed back.
        for key in ("uid", "creationTimestamp", "ownerReferences"):
            metadata.pop(key, None)
        metadata.get("annotations", {}).pop("kubernetes.io/config.seen", None)
    return lasting
