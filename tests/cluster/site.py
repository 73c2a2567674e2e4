"""A real cluster with all of us in it: stub cards, device plugins, the extender.

What is asserted is what the API server says, or is read with kubectl from inside a
container.
"""

import json
import re
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tests.cluster.gpus import PLUGIN, ROOT, Gpus
from tests.nvml.build import Stub
from tests.nvml.driver import StubCard, StubDriver
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.kubeadm import Cluster
from tests.testbed.kubeadm.namespaces import succeeded
from tests.testbed.kubeadm.node import Node
from tests.testbed.manifests import rights, stanza
from tests.testbed.objects import CORE, MEMORY
from tests.testbed.process import Process
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

SYSTEM = "kube-system"
EDGE = "baetyl-edge"
"""The namespace of seed 001's second exercise."""
OURS = ("default", EDGE)
EXTENDER = "gpushare-extender"
UUID = re.compile(r"UUID: ((?:GPU|MIG)-[0-9a-f-]+)")

READ_OFTEN = {"pod": "pods", "pods": "pods", "node": "nodes", "events": "events"}
"""Kinds as kubectl accepts them, and their plural in the API's paths."""
KUBECTL_GET = ArgumentParser(add_help=False)
KUBECTL_GET.add_argument("kind")
KUBECTL_GET.add_argument("name", nargs="*")
KUBECTL_GET.add_argument("-n", default="default")
KUBECTL_GET.add_argument("-A", action="store_true")
KUBECTL_GET.add_argument("-l", default="")
KUBECTL_GET.add_argument("--field-selector", default="")


