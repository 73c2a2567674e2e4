"""The Job that sets kube-scheduler's files on another control-plane node. Pure.

Its pod is pinned to the node, since the scheduler may be what is broken, and has no
credentials: it sees kube-scheduler's own folders and nothing else of the host. Two
containers first try the new configuration, with kube-scheduler's own image, on copies;
the last one writes and prints the manifest that it leaves.
"""

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath

from gpushare.kube.cluster import Json
from gpusharectl.scheduler.hostscheduler import Action
from gpusharectl.scheduler.kubeadmfile import KubeadmFile
from gpusharectl.scheduler.schedulercheck import check_container
from gpusharectl.scheduler.schedulerpod import container
from gpusharectl.scheduler.shortpod import short_pod

NAME = "gpushare-scheduler"
_ETC = "/etc/kubernetes"
_ROOT = "/host"
_INTO = "/try"
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class HostJob:
    """What is to be done on a node, by which image of ours."""

    action: Action
    node: str
    image: str
    kubernetes: str
    tls: bool = False
    packs: bool = False

    @property
    def name(self) -> str:
        """A name that fits a label, whatever the node's."""
        name = f"{NAME}-{self.action}-{self.node}"
        if len(name) <= _LONGEST_NAME:
            return name
        digest = hashlib.sha256(self.node.encode()).hexdigest()[:16]
        return f"{NAME}-{self.action}-{digest}"

    def body(self, mirror: Json) -> Json:
        """Describe the Job; ``mirror`` is the node's kube-scheduler pod as it is."""
        last = self._step("write", self.action)
        pod = {
            "nodeName": self.node,
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "initContainers": self._trial(mirror),
            "containers": [{**last, "volumeMounts": self._host_mounts(mirror)}],
            "volumes": self._volumes(mirror),
        }
        template = short_pod(self.name, pod)
        metadata = template["metadata"]
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**metadata, "name": self.name},
            "spec": {
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": 3600,
                "template": {
                    "metadata": {"labels": metadata["labels"]},
                    "spec": template["spec"],
                },
            },
        }

    def _trial(self, mirror: Json) -> list[Json]:
        """Try on copies first; there is nothing to try when all goes back."""
        if self.action is Action.RESTORE:
            return []
        copies = {"name": "try", "mountPath": _INTO}
        etc, *others = self._host_mounts(mirror)
        mounts = [{**etc, "readOnly": True}, *others, copies]
        step = {**self._step("prepare", Action.TRY), "volumeMounts": mounts}
        check = check_container(
            container(mirror), f"{KubeadmFile.folder}/scheduler.yaml"
        )
        folder = KubeadmFile.folder
        own = [
            each
            for each in check.get("volumeMounts", ())
            if each["mountPath"] != folder
        ]
        inside = f"{_INTO}{folder}".removeprefix(f"{_INTO}/")
        ours = {"name": "try", "mountPath": folder, "subPath": inside, "readOnly": True}
        return [step, {**check, "volumeMounts": [*own, ours]}]

    def _step(self, name: str, action: Action) -> Json:
        told = [f"--root={_ROOT}", f"--into={_INTO}", f"--kubernetes={self.kubernetes}"]
        flags = {"--tls": self.tls, "--packs": self.packs}
        more = [flag for flag, given in flags.items() if given]
        return {
            "name": name,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["gpusharectl", "host-scheduler", str(action), *told, *more],
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
            "securityContext": {
                "runAsUser": 0,
                "runAsGroup": 0,
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                # Files of kube-scheduler and of the extender may be another user's.
                "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }

    def _host_mounts(self, mirror: Json) -> list[Json]:
        mounts: list[Json] = [{"name": "kubernetes", "mountPath": f"{_ROOT}{_ETC}"}]
        for volume in _elsewhere(mirror):
            path = volume["hostPath"]["path"]
            mounts.append(
                {
                    "name": volume["name"],
                    "mountPath": f"{_ROOT}{path}",
                    "readOnly": True,
                }
            )
        return mounts

    def _volumes(self, mirror: Json) -> list[Json]:
        own = [
            each for each in mirror["spec"].get("volumes") or [] if "hostPath" in each
        ]
        etc = {"path": _ETC, "type": "Directory"}
        return [
            *own,
            {"name": "kubernetes", "hostPath": etc},
            {"name": "try", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}},
        ]


def _elsewhere(mirror: Json) -> list[Json]:
    """Give what kube-scheduler sees of the host that lies outside our reach."""
    return [
        volume
        for volume in mirror["spec"].get("volumes") or []
        if "hostPath" in volume
        and not PurePosixPath(volume["hostPath"]["path"]).is_relative_to(_ETC)
    ]
