"""Make nodes and pods for a simulation, and check manifests that users give. Pure."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.domain.card_selector import read_mig_profile
from gpushare.domain.model import CORES_PER_CARD, Card, CardUUID, Refusal, clean_text
from gpushare.domain.quantity import NotAQuantity, parse_mebibytes
from gpushare.kube import codec, names
from gpushare.kube.annotations import encode_cards
from gpushare.kube.cluster import Json
from gpushare.kube.codec import refusal_text
from gpushare.kube.json_reader import Malformed, Reader
from gpushare.kube.label_selectors import is_number

CPU, MEMORY = "cpu", "memory"
_PLENTY = {CPU: "1000000", MEMORY: "1000000Gi"}
"""More than any pod asks for, if a scenario names only CPU or only memory."""
HOSTNAME = "kubernetes.io/hostname"
_KUBELETS = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
"""Labels that kubelet sets, beside the one with the host's name."""
_CARDS = uuid.UUID("6d3c1f4e-2b57-4c0e-9b39-7f7a5d1c8e20")
"""The namespace for the UUIDs of synthetic cards: the same in every run."""


@dataclass(frozen=True, slots=True)
class PodSpec:
    """What a synthetic pod asks for; ``cpu`` and ``memory`` are quantities."""

    units: int = 0
    cores: int = 0
    cpu: str = ""
    memory: str = ""
    models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    policy: str = ""
    priority: int = 0
    node_selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What a synthetic node offers beside cards; empty or None means no limit."""

    cpu: str = ""
    memory: str = ""
    pods: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    unschedulable: bool = False


def make_card(node: str, index: int, units: int, model: str = "") -> Card:
    """Return a card whose UUID depends on its node and index only.

    One whose model has the size of a MIG instance is an instance; all those of a node
    are parts of one card.
    """
    made = uuid.uuid5(_CARDS, f"{node}/{index}")
    parent = f"GPU-{uuid.uuid5(_CARDS, node)}" if read_mig_profile(model) else ""
    kind = "MIG" if parent else "GPU"
    uid = CardUUID(f"{kind}-{made}")
    return Card(uid, index, units, model=model, parent=parent)


def make_node(name: str, cards: Sequence[Card], host: HostSpec) -> Json:
    """Return a node."""
    annotations = {names.CARDS: encode_cards(cards)} if cards else {}
    offered: dict[str, str] = {}
    if cards:
        offered[names.MEMORY] = str(sum(card.units for card in cards))
        offered[names.CORE] = str(CORES_PER_CARD * len(cards))
    pods = "" if host.pods is None else str(host.pods)
    limits = {CPU: host.cpu, MEMORY: host.memory, "pods": pods}
    if host.cpu or host.memory:
        # The ledger knows CPU and memory of a node together, or neither.
        limits |= {key: limits[key] or plenty for key, plenty in _PLENTY.items()}
    offered |= {key: text for key, text in limits.items() if text}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**_KUBELETS, HOSTNAME: name, **host.labels},
            "annotations": annotations,
        },
        "spec": {"unschedulable": True} if host.unschedulable else {},
        "status": {"allocatable": offered},
    }


def make_pod(namespace: str, name: str, request: PodSpec) -> Json:
    """Return a pod with one container."""
    limits = {names.MEMORY: request.units, names.CORE: request.cores}
    texts = {key: str(number) for key, number in limits.items() if number}
    requests = {CPU: request.cpu, MEMORY: request.memory}
    resources = {
        "limits": texts,
        "requests": texts | {key: text for key, text in requests.items() if text},
    }
    wishes = {
        names.MODELS: ",".join(request.models),
        names.UUIDS: ",".join(request.uuids),
        names.POLICY: request.policy,
    }
    spec: Json = {"containers": [{"name": "main", "resources": resources}]}
    if request.priority:
        spec["priority"] = request.priority
    if request.node_selector:
        spec["nodeSelector"] = dict(request.node_selector)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "annotations": {key: text for key, text in wishes.items() if text},
        },
        "spec": spec,
    }


def is_bound_to_node(pod: Json) -> bool:
    """Tell whether a pod belongs to its node: a DaemonSet's or a static one."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("kind") in ("DaemonSet", "Node") for owner in owners)


def find_refusal(pod: Json) -> str:
    """Return why the extender refuses a pod on every node; empty if it does not."""
    body = {**pod, "metadata": {**pod["metadata"], "uid": "checked"}}
    try:
        request = codec.read_pod_request(body, codec.read_pod_ref(body))
    except Malformed as error:
        return str(error)
    return refusal_text(request) if isinstance(request, Refusal) else ""


