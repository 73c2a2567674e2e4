"""What the API server insists on and fills in before it stores a new object. Pure.

The sources are Kubernetes 1.36: ``pkg/registry/core/pod/strategy.go`` (the status of a
new pod) and ``pkg/apis/core/v1/defaults.go`` (requests from limits).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Invalid
from gpushare.kube.fields import Malformed, Reader

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.:]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Shape:
    """How a collection's objects call themselves."""

    api_version: str
    name: str
    namespaced: bool = True
    status_apart: bool = True
    """Status is written through the subresource ``status`` alone."""


SHAPES: Mapping[Kind, Shape] = {
    Kind.PODS: Shape("v1", "Pod"),
    Kind.NODES: Shape("v1", "Node", namespaced=False),
    Kind.EVENTS: Shape("v1", "Event", status_apart=False),
    Kind.BUDGETS: Shape("policy/v1", "PodDisruptionBudget"),
}


def timestamp(moment: datetime) -> str:
    """Give a moment as the API writes it, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def created(kind: Kind, body: Json, uid: str, moment: datetime) -> Json:
    """Make a new object of what a user sent; ``Invalid`` says what is wrong."""
    try:
        metadata = dict(Reader(body).object("metadata").raw)
        name = metadata.get("name") or _generated(metadata, uid)
    except Malformed as error:
        raise Invalid(str(error)) from error
    metadata |= {"name": name, "uid": uid, "creationTimestamp": timestamp(moment)}
    metadata.pop("deletionTimestamp", None)
    metadata.pop("resourceVersion", None)
    if SHAPES[kind].namespaced:
        metadata["namespace"] = metadata.get("namespace") or "default"
    else:
        metadata.pop("namespace", None)
    thing = {**named(kind, body), "metadata": metadata}
    check(kind, thing)
    if kind is Kind.PODS:
        thing["spec"] = with_requests(thing["spec"])
        thing["status"] = {"phase": "Pending"}
    return thing


def check(kind: Kind, thing: Json) -> None:
    """Raise ``Invalid`` for a shape that no typed API would let through."""
    try:
        metadata = Reader(thing).object("metadata")
        _check_name(metadata, "name")
        if metadata.optional_text("namespace"):
            _check_name(metadata, "namespace")
        metadata.optional_object("labels").texts("")
        metadata.optional_object("annotations").texts("")
        status = Reader(thing).optional_object("status")
        for key in ("conditions", "containerStatuses", "initContainerStatuses"):
            status.optional_objects(key)
        if kind is Kind.PODS:
            _check_pod(Reader(thing).object("spec"))
    except Malformed as error:
        raise Invalid(str(error)) from error


def named(kind: Kind, thing: Json) -> Json:
    """Give the object with the ``apiVersion`` and ``kind`` of its collection."""
    shape = SHAPES[kind]
    return {**thing, "apiVersion": shape.api_version, "kind": shape.name}


def containers(spec: Reader) -> Iterator[Reader]:
    """Read a pod's containers, init containers first."""
    for key in ("initContainers", "containers"):
        yield from spec.optional_objects(key)


def with_requests(spec: Json) -> Json:
    """Give a pod's spec with requests, where missing, from limits; all as text."""
    return spec | {
        key: [_with_requests(container) for container in spec[key]]
        for key in ("initContainers", "containers")
        if spec.get(key)
    }


def _with_requests(container: Json) -> Json:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    asked = {"limits": limits, "requests": {**limits, **requests}}
    texts = {part: {k: str(v) for k, v in asked[part].items()} for part in asked}
    told = {part: amounts for part, amounts in texts.items() if amounts}
    return container | ({"resources": resources | told} if told else {})


def _check_name(metadata: Reader, key: str) -> None:
    if not _NAME.fullmatch(metadata.text(key)):
        raise Malformed(metadata.path(key), f"{metadata.raw[key]!r} is no name")


def _generated(metadata: Json, uid: str) -> str:
    prefix = Reader(metadata, "metadata").optional_text("generateName")
    if not prefix:
        raise Malformed("metadata.name", "name or generateName is required")
    return f"{prefix}{uid[-5:]}"


def _check_pod(spec: Reader) -> None:
    if not spec.objects("containers"):
        raise Malformed(spec.path("containers"), "must name at least one")
    for container in containers(spec):
        container.text("name")
        resources = container.optional_object("resources")
        resources.optional_object("requests")
        resources.optional_object("limits")
