"""Run short-lived pods on nodes, such as one that tries a new image there.

Two pods of a DaemonSet cannot run on one node: they listen on the same ports. So the
old one ends before the new one starts, and an image that cannot be pulled would be
noticed too late. A trial pulls the image and starts it beforehand.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import (
    DEVICE_PLUGIN,
    PART_NAME,
    SYSTEM,
    container_statuses,
    node_of,
    phase,
)
from gpushare.kube.objects import Objects, Ref
from gpushare.kube.words import counted
from gpusharectl.installer.context import Context
from gpusharectl.installer.kube_scheduler.verify import short_pod
from gpusharectl.installer.manifests import image_of
from gpusharectl.installer.nodes.facts import (
    SurveyedNode,
    find_node,
    minor_version,
    read_nodes,
)
from gpusharectl.installer.progress import Waiting
from gpusharectl.installer.rights import may_get
from gpusharectl.installer.rollout import daemonset_nodes, list_events, pod_wait
from gpusharectl.output import ObjectChange

IMAGE_TRIAL = "gpushare-image-trial"
_CHECK_CONTAINER = "check"
_CHECK = ("python", "-m", "deviceplugin", "check")
_ANSWER = "/dev/termination-log"
"""kubelet copies this file into the pod's status, at most 4096 bytes. So the answer
needs no connection from the API server to the node."""
_CLASS = "runtimeClassName"
_CDI = ("cdi-static", "cdi-dynamic")
"""The volumes of the device plugin that its check needs too."""
_ROOT, _HOST = "GPUSHARE_HOST_ROOT", "/host"
_READ_ONLY_BELOW = {"recursiveReadOnly": "IfPossible"}
"""Of a read-only mount: also what is mounted below it, if the node's runtime can."""
_KUBELET_BELOW = (1, 31)
"""The kubelet before starts no pod with it, unless its feature gate is on."""
_SHOWN = 3


def image_trial_pods(
    objects: Objects, changes: Sequence[ObjectChange], chosen: Sequence[str]
) -> list[Json]:
    """Return a pod for each Ready node where a DaemonSet gets another image.

    ``chosen`` are nodes that get gpushare's label. Deployments need no trial: their old
    pods stay until the new ones are Ready.
    """
    ready = [node for node in read_nodes(objects) if node.ready]
    pods: dict[str, Json] = {}
    for change in changes:
        body = change.after
        if body is None or change.ref.kind != "DaemonSet":
            continue
        image = image_of([body])
        if change.before and image == image_of([change.before]):
            continue
        spec = _pull_secrets(objects, body)
        container = {
            "name": "trial",
            "image": image,
            "command": ["gpusharectl", "--version"],
            "securityContext": {"runAsUser": 65532, "runAsNonRoot": True},
        }
        for name in daemonset_nodes(body, ready, chosen):
            node = find_node(ready, name)
            if change.ref.name == DEVICE_PLUGIN and node is not None:
                pods[name] = check_pod(objects, body, node)
            else:
                pods.setdefault(
                    name, short_lived_pod(IMAGE_TRIAL, name, container, **spec)
                )
    return [pod for _, pod in sorted(pods.items())]


