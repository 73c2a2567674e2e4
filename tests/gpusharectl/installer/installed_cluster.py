"""One cluster of two nodes, and an installer with stand-ins for all that is slow.

What controllers and kubelets do for an installer has no threads: one look of the
installer, one step of theirs. ``Clock.patience`` makes its pauses their turns.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.facts import (
    DEVICE_PLUGIN,
    PART_NAME,
    SYSTEM,
    WEBHOOK_CONFIGURATIONS,
    is_part,
)
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer import run, uninstall
from gpusharectl.installer.context import Context
from gpusharectl.installer.kube_scheduler.host_files import (
    FileChange,
    HostFiles,
    Obstacle,
)
from gpusharectl.installer.manifests import (
    container_settings,
    load_manifests,
    workload_containers,
)
from gpusharectl.installer.options import InstallOptions, UninstallOptions
from gpusharectl.installer.pki import make_authority
from gpusharectl.installer.progress import (
    Exit,
    InstallError,
    InstallPatience,
    Waiting,
    no_answer_error,
)
from tests.gpusharectl.installer.fake_objects import FakeObjects
from tests.testbed.objects import node as any_node

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
CARD = {
    "uuid": "GPU-9f12f917-e458-4bb8-3d9d-8dc7fd6cddf7",
    "index": 0,
    "units": 29,
    "healthy": True,
    "model": "Tesla P4",
}
CARDS = json.dumps({"v": 1, "cards": [CARD]})
REPORT: Json = {
    "v": 1,
    "module": "550.54.15",
    "driver": "550.54.15",
    "problem": "",
    "cards": [{"model": "Tesla P4", "memory_mib": 7611, "units": 29}],
    "left_out": [],
    "injection": {"by": "cdi", "because": "kubelet supports it", "held": []},
}
"""What ``deviceplugin.check`` prints on a node with one card."""
AMOUNTS = {names.CORE: "100", names.MEMORY: "29"}
SCHEDULER = "/etc/kubernetes/manifests/kube-scheduler.yaml"
APISERVER = "/etc/kubernetes/manifests/kube-apiserver.yaml"
BEFORE = b"kind: Pod # before\n"
AFTER = b"kind: Pod # before\n# ours\n"
MOUNTED = "test/mounted"
"""Annotation of a pod: the Secret's certificate when it was made."""
READY: Json = {
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
}