def instantiate_pod(template: Json, namespace: str, name: str) -> Json:
    """Return a pod from a manifest or a controller's template."""
    metadata = dict(template.get("metadata") or {})
    kept = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
    identity = {"namespace": namespace, "name": name}
    return {**template, "apiVersion": "v1", "kind": "Pod", "metadata": kept | identity}


WRITTEN_KEYS = (names.PLACEMENT, names.ACTUAL, names.ISOLATION)
"""Annotations that the extender and the device plugin write."""
_OTHERS_SPEC = ("nodeName", "schedulingGates")
_MOST_MIB = 2**63 >> 20
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_TOLERATES = ("", "Equal", "Exists")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def read_template(pod: Json) -> Json:
    """Return a pod, or a controller's template of one, as ``strip_run_state`` does.

    Raises ``Malformed`` for what no API server accepts, as far as it is read here.
    """
    _check(Reader(pod))
    return strip_run_state(pod)


def strip_run_state(pod: Json) -> Json:
    """Return a pod without node, status, scheduling gates and placement.

    A pod has those if it is pasted from ``kubectl get -o yaml``.
    """
    metadata = dict(pod.get("metadata") or {})
    annotations = metadata.get("annotations") or {}
    metadata["annotations"] = {
        k: v for k, v in annotations.items() if k not in WRITTEN_KEYS
    }
    spec = {k: v for k, v in pod["spec"].items() if k not in _OTHERS_SPEC}
    rest = {key: value for key, value in pod.items() if key != "status"}
    return {**rest, "metadata": metadata, "spec": spec}


def check_amount(value: object) -> None:
    """Check a quantity as Kubernetes does; ``NotAQuantity`` says what is wrong.

    >>> check_amount("1e999")
    Traceback (most recent call last):
    gpushare.domain.quantity.NotAQuantity: it is more than 2^63-1, which is the most
    """
    if parse_mebibytes(value) > _MOST_MIB:
        raise NotAQuantity("it is more than 2^63-1, which is the most")


def _check(pod: Reader) -> None:
    metadata = pod.optional_object("metadata")
    metadata.optional_text("namespace")
    for key in ("labels", "annotations"):
        metadata.optional_object(key).texts("")
    spec = pod.object("spec")
    if not spec.objects("containers"):
        raise Malformed(spec.path("containers"), "must name at least one")
    for key in ("initContainers", "containers"):
        for container in spec.optional_objects(key):
            _check_resources(container.optional_object("resources"))
    _check_resources(spec.optional_object("resources"))
    _check_amounts(spec.optional_object("overhead"))
    spec.optional_object("nodeSelector").texts("")
    for toleration in spec.optional_objects("tolerations"):
        for key in ("key", "value", "effect"):
            toleration.optional_text(key)
        _one_of(toleration, "operator", _TOLERATES)
    affinity = spec.optional_object("affinity").optional_object("nodeAffinity")
    for term in affinity.optional_object(_REQUIRED).optional_objects(
        "nodeSelectorTerms"
    ):
        for key in ("matchExpressions", "matchFields"):
            for expression in term.optional_objects(key):
                _check_expression(expression)


def _check_resources(resources: Reader) -> None:
    for part in ("requests", "limits"):
        _check_amounts(resources.optional_object(part))


def _check_amounts(amounts: Reader) -> None:
    for name, value in amounts.raw.items():
        if name in (names.MEMORY, names.CORE):
            # The extender has better messages for these.
            continue
        try:
            check_amount(value)
        except NotAQuantity as error:
            raise Malformed(
                amounts.path(name),
                f'is "{clean_text(str(value))}", but {error}; give one such as 4, '
                "500m or 16Gi",
            ) from error


def _check_expression(expression: Reader) -> None:
    expression.text("key")
    operator = _one_of(expression, "operator", _OPERATORS)
    values = expression.raw.get("values") or []
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise Malformed(expression.path("values"), "must be a list of strings")
    if operator in ("Gt", "Lt") and (len(values) != 1 or not is_number(values[0])):
        raise Malformed(
            expression.path("values"),
            f"is {clean_text(str(values))}; {operator} takes one whole number",
        )


def _one_of(reader: Reader, key: str, allowed: tuple[str, ...]) -> str:
    value = reader.optional_text(key)
    if value not in allowed:
        known = ", ".join(filter(None, allowed))
        problem = f'is "{clean_text(value)}"; known are {known}'
        raise Malformed(reader.path(key), problem)
    return value