def check_pod(objects: Objects, daemonset: Json, node: SurveyedNode) -> Json:
    """Return the pod that tries the device plugin's image, and checks its node.

    It has the plugin's image, variables and RuntimeClass, the folders with CDI
    specifications, and the host's files, read-only: to see whether what the
    specifications name exists.
    """
    template = daemonset["spec"]["template"]["spec"]
    # An operator may have added others behind it.
    plugin = template["containers"][0]
    status = f"--status={json.dumps(node.runtime.status)}"
    root = {"name": "host", "mountPath": _HOST, "readOnly": True}
    if (minor_version(node.runtime.kubelet) or (0, 0)) >= _KUBELET_BELOW:
        root |= _READ_ONLY_BELOW
    container = {
        "name": _CHECK_CONTAINER,
        "image": plugin["image"],
        "command": [*_CHECK, status, f"--into={_ANSWER}"],
        "env": [
            *(
                variable
                for variable in plugin.get("env") or ()
                if variable["name"] != _ROOT
            ),
            {"name": _ROOT, "value": _HOST},
        ],
        "securityContext": {"runAsUser": 0, "runAsNonRoot": False},
        "volumeMounts": [
            *(
                mount | {"readOnly": True}
                for mount in plugin["volumeMounts"]
                if mount["name"] in _CDI
            ),
            root,
        ],
    }
    spec = _pull_secrets(objects, daemonset)
    spec["volumes"] = [
        *(volume for volume in template["volumes"] if volume["name"] in _CDI),
        {"name": "host", "hostPath": {"path": "/", "type": "Directory"}},
    ]
    if _CLASS in template:
        spec[_CLASS] = template[_CLASS]
    return short_lived_pod(IMAGE_TRIAL, node.name, container, **spec)


def _pull_secrets(objects: Objects, workload: Json) -> Json:
    """Return what decides with which credentials a workload's image is pulled.

    At first its account does not exist yet; then it has no credentials either.
    """
    pod = workload["spec"]["template"]["spec"]
    kept = {key: pod[key] for key in ("imagePullSecrets",) if key in pod}
    name = pod.get("serviceAccountName", "")
    account = Ref("v1", "ServiceAccount", name, SYSTEM)
    if name and may_get(objects, account) and objects.get(account):
        kept["serviceAccountName"] = name
    return kept


def failures_in_words(failed: Mapping[str, str]) -> str:
    """Return why pods failed, equal reasons once.

    >>> failures_in_words({"cp": "no image", "gpu-1": "no image", "gpu-2": "no room"})
    'cp, gpu-1: no image; gpu-2: no room'
    """
    by_reason: dict[str, list[str]] = {}
    for node, why in failed.items():
        by_reason.setdefault(why, []).append(node)
    reasons = [f"{', '.join(nodes)}: {why}" for why, nodes in by_reason.items()]
    rest = sum(map(len, list(by_reason.values())[_SHOWN:]))
    more = [counted(rest, "more node")] if rest else []
    return "; ".join([*reasons[:_SHOWN], *more])


def delete_leftover_pods(objects: Objects, name: str) -> None:
    """Delete the short-lived pods of this name that a killed run has left."""
    selector = f"{PART_NAME}={name}"
    for pod in objects.list("v1", "Pod", namespace=SYSTEM, label_selector=selector):
        objects.delete(Ref.of(pod), grace_period_s=0)


PULL_TRIED_S = 30.0
"""kubelet has tried to pull an image twice by then."""
_LEFT_S = 3600
"""A pod that a killed run has left ends by itself then."""


def short_lived_pod(name: str, node: str, container: Json, **spec: object) -> Json:
    """Return a pod that runs once on a node, without the scheduler or credentials."""
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        **container.get("securityContext", {}),
    }
    once = {
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **container,
        "securityContext": security,
    }
    bound = {"nodeName": node, "activeDeadlineSeconds": _LEFT_S, **spec}
    return short_pod(f"{name}-{node}", {**bound, "containers": [once]}, part=name)


@dataclass(frozen=True, slots=True)
class PodResults:
    """What came of short-lived pods, by node."""

    failed: Mapping[str, str]
    """Why the pod did not succeed."""
    messages: Mapping[str, str]
    """What the pod wrote into its termination message, if it succeeded."""
    ended: frozenset[str] = frozenset()
    """Those of the nodes in ``failed`` whose pod has ended by itself."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why the pod of a check succeeded only without access to the driver."""