@dataclass
class Nodes:
    """Workloads get pods, plugins find cards, kubelets count to zero at the end."""

    objects: Objects
    without_cards: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    """Nodes on which no pod becomes Ready, pods, and Deployments whose pods do not."""
    unpullable: str = ""
    """An image that no node can pull."""
    answer: str = json.dumps(REPORT)
    """What the pods print that check a node."""
    fails: bool = False
    """Whether they fail, with the same words."""
    refusal: str = ""
    """Why no container can have the driver."""
    driver_works: bool = True
    """Whether the DRA driver writes its slices."""
    remembers: bool = False
    """kubelet has not yet forgotten the device plugin that is gone."""

    def step(self) -> None:
        nodes = self.objects.list("v1", "Node")
        sets, deployments = (
            self.objects.list("apps/v1", kind, namespace=SYSTEM)
            for kind in ("DaemonSet", "Deployment")
        )
        on = "on" in [
            container_settings([one], DEVICE).get("GPUSHARE_DRA") for one in sets
        ]
        for one in sets:
            self._run(one, [node for node in nodes if _is_meant(one, node)])
        for one in deployments:
            self._roll(one, nodes[0]["metadata"]["name"])
        there = {one["metadata"]["name"] for one in (*sets, *deployments)}
        for pod in self.objects.list("v1", "Pod", namespace=SYSTEM):
            self._live(pod, there)
        for node in nodes:
            self._count(node)
            if names.GPU_NODE_LABEL in (node["metadata"].get("labels") or {}):
                self._offer(node["metadata"]["name"], on=on and self.driver_works)

    def _run(self, daemonset: Json, nodes: Sequence[Json]) -> None:
        """A DaemonSet's pods, one on each of these nodes."""
        for name in (node["metadata"]["name"] for node in nodes):
            ref = Ref("v1", "Pod", f"{daemonset['metadata']['name']}-{name}", SYSTEM)
            if self.objects.get(ref) is None:
                stuck = bool(self.stuck & {name, ref.name})
                self._start(pod_of(daemonset, ref, name), stuck=stuck)
        counts = ("desired", "updated", "current")
        numbers = dict.fromkeys((f"{one}NumberScheduled" for one in counts), len(nodes))
        self._report(
            daemonset, {**numbers, "numberMisscheduled": 0, "numberReady": len(nodes)}
        )

    def _roll(self, deployment: Json, node: str) -> None:
        """Take one step: one replica more, or one of another template less."""
        name, wanted = deployment["metadata"]["name"], deployment["spec"]["replicas"]
        template = json.dumps(deployment["spec"]["template"], sort_keys=True)
        stuck = name in self.stuck
        refs = [Ref("v1", "Pod", f"{name}-{at}", SYSTEM) for at in range(wanted)]
        pods = {ref: self.objects.get(ref) for ref in refs}
        for ref, pod in pods.items():
            if pod and pod["metadata"]["annotations"]["of"] != template:
                # Its kubelet has ended it.
                self.objects.delete(ref, grace_period_s=0)
                pods[ref] = None
                break
        missing = next((ref for ref, pod in pods.items() if pod is None), None)
        if missing is not None:
            pod = pod_of(deployment, missing, node)
            mounted = {"of": template, MOUNTED: self._mounted(pod)}
            pod["metadata"]["annotations"] = mounted
            self._start(pod, stuck=stuck)
        elif not stuck:
            kinds = ("replicas", "updatedReplicas", "readyReplicas")
            self._report(
                deployment, dict.fromkeys((*kinds, "availableReplicas"), wanted)
            )

    def _mounted(self, pod: Json) -> str:
        for volume in pod["spec"]["volumes"]:
            if "secret" in volume:
                ref = Ref("v1", "Secret", volume["secret"]["secretName"], SYSTEM)
                secret = self.objects.get(ref)
                assert secret is not None, "kubelet would wait for the Secret"
                return str(secret["data"]["tls.crt"])
        return ""

    def _start(self, pod: Json, *, stuck: bool) -> None:
        self.objects.create(pod)
        if not stuck:
            self.objects.merge(Ref.of(pod), READY, subresource="status")

    def _report(self, workload: Json, counts: Json) -> None:
        generation = workload["metadata"].get("generation", 1)
        status = {"observedGeneration": generation, **counts}
        if workload.get("status") != status:
            ref = Ref.of(workload)
            self.objects.merge(ref, {"status": status}, subresource="status")

    def _offer(self, node: str, *, on: bool) -> None:
        """The driver writes a slice; once it is off, kubelet would delete it later."""
        slice_ = slice_of(node)
        if on and self.objects.get(Ref.of(slice_)) is None:
            self.objects.create(slice_)

    def _live(self, pod: Json, there: set[str]) -> None:
        name = pod["metadata"]["labels"].get(PART_NAME, "")
        if name in ("gpushare-clean", "gpushare-image-trial"):
            (container,) = pod["spec"]["containers"]
            status: Json = {"phase": "Succeeded"}
            if container.get("name") == "check":
                seen = [one["value"] for one in container["env"] if "value" in one]
                refused = self.refusal if "void" not in seen else ""
                ended = {"exitCode": 0, "message": refused or self.answer}
                status["containerStatuses"] = [{"state": {"terminated": ended}}]
                status["phase"] = "Failed" if self.fails or refused else "Succeeded"
            if container["image"] == self.unpullable:
                state = {"waiting": {"reason": "ImagePullBackOff"}}
                one = {"image": self.unpullable, "state": state}
                status = {"phase": "Pending", "containerStatuses": [one]}
            self.objects.merge(Ref.of(pod), {"status": status}, subresource="status")
        elif name.startswith("gpushare") and name not in there:
            self.objects.delete(Ref.of(pod), grace_period_s=0)

    def _count(self, node: Json) -> None:
        name = node["metadata"]["name"]
        plugin = self.objects.get(Ref("v1", "Pod", f"{DEVICE_PLUGIN}-{name}", SYSTEM))
        ref, now = Ref("v1", "Node", name), node["status"].get("capacity", {})
        amounts = dict.fromkeys(AMOUNTS, "0")
        if plugin is not None and name not in self.without_cards:
            amounts = AMOUNTS
        elif names.MEMORY not in now or self.remembers:
            return
        if now.get(names.MEMORY) != amounts[names.MEMORY]:
            if amounts is AMOUNTS:
                note = {"metadata": {"annotations": {names.CARDS: CARDS}}}
                self.objects.merge(ref, note)
            status = {"capacity": amounts, "allocatable": amounts}
            self.objects.merge(ref, {"status": status}, subresource="status")


