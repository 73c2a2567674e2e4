"""One cluster of two nodes, and an installer with stand-ins for all that is slow."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from gpushare.kube.cluster import Json
from gpushare.kube.facts import OURS, SYSTEM
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install import install, uninstall
from gpusharectl.install.context import Context, SchedulerTarget
from gpusharectl.install.manifests import load
from gpusharectl.install.options import InstallOptions, UninstallOptions
from gpusharectl.install.progress import Exit
from gpusharectl.kube_scheduler.host_files import FileChange, HostFiles
from tests.gpusharectl.install.fake_objects import FakeObjects
from tests.gpusharectl.install.stand_ins import (
    CONTROL_PLANE,
    Clock,
    Listener,
    Nodes,
    Scheduler,
    kubeadm_host,
    node,
)

CERTIFICATE = "/etc/kubernetes/vcuda/tls/server.crt"


def kinds(api_version: str, *kinds: str) -> tuple[tuple[str, str], ...]:
    return tuple((api_version, kind) for kind in kinds)


ROLES = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
POLICY = "ValidatingAdmissionPolicy"
ADMISSION = "admissionregistration.k8s.io/v1"
KINDS = (
    *kinds("v1", "ServiceAccount", "Pod", "Node", "ConfigMap", "Service"),
    *kinds("apps/v1", "DaemonSet", "Deployment"),
    *kinds("batch/v1", "Job"),
    *kinds("policy/v1", "PodDisruptionBudget"),
    *kinds("rbac.authorization.k8s.io/v1", *ROLES),
    *kinds(ADMISSION, POLICY, f"{POLICY}Binding"),
)
OPERATORS_KINDS = kinds(
    "monitoring.coreos.com/v1", "ServiceMonitor", "PodMonitor", "PrometheusRule"
)
"""Not on every cluster."""
WEBHOOKS_KINDS = (
    *kinds("v1", "Secret"),
    *(
        kinds(
            ADMISSION,
            *(f"{one}WebhookConfiguration" for one in ("Mutating", "Validating")),
        )
    ),
)
EVERY_KIND = (*KINDS, *OPERATORS_KINDS, *WEBHOOKS_KINDS)


@cache
def _loaded(overlay: str, image: str, components: tuple[str, ...]) -> bytes:
    return orjson.dumps(load(overlay, image=image, components=components))


def shipped(
    overlay: str, *, image: str = "", components: Sequence[str] = ()
) -> tuple[Json, ...]:
    """The manifests, read from YAML once, since laws install hundreds of times."""
    return tuple(orjson.loads(_loaded(overlay, image, tuple(components))))


@dataclass
class InstalledCluster:
    """A cluster, one of its control-plane hosts, and who plays its controllers."""

    objects: Objects
    root: Path
    nodes: Nodes = field(init=False)
    clock: Clock = field(init=False)
    files: HostFiles = field(init=False)
    scheduler: Scheduler = field(init=False)
    screen: Listener = field(default_factory=Listener)
    now: datetime = datetime(2026, 11, 21, tzinfo=UTC)

    def __post_init__(self) -> None:
        behind = self.objects
        if isinstance(behind, FakeObjects):
            behind = behind.backdoor()
        self.nodes = Nodes(behind)
        self.clock = Clock(self.nodes)
        self.files = kubeadm_host(self.root)
        self.scheduler = Scheduler(self.files)

    def populate(self, *more: Json) -> "InstalledCluster":
        """A control-plane node ``cp``, a node ``gpu-1``, and more."""
        cp = node("cp", "10.0.0.1", labels={CONTROL_PLANE: ""})
        for body in (cp, node("gpu-1", "10.0.0.2"), *more):
            self.objects.create(body)
        return self

    def certificates(self, _: SchedulerTarget) -> list[FileChange]:
        """One file, once."""
        if self.files.read(CERTIFICATE) is not None:
            return []
        return [FileChange(CERTIFICATE, None, b"PEM")]

    def context(self, *answers: str) -> Context:
        self.screen = Listener(list(answers))
        return Context(
            self.objects,
            self.files,
            self.screen,
            shipped,
            lambda _: self.scheduler,
            lambda _: self.scheduler,
            self.certificates,
            patience=self.clock.patience(),
            now=lambda: self.now,
        )

    def install(self, *answers: str, **options: Any) -> Exit:
        wanted = {"nodes": ("gpu-1",), "yes": not answers, **options}
        return install.install(self.context(*answers), InstallOptions(**wanted))

    def uninstall(self, *answers: str, **options: Any) -> Exit:
        wanted = {"yes": not answers, **options}
        return uninstall.uninstall(self.context(*answers), UninstallOptions(**wanted))

    def label(self, name: str) -> str | None:
        body = self.objects.get(Ref("v1", "Node", name)) or {}
        found: str | None = body["metadata"].get("labels", {}).get("baidu.com/vcuda")
        return found

    def spec(self, name: str, kind: str = "DaemonSet") -> Json:
        """The spec of a workload's pods."""
        body = self.objects.get(Ref("apps/v1", kind, name, SYSTEM))
        assert body is not None, name
        found: Json = body["spec"]["template"]["spec"]
        return found

    def ours(self) -> list[Ref]:
        """All objects with our label."""
        return [
            Ref.of(body)
            for api_version, kind in KINDS
            for body in self.objects.list(api_version, kind, label_selector=OURS)
        ]

    def picture(self, kinds: Sequence[tuple[str, str]] = KINDS) -> dict[Ref, Json]:
        """All there is, but for what any write changes by itself."""
        return {
            Ref.of(body): _still(body)
            for api_version, kind in kinds
            for body in self.objects.list(api_version, kind)
        }

    def versions(self) -> dict[Ref, str]:
        """The resource versions of all that an install may touch."""
        return {
            Ref.of(body): body["metadata"]["resourceVersion"]
            for api_version, kind in KINDS
            for body in self.objects.list(api_version, kind)
        }


def _still(body: Json) -> Json:
    """An object without what counts its writes; empty mappings as if not there."""
    metadata = {
        key: value
        for key, value in body["metadata"].items()
        if key not in ("resourceVersion", "managedFields", "generation") and value
    }
    return {**body, "metadata": metadata}
