"""What inspect and why read off pods and nodes beside the books. Pure.

Nothing here fails: these objects come from an API server, and what is not there is
empty or None.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gpushare.domain.quantity import NotAQuantity, NotWhole, whole
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kube.objects import Ref

PART_OF = "app.kubernetes.io/part-of"
PART_NAME = "app.kubernetes.io/name"
EXTENDER = "gpushare-extender"
DEVICE_PLUGIN = "gpushare-device-plugin"
SECOND_SCHEDULER = "gpushare-scheduler"
"""A kube-scheduler of our own, with an extender beside it in the same pod."""
WEBHOOK = "gpushare-webhook"
SYSTEM = "kube-system"
"""The namespace in which our parts and kube-scheduler live."""
WEBHOOK_CONFIGURATIONS = tuple(
    Ref("admissionregistration.k8s.io/v1", f"{kind}WebhookConfiguration", WEBHOOK)
    for kind in ("Mutating", "Validating")
)
"""What makes the API server call our webhook."""
PROBE_ONLY = "the-installers-trial-alone"
"""Name of the matchCondition that limits the webhook to the installer's probe pod."""


def name_of(thing: Json) -> str:
    """Return an object's name."""
    return str(thing["metadata"]["name"])


def full_name(pod: Json) -> str:
    """Return a pod's name with its namespace: ``default/app-1``."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def label(thing: Json, key: str) -> str:
    """Return a label, empty where it is not there."""
    return str((thing["metadata"].get("labels") or {}).get(key, ""))


def annotation(thing: Json, key: str) -> str:
    """Return an annotation, empty where it is not there."""
    return str((thing["metadata"].get("annotations") or {}).get(key, ""))


def created(thing: Json) -> str:
    """Return the time at which it was made, as the API writes it."""
    return str(thing["metadata"].get("creationTimestamp") or "")


def node_of(pod: Json) -> str:
    """Return the node that the pod is bound to, empty before that."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def phase(pod: Json) -> str:
    """Return the pod's phase."""
    return str((pod.get("status") or {}).get("phase") or "")


def is_leaving(pod: Json) -> bool:
    """Return whether it is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def condition(thing: Json, kind: str) -> Mapping[str, Any]:
    """Return one condition of a pod or node, empty where it is not told."""
    told = (thing.get("status") or {}).get("conditions") or ()
    return next((one for one in told if one.get("type") == kind), {})


def holds(thing: Json, kind: str) -> bool | None:
    """Return whether a condition holds; None where nobody has told, or says Unknown."""
    return {"True": True, "False": False}.get(str(condition(thing, kind).get("status")))


def is_part(pod: Json, part: str = "") -> bool:
    """Return whether a pod is one of our own parts, or just this one."""
    if part:
        return label(pod, PART_NAME) == part
    return label(pod, PART_OF) == "gpushare"


def is_extender(pod: Json) -> bool:
    """Return whether an extender runs in this pod."""
    return label(pod, PART_NAME) in (EXTENDER, SECOND_SCHEDULER)


def is_kube_scheduler(pod: Json) -> bool:
    """Return whether this is the cluster's own scheduler, as kubeadm runs it."""
    in_place = pod["metadata"].get("namespace") == SYSTEM
    return in_place and label(pod, "component") == "kube-scheduler"


def words_run(pod: Json) -> Iterator[str]:
    """Return the command words of all containers of a pod."""
    for container in (pod.get("spec") or {}).get("containers") or ():
        yield from (str(word) for word in container.get("command") or ())
        yield from (str(word) for word in container.get("args") or ())


def settings_of(pod: Json) -> dict[str, str]:
    """Return the environment of a pod's containers, as far as it is written there."""
    return {
        one["name"]: str(one["value"])
        for container in (pod.get("spec") or {}).get("containers") or ()
        for one in container.get("env") or ()
        if "value" in one
    }


def waits_because(pod: Json) -> str:
    """Return why a bound pod's container may not start, in kubelet's words."""
    status = pod.get("status") or {}
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(key) or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("message"):
                return f"{waiting.get('reason', 'waiting')}: {waiting['message']}"
    return ""


def allocatable(node: Json, resource: str) -> int | None:
    """Return how much of a resource kubelet offers; None where it does not know it."""
    told = ((node.get("status") or {}).get("allocatable") or {}).get(resource)
    try:
        return None if told is None else whole(told)
    except (NotAQuantity, NotWhole):
        return None


def addresses(node: Json) -> list[str]:
    """Return all addresses and host names of a node."""
    found = (node.get("status") or {}).get("addresses") or ()
    return [str(one.get("address", "")) for one in found]


def is_labelled(node: Json) -> bool:
    """Return whether the device plugin is to run there."""
    return label(node, names.GPU_NODE_LABEL) == "true"


def is_unschedulable(node: Json) -> bool:
    """Return whether somebody has cordoned the whole node."""
    return bool((node.get("spec") or {}).get("unschedulable"))


def scheduler_of(pod: Json) -> str:
    """Name the scheduler that the pod waits for."""
    return str((pod.get("spec") or {}).get("schedulerName") or "default-scheduler")


def gates(pod: Json) -> list[str]:
    """Name the gates that keep every scheduler from looking at it."""
    told = (pod.get("spec") or {}).get("schedulingGates") or ()
    return [str(one.get("name", "")) for one in told]


def end_words(pod: Json) -> str:
    """Return why a pod ended, where its status tells."""
    status = pod.get("status") or {}
    told = (status.get("reason"), status.get("message"))
    return ": ".join(str(one) for one in told if one)


def nominated(pod: Json) -> str:
    """Name the node on which room is being made for it, mostly none."""
    return str((pod.get("status") or {}).get("nominatedNodeName") or "")


def is_narrowed(configuration: Json) -> bool:
    """Return whether a webhook configuration is limited to the installer's probe pod.

    An interrupted installation leaves it so.
    """
    return any(
        condition["name"] == PROBE_ONLY
        for one in configuration.get("webhooks") or ()
        for condition in one.get("matchConditions") or ()
    )
