"""The static pod of kube-scheduler, edited as an administrator would edit it."""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.testbed.kubeadm import cgroups
from tests.testbed.kubeadm.node import Node
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
FOLDER = "/etc/kubernetes/scheduler"
VOLUME = "scheduler-config"
# Asked on the node, because kubeadm lets kube-scheduler listen on loopback alone.
ASK = """
import ssl, sys, urllib.request
trusting = ssl._create_unverified_context()
urllib.request.urlopen("https://127.0.0.1:10259/readyz", timeout=2, context=trusting)
"""


def configure(
    node: Node, config: str, extra: Mapping[str, str], *, leader_elect: bool
) -> None:
    """Write the configuration and edit the pod; return when it runs by it."""
    name, texts = config_files(config, extra)
    for path, text in texts.items():
        node.write(path, text)
    manifest = node.path(MANIFEST).read_text()
    new = edited(manifest, name, leader_elect=leader_elect)
    if new != manifest:
        _end_old(node)
    node.write(MANIFEST, new)
    wait_until(
        lambda: list(_running(node).values()) == [name] and _ready(node),
        f"kube-scheduler with {name}",
        120,
    )


def config_files(config: str, extra: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Name the configuration, and give the text of each file by its path.

    The name tells the content, so that another content makes for another pod.
    """
    content = "\n".join([config, *(f"{k}={v}" for k, v in sorted(extra.items()))])
    name = f"{FOLDER}/config-{hashlib.sha256(content.encode()).hexdigest()[:8]}.yaml"
    texts = {f"{FOLDER}/{each}": text for each, text in extra.items()}
    return name, {**texts, name: config}


def edited(manifest: str, config: str, *, leader_elect: bool) -> str:
    """Give the manifest with ``--config`` and the folder that it lies in."""
    pod: Json = yaml.safe_load(manifest)
    (container,) = pod["spec"]["containers"]
    ours = ("--config=", "--leader-elect=")
    kept = [word for word in container["command"] if not word.startswith(ours)]
    leads = f"--leader-elect={str(leader_elect).lower()}"
    container["command"] = [*kept, f"--config={config}", leads]
    mount = {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}
    volume = {"name": VOLUME, "hostPath": {"path": FOLDER, "type": "Directory"}}
    container["volumeMounts"] = [*_others(container["volumeMounts"]), mount]
    pod["spec"]["volumes"] = [*_others(pod["spec"]["volumes"]), volume]
    return str(yaml.safe_dump(pod, sort_keys=False))


def _others(named: list[Json]) -> list[Json]:
    return [each for each in named if each["name"] != VOLUME]


def _end_old(node: Node) -> None:
    """Take the manifest away and wait until the kubelet is done with the old pod.

    Else it looks for the old one's end only every ten seconds.
    """
    groups = [group for pid in _running(node) if (group := _pod_group(node, pid))]
    node.path(MANIFEST).unlink()
    wait_until(
        lambda: not any(group.exists() for group in groups),
        "end of the old kube-scheduler",
        60,
    )


def _pod_group(node: Node, pid: int) -> Path | None:
    """Give the memory control group of the pod that this process belongs to."""
    for line in node.path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "memory":
            return cgroups.MOUNTED / "memory" / Path(group).parent.relative_to("/")
    return None


def _running(node: Node) -> dict[int, str]:
    """Give the ``--config`` of every kube-scheduler that runs on the node."""
    found = {}
    for pid, words in node.command_lines().items():
        if Path(words[0]).name == "kube-scheduler":
            given = [word.partition("=")[2] for word in words if "--config=" in word]
            found[pid] = "".join(given)
    return found


def _ready(node: Node) -> bool:
    return node.run([sys.executable, "-IS", "-c", ASK]).returncode == 0