def try_images(
    context: Context, pods: Sequence[Json], most_s: float | None = None
) -> PodResults:
    """Try images on nodes. A check that fails at once is run again without the driver.

    So a runtime that cannot give the driver to a container is told from a bad image.
    """
    ran = run_on_nodes(context, pods, most_s)
    checks = [
        pod for pod in pods if pod["spec"]["containers"][0]["name"] == _CHECK_CONTAINER
    ]
    retried_pods = [_without_driver(pod) for pod in checks if node_of(pod) in ran.ended]
    if not retried_pods:
        return ran
    second = run_on_nodes(context, retried_pods, most_s)
    refused = {node: ran.failed[node] for node in second.messages}
    failed = {node: why for node, why in ran.failed.items() if node not in refused}
    return PodResults(failed, {**ran.messages, **second.messages}, ran.ended, refused)


def _without_driver(check: Json) -> Json:
    spec = {key: value for key, value in check["spec"].items() if key != _CLASS}
    (container,) = spec["containers"]
    none = {"name": names.VISIBLE, "value": names.VOID}
    others = [each for each in container["env"] if each["name"] != names.VISIBLE]
    spec["containers"] = [{**container, "env": [*others, none]}]
    return {**check, "spec": spec}


def run_on_nodes(
    context: Context, pods: Sequence[Json], most_s: float | None = None
) -> PodResults:
    """Run short-lived pods at the same time; they are deleted in any case."""
    objects = context.objects
    refs = {node_of(pod): Ref.of(pod) for pod in pods}
    watch = _PodWatch(objects, refs, context.patience.clock)
    try:
        for pod in pods:
            # One that a killed run has left may belong to an earlier version.
            objects.delete(Ref.of(pod), grace_period_s=0)
            objects.create(pod)
        late = {
            wait.who: wait.what if wait.topic else f"no result in time: {wait.what}"
            for wait in context.until(watch.look, most_s)
        }
        return PodResults(watch.failed | late, watch.messages, frozenset(watch.ended))
    finally:
        for ref in refs.values():
            # An error here must not hide the result.
            with suppress(ClusterError):
                objects.delete(ref, grace_period_s=0)


@dataclass
class _PodWatch:
    """Looks at short-lived pods, by node, and keeps what came of them."""

    objects: Objects
    refs: Mapping[str, Ref]
    clock: Callable[[], float]
    failed: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    unpulled: dict[str, float] = field(default_factory=dict)
    """Since when a node's image cannot be pulled."""

    def look(self) -> list[Waiting]:
        """Return the waits of the pods that have not come to an end."""
        waits = []
        for node in [node for node in self.refs if not self._is_over(node)]:
            pod = self.objects.get(self.refs[node])
            if pod is not None and phase(pod) == "Succeeded":
                self.messages[node] = _last_words(pod)
                continue
            wait = _unfinished(self.objects, node, self.refs[node].name, pod)
            if wait.topic:
                waited_s = self.clock() - self.unpulled.setdefault(node, self.clock())
                wait = replace(wait, hopeless=waited_s >= PULL_TRIED_S)
            # One node's failure must not end the wait for the others.
            if wait.hopeless:
                self.failed[node] = wait.what
                if pod is not None and phase(pod) == "Failed":
                    self.ended.add(node)
            else:
                waits.append(wait)
        return waits

    def _is_over(self, node: str) -> bool:
        return node in self.failed or node in self.messages


def _unfinished(objects: Objects, node: str, name: str, pod: Json | None) -> Waiting:
    """Return what a short-lived pod waits for that has not succeeded."""
    if pod is None:
        return Waiting(node, f"somebody deleted the pod {name}", hopeless=True)
    if phase(pod) == "Failed":
        why = _last_words(pod) or str(pod["status"].get("message", "it failed"))
        return Waiting(node, why, hopeless=True)
    if phase(pod) == "Running":
        return Waiting(node, "its pod to end")
    return pod_wait(node, pod, list_events(objects, name), "")


def _last_words(pod: Json) -> str:
    messages = [
        (status.get("state") or {}).get("terminated", {}).get("message", "")
        for status in container_statuses(pod, inits=False)
    ]
    return " ".join(" ".join(messages).split())
