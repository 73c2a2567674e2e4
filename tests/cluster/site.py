"""A real cluster with all of us in it: stub cards, device plugins, the extender.

What is asserted is read with kubectl, or through it from inside a container.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.nvml.build import STATE_VARIABLE, Stub
from tests.nvml.cdi import cdi_spec
from tests.nvml.driver import StubCard, StubDriver
from tests.testbed.credentials import grant, service_account_token
from tests.testbed.kubeadm import Cluster
from tests.testbed.kubeadm.node import Node
from tests.testbed.manifests import shipped
from tests.testbed.process import Process
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

ROOT = Path(__file__).parents[2]
SYSTEM = "kube-system"
EDGE = "baetyl-edge"
"""The namespace of seed 001's second exercise."""
OURS = ("default", EDGE)
PLUGIN = "gpushare-device-plugin"
EXTENDER = "gpushare-extender"
MEMORY, CORE = "baidu.com/vcuda-memory", "baidu.com/vcuda-core"
IMAGE = "docker.io/nvidia/cuda:11.0-base"
SEED_COMMAND = 'while true; do echo $(date "+%Y-%m-%d %H:%M:%S"); sleep 1; done'
"""The command that seed 001 gives its services, so that they go on running."""
UUID = re.compile(r"UUID: (GPU-[0-9a-f-]+)")


