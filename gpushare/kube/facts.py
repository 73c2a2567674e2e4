"""Facts of pods and nodes, read from their JSON by one function each. Pure.

Nothing here fails on an object of an API server: a missing field reads as empty or
None. What a pod asks for is in ``codec``.
"""

import re
from collections.abc import Iterator

from gpushare.domain.model import Amount, HostAmount
from gpushare.domain.quantity import (
    NotAQuantity,
    parse_mebibytes,
    parse_thousandths,
    read_whole,
)
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref

PART_OF = "app.kubernetes.io/part-of"
PART_NAME = "app.kubernetes.io/name"
PRODUCT = "gpushare"
OURS = f"{PART_OF}={PRODUCT}"
"""The label selector of all objects that the installer creates."""
EXTENDER = "gpushare-extender"
DEVICE_PLUGIN = "gpushare-device-plugin"
EXPORTER = "gpushare-exporter"
SECOND_SCHEDULER = "gpushare-scheduler"
"""The second kube-scheduler, which has an extender beside it in the same pod."""
WEBHOOK = names.WEBHOOK_NAME
SYSTEM = "kube-system"
"""The namespace of gpushare's components and of kube-scheduler."""
CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
"""The label, with any value, of a node that is a host of the control plane."""
WEBHOOK_CONFIGURATIONS = tuple(
    Ref("admissionregistration.k8s.io/v1", f"{kind}WebhookConfiguration", WEBHOOK)
    for kind in ("Mutating", "Validating")
)
"""What makes the API server call the gpushare webhook."""
CLAIMS_CONFIGURATION = Ref(
    "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration",
    names.CLAIMS_WEBHOOK,
)
"""What makes the API server ask the arbiter before it stores a claim's allocation."""
PROBE_ONLY = "installer-probe-pod-only"
"""Name of the matchCondition that limits the webhook to the installer's probe pod."""
SYSTEM_NAMESPACES = frozenset({SYSTEM, "kube-public", "kube-node-lease"})
"""The namespaces of the cluster itself, whose pods the webhook does not change."""
TERMINAL = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers have ended for good."""
COUNTED = (f"requests.{names.MEMORY}", f"requests.{names.CORE}")
"""The keys of a ResourceQuota that count shares of cards."""
_LIKE_COUNTED = re.compile(r"(^|[.])(baidu[.]com/vcuda|bitfusion[.]io/)", re.IGNORECASE)
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""The annotation that is ``false`` on a pod that autoscalers may not evict."""


def name_of(thing: Json) -> str:
    """Return the object's name."""
    return str(thing["metadata"]["name"])


def full_name(pod: Json) -> str:
    """Return a pod's name with its namespace: ``default/app-1``."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def label(thing: Json, key: str) -> str:
    """Return a label, empty if it is missing."""
    return str((thing["metadata"].get("labels") or {}).get(key, ""))


def annotation(thing: Json, key: str) -> str:
    """Return an annotation, empty if it is missing."""
    return str((thing["metadata"].get("annotations") or {}).get(key, ""))


def created(thing: Json) -> str:
    """Return the creation time as the API writes it."""
    return str(thing["metadata"].get("creationTimestamp") or "")


def controller(pod: Json) -> Json:
    """Return the owner that makes another pod for this one, empty if there is none."""
    owners: list[Json] = pod["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def node_of(pod: Json) -> str:
    """Return the node to which the pod is bound, empty before the binding."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def phase(pod: Json) -> str:
    """Return the pod's phase."""
    return str((pod.get("status") or {}).get("phase") or "")


def is_leaving(pod: Json) -> bool:
    """Return whether the object is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_terminal(pod: Json) -> bool:
    """Return whether the pod's containers have ended for good."""
    return phase(pod) in TERMINAL


def condition(thing: Json, kind: str) -> Json:
    """Return one condition of a pod or node, empty if it is not there."""
    conditions: list[Json] = (thing.get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry.get("type") == kind), {})


def holds(thing: Json, kind: str) -> bool | None:
    """Return whether a condition holds; None if it is missing or ``Unknown``."""
    return {"True": True, "False": False}.get(str(condition(thing, kind).get("status")))


def is_ready(thing: Json) -> bool:
    """Return whether a pod or node has the condition ``Ready``."""
    return holds(thing, "Ready") is True


def is_silent(node: Json) -> bool:
    """Return whether a node's kubelet has stopped to report."""
    return condition(node, "Ready").get("status") == "Unknown"


def is_part(pod: Json, part: str = "") -> bool:
    """Return whether a pod belongs to a component of gpushare, or to the named one."""
    if part:
        return label(pod, PART_NAME) == part
    return label(pod, PART_OF) == PRODUCT


def is_extender(pod: Json) -> bool:
    """Return whether an extender runs in this pod."""
    return label(pod, PART_NAME) in (EXTENDER, SECOND_SCHEDULER)