def _is_meant(daemonset: Json, node: Json) -> bool:
    spec = daemonset["spec"]["template"]["spec"]
    labels = node["metadata"].get("labels") or {}
    selector = spec.get("nodeSelector", {})
    fits = selector.items() <= labels.items()
    return fits and (names.GPU_NODE_LABEL in selector or CONTROL_PLANE in labels)


def pod_of(workload: Json, ref: Ref, node: str) -> Json:
    """A pod as a workload's controller makes it, bound to a node."""
    template, metadata = workload["spec"]["template"], workload["metadata"]
    owner = {key: workload[key] for key in ("apiVersion", "kind")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "labels": dict(template["metadata"]["labels"]),
            "ownerReferences": [
                {**owner, "name": metadata["name"], "uid": metadata["uid"]}
            ],
        },
        "spec": {**template["spec"], "nodeName": node},
    }


@dataclass
class Clock:
    """Time passes only in pauses, and each is a turn of the stand-ins."""

    nodes: Nodes
    now_s: float = 0.0

    def patience(self, timeout_s: float = 60.0) -> InstallPatience:
        return InstallPatience(timeout_s, 1.0, self.pause, lambda: self.now_s)

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.nodes.step()


@dataclass
class Listener:
    """A screen that remembers; ``answers`` are given in turn."""

    answers: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    waits: list[Waiting] = field(default_factory=list)

    def begin_step(self, title: str) -> None:
        self.lines.append(f"== {title}")

    def say(self, text: str) -> None:
        self.lines += text.splitlines()

    note = show = say

    def wait(self, waits: Sequence[Waiting]) -> None:
        self.waits += waits

    def settle(self) -> None:
        pass

    def ask(self, question: str, default: str, option: str) -> str:
        self.asked.append(f"{question} [{default}]")
        return self._answer(option) or default

    def confirm(self, question: str, remedy: str = "") -> None:
        self.asked.append(question)
        if self._answer("--yes") != "y":
            raise InstallError("you said no; nothing was changed", remedy)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def _answer(self, option: str) -> str:
        if not self.answers:
            raise no_answer_error(option)
        return self.answers.pop(0)


@dataclass
class Scheduler:
    """A host's kube-scheduler that reads one file; ``ill`` says what goes wrong."""

    files: HostFiles
    ill: dict[str, str] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)
    unfinished: bool = False
    authorities: dict[str, bytes] = field(default_factory=dict)
    """Those of other hosts, which their Jobs read."""

    @property
    def authority(self) -> bytes:
        return self.files.read(AUTHORITY) or b""

    def why_elsewhere(self) -> str:
        return self.ill.get("elsewhere", "")

    def due_certificates(self) -> list[FileChange]:
        """The authority and one file, once."""
        if self.files.read(CERTIFICATE) is not None:
            return []
        own = FileChange(AUTHORITY, self.files.read(AUTHORITY), authority_of("cp"))
        return [FileChange(CERTIFICATE, None, b"PEM"), own]

    def look(self, node: str, say: object) -> bytes | Obstacle:
        """The other hosts' Jobs that only look."""
        self.did.append(f"look at {node}")
        if why := self.ill.get(node):
            return Obstacle(why)
        return self.authorities.get(node, b"")

    def plan(self) -> Sequence[FileChange] | Obstacle:
        if "plan" in self.ill:
            return Obstacle(self.ill["plan"])
        return self._to(AFTER)

    def plan_restore(self) -> Sequence[FileChange] | Obstacle:
        return self._to(BEFORE)

    def check(self, plan: Sequence[FileChange]) -> str:
        return self._said("check")

    def apply(self, plan: Sequence[FileChange]) -> None:
        self._said("apply")
        self.unfinished = self.files.read(SCHEDULER) == BEFORE
        self.files.make(plan)

    def is_read(self, plan: Sequence[FileChange]) -> bool:
        return any(change.path == SCHEDULER for change in plan)

    def finish(self) -> None:
        self.unfinished = False

    def wait(self, say: object) -> str:
        said = self._said("wait")
        # What was rolled back comes up.
        return said if self.files.read(SCHEDULER) == AFTER else ""

    def probe(self) -> str:
        return self._said("probe")

    def roll_back(self) -> None:
        self._said("roll back")
        self.files.make(self._to(BEFORE))

    def run(self, action: str, node: str, say: object) -> str:
        """The other hosts' Jobs."""
        self.did.append(f"{action} on {node}")
        return self.ill.get(node, "")

    def _said(self, what: str) -> str:
        self.did.append(what)
        return self.ill.get(what, "")

    def _to(self, content: bytes) -> Sequence[FileChange]:
        before = self.files.read(SCHEDULER)
        return [] if before == content else [FileChange(SCHEDULER, before, content)]