@dataclass
class Site:
    """The cluster, its nodes with cards, and the extender on the control plane."""

    cluster: Cluster
    stub: Stub
    folder: Path
    gpus: dict[str, Gpus] = field(default_factory=dict)
    extender: Process | None = None
    extender_settings: dict[str, str] = field(default_factory=dict)

    def install(self) -> None:
        """Do by hand what ``gpusharectl install`` will do; a namespace for apps too."""
        self.kubectl("create", "namespace", EDGE)
        rest = self.cluster.rest
        for account in (EXTENDER, PLUGIN):
            user = f"system:serviceaccount:{SYSTEM}:{account}"
            grant(rest, user, rights(account))
            self._write_kubeconfig(account)
        self.start_extender()
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
            "podMaxBackoffSeconds": 2,
            "extenders": [stanza()],
        }
        self.cluster.set_scheduler_config(yaml.safe_dump(config))

    def add_cards(self, node: Node, cards: Sequence[StubCard], **settings: str) -> Gpus:
        folder = self.folder / node.name
        folder.mkdir()
        (folder / "driver").mkdir()
        driver = StubDriver(folder / "driver")
        gpus = Gpus(self, node, driver, self.stub, folder, settings)
        self.gpus[node.name] = gpus
        gpus.set_cards(cards)
        return gpus

    def remove_node(self, name: str) -> None:
        """Take a node out of the cluster, as an administrator would."""
        self.gpus.pop(name).stop()
        self.kubectl("delete", "node", name)
        self.cluster.nodes.pop(name).close()

    def start_extender(self) -> None:
        environment = {
            "PYTHONPATH": str(ROOT),
            "GPUSHARE_KUBECONFIG": str(self.kubeconfig(EXTENDER)),
            "GPUSHARE_LOG_FORMAT": "text",
            **{f"GPUSHARE_{k}": value for k, value in self.extender_settings.items()},
        }
        command = [
            sys.executable,
            *("-m", "gunicorn", "--config", "python:extender.gunicorn_conf"),
            "extender.main:build()",
        ]
        node = self.cluster.nodes["cp"]
        self.extender = node.launch("extender", command, environment)
        url = f"http://{node.address}:39998/readyz"
        probe = f"import urllib.request as u; u.urlopen('{url}', timeout=2)"
        wait_until(
            lambda: node.run([sys.executable, "-c", probe]).returncode == 0,
            "the extender to be ready",
            60,
        )

    def kill_extender(self) -> None:
        """End gunicorn and its worker as a crash would."""
        assert self.extender is not None
        self.extender.kill()
        node = self.cluster.nodes["cp"]
        node.run(["pkill", "-9", "-f", "extender.main:build"])

    def kubeconfig(self, account: str) -> Path:
        return self.folder / f"{account}.kubeconfig"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl(*arguments, stdin=stdin)

    def get(self, *arguments: str) -> Any:
        """Read what ``kubectl get … -o json`` shows.

        Pods, nodes and events over a connection that is kept: they are looked at all
        the time, and each kubectl takes a tenth of a second of the processor.
        """
        asked, rest = KUBECTL_GET.parse_known_args(arguments)
        if rest or asked.kind not in READ_OFTEN:
            return json.loads(self.kubectl("get", *arguments, "-o", "json"))
        plural = READ_OFTEN[asked.kind]
        inside = "" if asked.A or plural == "nodes" else f"/namespaces/{asked.n}"
        selectors = {"labelSelector": asked.l, "fieldSelector": asked.field_selector}
        query = urlencode({key: value for key, value in selectors.items() if value})
        path = "/".join(["/api/v1" + inside, plural, *asked.name])
        return self.cluster.rest.must("GET", f"{path}?{query}")

    def allocatable(self, node: str) -> tuple[int, int]:
        """Cores and units that a node has to give; 0 where it names none."""
        found = self.get("node", node)["status"].get("allocatable", {})
        return int(found.get(CORE, 0)), int(found.get(MEMORY, 0))

    def cards(self, node: str) -> list[Json]:
        """The cards that the device plugin wrote on the node."""
        annotations = self.get("node", node)["metadata"]["annotations"]
        text = annotations.get("baidu.com/vcuda-cards")
        return [] if text is None else json.loads(text)["cards"]

    def create(self, *bodies: Json, namespace: str = "default") -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": bodies}
        self.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(listed))

    def clear(self) -> None:
        for namespace in OURS:
            path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
            self.cluster.rest.must("DELETE", path, {"propagationPolicy": "Background"})
        wait_until(lambda: not self._left(), "no pods", 120, every_s=0.25)

    def _left(self) -> list[Json]:
        """Give the pods that are left, and shorten what those have to live.

        Each time, because what ends a Deployment's pods gives them their own time.
        """
        for namespace in OURS:
            path = f"/api/v1/namespaces/{namespace}/pods"
            self.cluster.rest.must("DELETE", path, {"gracePeriodSeconds": 1})
        found: list[Json] = self.get("pods", "-A")["items"]
        return [pod for pod in found if pod["metadata"]["namespace"] in OURS]

    def wait_running(self, *names: str, namespace: str = "default") -> None:
        for name in names:
            wait_until(
                lambda name=name: self.phase(name, namespace) == "Running",
                f"{name} to run",
                120,
            )

    def phase(self, name: str, namespace: str = "default") -> str:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        try:
            status, found = self.cluster.rest.get(path)
        except OSError:
            return ""
        return str(found["status"]["phase"]) if status == 200 else ""

    def why_waiting(self, name: str) -> str:
        """Say what kubelet says of a pod's first container, which does not start."""
        told = self.get("pod", name)["status"].get("containerStatuses") or [{}]
        waiting = told[0].get("state", {}).get("waiting", {})
        return str(waiting.get("message", ""))

    def ready(self, *deployments: str, namespace: str = "default") -> bool:
        return all(
            [pod["status"]["phase"] for pod in self.pods_of(app, namespace)]
            == ["Running"]
            for app in deployments
        )

    def pods_of(self, app: str, namespace: str = "default") -> list[Json]:
        found: list[Json] = self.get("pods", "-n", namespace, "-l", f"app={app}")[
            "items"
        ]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pod_of(self, app: str, namespace: str = "default") -> str:
        (found,) = self.pods_of(app, namespace)
        return str(found["metadata"]["name"])

    def placement(self, pod: Json) -> dict[str, Any] | None:
        """The believed placement of a pod's JSON: actual, or else planned."""
        annotations = pod["metadata"].get("annotations", {})
        for key in ("baidu.com/vcuda-actual", "baidu.com/vcuda-placement"):
            if key in annotations:
                found: dict[str, Any] = json.loads(annotations[key])
                if found["uid"] == pod["metadata"]["uid"]:
                    return found
        return None

    def visible(
        self, pod: str, container: str = "main", namespace: str = "default"
    ) -> list[str]:
        return UUID.findall(self.smi(pod, container, namespace))

    def smi(self, pod: str, container: str = "main", namespace: str = "default") -> str:
        words = (
            "exec",
            "-n",
            namespace,
            pod,
            "-c",
            container,
            "--",
            "nvidia-smi",
            "-L",
        )
        # A kubelet that has just started does not know its pods for a moment.
        done = wait_until(
            lambda: self.cluster.try_kubectl(*words),
            "kubelet that knows the pod",
            accept=lambda done: "pod does not exist" not in done.stderr,
        )
        return succeeded(done)

    def events(self, pod: str, namespace: str = "default") -> list[Json]:
        field_ = f"involvedObject.name={pod}"
        found: list[Json] = self.get(
            "events", "-n", namespace, "--field-selector", field_
        )["items"]
        return found

    def _write_kubeconfig(self, account: str) -> None:
        token = service_account_token(self.cluster.rest, SYSTEM, account)
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        address = self.cluster.nodes["cp"].address
        config["clusters"][0]["cluster"]["server"] = f"https://{address}:6443"
        config["users"][0]["user"] = {"token": token}
        path = self.kubeconfig(account)
        path.touch(0o600)
        path.write_text(yaml.safe_dump(config))