def is_kube_scheduler(pod: Json) -> bool:
    """Return whether this is the cluster's own scheduler, as kubeadm runs it."""
    in_place = pod["metadata"].get("namespace") == SYSTEM
    return in_place and label(pod, "component") == "kube-scheduler"


def words_run(pod: Json) -> Iterator[str]:
    """Yield the words of the commands of all containers of a pod."""
    for container in (pod.get("spec") or {}).get("containers") or ():
        yield from (str(word) for word in container.get("command") or ())
        yield from (str(word) for word in container.get("args") or ())


def read_environment(pod: Json) -> dict[str, str]:
    """Return the environment of a pod's containers: variables with a plain value."""
    return {
        variable["name"]: str(variable["value"])
        for container in (pod.get("spec") or {}).get("containers") or ()
        for variable in container.get("env") or ()
        if "value" in variable
    }


def container_statuses(pod: Json, *, inits: bool = True) -> list[Json]:
    """Return what kubelet says of each container of a pod, init containers first."""
    status = pod.get("status") or {}
    keys = (*(["initContainerStatuses"] if inits else []), "containerStatuses")
    return [container for key in keys for container in status.get(key) or ()]


def waits_because(pod: Json) -> str:
    """Return kubelet's message on a container that cannot start; mostly empty."""
    for container in container_statuses(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            return f"{waiting.get('reason', 'waiting')}: {waiting['message']}"
    return ""


def allocatable(node: Json, resource: str) -> int | None:
    """Return kubelet's allocatable amount of a resource; None if it is not known."""
    quantity = ((node.get("status") or {}).get("allocatable") or {}).get(resource)
    return read_whole(quantity)


def addresses(node: Json) -> list[str]:
    """Return all addresses and host names of a node."""
    entries = (node.get("status") or {}).get("addresses") or ()
    return [str(entry.get("address", "")) for entry in entries]


def host_capacity(node: Json) -> HostAmount | None:
    """Return the node's allocatable CPU and memory; None if it cannot be read.

    Memory is rounded up to MiB, as the memory that pods ask.
    """
    try:
        has = node["status"]["allocatable"]
        return HostAmount(parse_thousandths(has["cpu"]), parse_mebibytes(has["memory"]))
    except (NotAQuantity, KeyError, TypeError):
        return None


def card_capacity(node: Json) -> Amount:
    """Return the node's allocatable cores and units, 0 for what it does not say."""
    return Amount(
        allocatable(node, names.CORE) or 0, allocatable(node, names.MEMORY) or 0
    )


def is_labelled(node: Json) -> bool:
    """Return whether the device plugin is to run there."""
    return label(node, names.GPU_NODE_LABEL) == "true"


def is_control_plane(node: Json) -> bool:
    """Return whether the node is a host of the control plane."""
    return CONTROL_PLANE_LABEL in (node["metadata"].get("labels") or {})


def is_unschedulable(node: Json) -> bool:
    """Return whether the whole node is cordoned."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def scheduler_of(pod: Json) -> str:
    """Return the name of the pod's scheduler."""
    return str((pod.get("spec") or {}).get("schedulerName") or "default-scheduler")


def gates(pod: Json) -> list[str]:
    """Return the names of the pod's scheduling gates."""
    entries = (pod.get("spec") or {}).get("schedulingGates") or ()
    return [str(gate.get("name", "")) for gate in entries]


def never_preempts(pod: Json) -> bool:
    """Return whether kube-scheduler may evict no pods for this one."""
    return (pod.get("spec") or {}).get("preemptionPolicy") == "Never"


def uncounted(quota: Json) -> list[str]:
    """Return the keys of a ResourceQuota that look like gpushare's and count nothing.

    Of extended resources a quota counts ``requests.NAME`` alone, and no pod that runs
    asks for another name of these. Whether ``requests.bitfusion.io/gpu`` counts depends
    on the webhook. ``manifests/base/quota-warning.yaml`` has the same rule.
    """
    keys = (quota.get("spec") or {}).get("hard") or {}
    count = (*COUNTED, f"requests.{names.BITFUSION_GPU}")
    return [key for key in keys if key not in count and _LIKE_COUNTED.search(key)]


def scheduler_says(pod: Json) -> str:
    """Return kube-scheduler's message on a pod that waits; mostly empty."""
    return str(condition(pod, "PodScheduled").get("message") or "")


def end_words(pod: Json) -> str:
    """Return the status's reason and message; empty if there is none."""
    status = pod.get("status") or {}
    texts = (status.get("reason"), status.get("message"))
    return ": ".join(str(text) for text in texts if text)


def nominated(pod: Json) -> str:
    """Return the node to which the pod is nominated; mostly empty."""
    return str((pod.get("status") or {}).get("nominatedNodeName") or "")


def is_narrowed(configuration: Json) -> bool:
    """Return whether a webhook configuration is limited to the installer's probe pod.

    An interrupted installation leaves it so.
    """
    return any(
        condition["name"] == PROBE_ONLY
        for webhook in configuration.get("webhooks") or ()
        for condition in webhook.get("matchConditions") or ()
    )