def node(name: str, address: str, *, labels: Json | None = None) -> Json:
    """A node of a cluster that knows nothing of us."""
    of_kubelet = {"kubernetes.io/os": "linux"}
    found = any_node(name, cpu="4", labels={**of_kubelet, **(labels or {})})
    found["status"]["addresses"] = [{"type": "InternalIP", "address": address}]
    found["status"]["nodeInfo"] = {
        "kubeletVersion": "v1.36.3",
        "containerRuntimeVersion": "containerd://2.4.2",
    }
    return found


def runtime_class(name: str, handler: str) -> Json:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": handler,
    }


def kubeadm_host(root: Path) -> HostFiles:
    """A host whose control plane kubeadm has made."""
    files = HostFiles(root)
    files.write(SCHEDULER, BEFORE)
    command = ["--advertise-address=10.0.0.1"]
    apiserver = {"spec": {"containers": [{"command": command}]}}
    files.write(APISERVER, json.dumps(apiserver).encode())
    return files


CERTIFICATE = "/etc/kubernetes/vcuda/tls/server.crt"
AUTHORITY = "/etc/kubernetes/vcuda/tls/ca.crt"
DEVICE = "device-plugin"


@cache
def authority_of(host: str) -> bytes:
    """The certificate of a host's own authority."""
    assert host
    return make_authority(datetime(2026, 11, 1, tzinfo=UTC)).certificate_pem


def slice_of(node: str) -> Json:
    spec = {"driver": names.DRA_DRIVER, "nodeName": node, "pool": {"name": node}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{names.DRA_DRIVER}-00"},
        "spec": spec,
    }


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
    ("v1", "Secret"),
    *((ref.api_version, ref.kind) for ref in WEBHOOK_CONFIGURATIONS),
)
DRA_KINDS = kinds("resource.k8s.io/v1", "DeviceClass", "ResourceSlice", "ResourceClaim")
EVERY_KIND = (*KINDS, *OPERATORS_KINDS, *WEBHOOKS_KINDS, *DRA_KINDS)


@cache
def _loaded(overlay: str, image: str, components: tuple[str, ...]) -> bytes:
    return orjson.dumps(load_manifests(overlay, image=image, components=components))


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
            behind.arbiters["cp"] = authority_of("cp")
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

    def context(self, *answers: str) -> Context:
        self.screen = Listener(list(answers))
        return Context(
            self.objects,
            self.files,
            self.screen,
            shipped,
            lambda _: self.scheduler,
            lambda _: self.scheduler,
            patience=self.clock.patience(),
            now=lambda: self.now,
        )

    def install(self, *answers: str, **options: Any) -> Exit:
        wanted = {"nodes": ("gpu-1",), "yes": not answers, **options}
        return run.run_install(self.context(*answers), InstallOptions(**wanted))

    def uninstall(self, *answers: str, **options: Any) -> Exit:
        wanted = {"yes": not answers, **options}
        return uninstall.run_uninstall(
            self.context(*answers), UninstallOptions(**wanted)
        )

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

    def settings(self, name: str, kind: str = "DaemonSet") -> dict[str, str]:
        """The variables of a workload of one container; none if it is not there."""
        body = self.objects.get(Ref("apps/v1", kind, name, SYSTEM))
        (container,) = workload_containers([body]) if body else ({"env": ()},)
        return {each["name"]: each.get("value", "") for each in container["env"]}

    def _all(self, kinds: Sequence[tuple[str, str]]) -> Iterator[tuple[Ref, Json]]:
        for kind in kinds:
            yield from ((Ref.of(body), body) for body in self.objects.list(*kind))

    def ours(self) -> list[Ref]:
        """All objects with our label."""
        return [ref for ref, body in self._all(KINDS) if is_part(body)]

    def picture(self, kinds: Sequence[tuple[str, str]] = KINDS) -> dict[Ref, Json]:
        """All there is, but for what any write changes by itself."""
        return {ref: _still(body) for ref, body in self._all(kinds)}

    def versions(self) -> dict[Ref, str]:
        """The resource versions of all that an install may touch."""
        return {
            ref: body["metadata"]["resourceVersion"] for ref, body in self._all(KINDS)
        }


def _still(body: Json) -> Json:
    """An object without what counts its writes; empty mappings as if not there."""
    metadata = {
        key: value
        for key, value in body["metadata"].items()
        if key not in ("resourceVersion", "managedFields", "generation") and value
    }
    return {**body, "metadata": metadata}