@dataclass
class Gpus:
    """A node's stub driver and the device plugin that runs over it."""

    site: "Site"
    node: Node
    driver: StubDriver
    stub: Stub
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    process: Process | None = None

    def start(self, *, wait: bool = True) -> None:
        """Start the device plugin, as its DaemonSet would."""
        environment = {
            "PYTHONPATH": str(ROOT),
            "LD_LIBRARY_PATH": str(self.stub.library.parent),
            STATE_VARIABLE: str(self.driver.path),
            "GPUSHARE_NODE_NAME": self.node.name,
            "GPUSHARE_KUBECONFIG": str(self.site.kubeconfig(PLUGIN)),
            "GPUSHARE_STATE_DIR": str(self.folder / "state"),
            "GPUSHARE_CDI_DIRS": "/etc/cdi",
            "GPUSHARE_LOOK_EVERY_S": "0.5",
            "GPUSHARE_LOG_FORMAT": "text",
            **{f"GPUSHARE_{key}": value for key, value in self.settings.items()},
        }
        command = [sys.executable, "-m", "deviceplugin", "serve"]
        self.process = self.node.launch("plugin", command, environment)
        if wait:
            self.wait_offered()

    def kill(self) -> None:
        """End the device plugin as a crash would."""
        assert self.process is not None
        self.process.kill()

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()

    def set_cards(self, cards: Sequence[StubCard]) -> None:
        """Put these cards into the node, as if it had come with them."""
        alive = self.process is not None and self.process.running
        if alive and list(cards) == self.driver.cards:
            return
        self.stop_offering()
        self.driver.set_cards(cards)
        markers = self.folder / "markers"
        spec = cdi_spec(self.stub, self.driver.path, cards, markers)
        self.node.write_cdi(spec)
        self.start(wait=bool(cards))

    def wait_offered(self) -> None:
        """Wait until kubelet has told the API server of all units."""
        wait_until(
            lambda: self.site.allocatable(self.node.name) == self._own,
            f"{self._own} cores and units on {self.node.name}",
            60,
        )
        wait_until(self._published, "the cards' annotation", 30)

    @property
    def _own(self) -> tuple[int, int]:
        """Cores and units of the driver's cards."""
        units = sum(card.memory_mib // 256 for card in self.driver.cards)
        return 100 * len(self.driver.cards), units

    def _published(self) -> bool:
        found = self.site.cards(self.node.name)
        return [one["uuid"] for one in found] == [c.uuid for c in self.driver.cards]

    def host_list(self) -> list[str]:
        """``nvidia-smi -L`` on the node itself, which shows all cards; its lines."""
        state = f"{STATE_VARIABLE}={self.driver.path}"
        asked = ("env", state, str(self.stub.smi), "-L", "--every")
        return self.node.must(*asked).splitlines()

    @contextmanager
    def reconfigured(self, **settings: str) -> Iterator[None]:
        """Run the device plugin otherwise; ``set_cards`` starts it as before."""
        before = self.settings
        self._restart({**before, **settings})
        try:
            yield
        finally:
            self.stop()
            self.settings, self.process = before, None

    def _restart(self, settings: dict[str, str]) -> None:
        self.stop_offering()
        self.settings = settings
        self.start(wait=False)
        cores, units = self._own
        wait_until(
            lambda: (
                (found := self.site.allocatable(self.node.name))[0] >= cores
                and found[1] >= units
            ),
            f"cores and units on {self.node.name}",
            60,
        )

    def stop_offering(self) -> None:
        """Stop the device plugin and wait until kubelet has told everybody."""
        self.stop()
        wait_until(
            lambda: self.site.allocatable(self.node.name) == (0, 0),
            f"nothing offered on {self.node.name}",
            60,
        )

    @property
    def log(self) -> str:
        assert self.process is not None
        return self.process.log.read_text(errors="replace")


@dataclass
class Site:
    """The cluster, its nodes with cards, and the extender on the control plane."""

    cluster: Cluster
    stub: Stub
    folder: Path
    gpus: dict[str, Gpus] = field(default_factory=dict)
    extender: Process | None = None

    def install(self) -> None:
        """Do by hand what ``gpusharectl install`` will do; a namespace for apps too."""
        self.kubectl("create", "namespace", EDGE)
        rest = self.cluster.rest
        for account, manifest in (
            (EXTENDER, "extender-rbac.yaml"),
            (PLUGIN, "deviceplugin-rbac.yaml"),
        ):
            user = f"system:serviceaccount:{SYSTEM}:{account}"
            grant(rest, user, shipped(manifest)["rules"])
            self._write_kubeconfig(account)
        self.start_extender()
        stanza = shipped("scheduler-extender.yaml")
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
            "podMaxBackoffSeconds": 2,
            **stanza,
        }
        self.cluster.set_scheduler_config(yaml.safe_dump(config))

    def add_cards(self, node: Node, cards: Sequence[StubCard], **settings: str) -> Gpus:
        """Put cards into a node and start its device plugin."""
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
        """Start the extender beside kube-scheduler, in its network."""
        environment = {
            "PYTHONPATH": str(ROOT),
            "GPUSHARE_KUBECONFIG": str(self.kubeconfig(EXTENDER)),
            "GPUSHARE_LOG_FORMAT": "text",
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
        """``kubectl get … -o json``."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

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
        text = "\n---\n".join(json.dumps(body) for body in bodies)
        self.kubectl("create", "-n", namespace, "-f", "-", stdin=text)

    def clear(self) -> None:
        """Delete all applications and pods, and wait until they have gone."""
        for namespace in OURS:
            self.kubectl("delete", "deployments", "--all", "-n", namespace)
        wait_until(lambda: not self._left(), "no pods", 120, every_s=1)

    def _left(self) -> list[Json]:
        """Give the pods that are left, and shorten what those have to live.

        Each time, because what ends a Deployment's pods gives them their own time.
        """
        for namespace in OURS:
            hurry = ("--grace-period=1", "--wait=false")
            self.kubectl("delete", "pods", "--all", "-n", namespace, *hurry)
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
        found = self.cluster.try_kubectl(
            "get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.phase}"
        )
        return found.stdout

    def ready(self, *deployments: str, namespace: str = "default") -> bool:
        """Tell whether every Deployment has one pod, which runs."""
        return all(
            [pod["status"]["phase"] for pod in self.pods_of(app, namespace)]
            == ["Running"]
            for app in deployments
        )

    def pods_of(self, app: str, namespace: str = "default") -> list[Json]:
        """The pods of a Deployment, oldest first."""
        found: list[Json] = self.get("pods", "-n", namespace, "-l", f"app={app}")[
            "items"
        ]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pod_of(self, app: str, namespace: str = "default") -> str:
        """The name of a Deployment's only pod."""
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
        """Give the UUIDs that a container sees."""
        return UUID.findall(self.smi(pod, container, namespace))

    def smi(self, pod: str, container: str = "main", namespace: str = "default") -> str:
        """``kubectl exec POD -- nvidia-smi -L``."""
        asked = ("nvidia-smi", "-L")
        return self.kubectl("exec", "-n", namespace, pod, "-c", container, "--", *asked)

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


def deployment(
    name: str,
    units: int | None,
    cores: int | None = 1,
    *,
    replicas: int = 1,
    **spec: Any,
) -> Json:
    """A Deployment as seed 001 has it: the image, and a command that goes on."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {**pod_spec(container("main", units, cores)), **spec},
            },
        },
    }


def pod(name: str, *containers: Json, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"test": "pod"}},
        "spec": {**pod_spec(*containers), **spec},
    }


def pod_spec(*containers: Json) -> Json:
    return {
        "containers": list(containers),
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
    }


def container(
    name: str = "main",
    units: int | None = None,
    cores: int | None = None,
    *,
    script: str = SEED_COMMAND,
    **other: Any,
) -> Json:
    limits = {}
    if units is not None:
        limits[MEMORY] = str(units)
    if cores is not None:
        limits[CORE] = str(cores)
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": limits},
        **other,
    }
