"""Make what a real kubectl reads beside objects: discovery, and rows to print. Pure.

Discovery is in its old form, which every kubectl accepts. OpenAPI has only what kubectl
asks before it sends a body: whether a kind's PATCH takes ``fieldValidation``
(``k8s.io/cli-runtime/pkg/resource/query_param_verifier_v3.go``). The columns and words
of rows are those of ``pkg/printers/internalversion/printers.go`` (Kubernetes 1.36);
columns of priority 1 are shown with ``-o wide``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from gpushare.kube.cluster import Json, Kind, version_path
from gpushare.kube.facts import TERMINAL
from gpushare.kube.json_reader import Reader
from gpusharectl.demo.fakeapi.rules import STATUS_APART
from gpusharectl.output import UNKNOWN, format_age

VERSION = "v1.36.3"
"""The Kubernetes version whose behaviour the demo shows."""
_SHORT = {Kind.PODS: "po", Kind.NODES: "no", Kind.EVENTS: "ev", Kind.BUDGETS: "pdb"}
"""The short names that kubectl knows; other kinds have none."""
_STATUS = ("get", "patch", "update")
_ALL = ("create", "delete", "get", "list", "patch", "update", "watch")
_VERSIONS = ("v1", "policy/v1", "resource.k8s.io/v1")


def discovery_documents(build: str = "") -> dict[str, Json]:
    """Return every fixed document by its path; ``build`` ends the server's version."""
    groups = [_group(version) for version in _VERSIONS if "/" in version]
    major, minor, _ = VERSION.removeprefix("v").split(".")
    number = {"major": major, "minor": minor, "gitVersion": VERSION + build}
    paths = [version_path(version) for version in _VERSIONS]
    openapi = {path[1:]: {"serverRelativeURL": f"/openapi/v3{path}"} for path in paths}
    return {
        "/version": {**number, "platform": "embedded"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
        **{
            f"/apis/{group['name']}": {"kind": "APIGroup", "apiVersion": "v1", **group}
            for group in groups
        },
        "/openapi/v3": {"paths": openapi},
        **{version_path(version): _resources(version) for version in _VERSIONS},
        **{f"/openapi/v3{version_path(each)}": _openapi(each) for each in _VERSIONS},
    }


def _group(version: str) -> Json:
    name, _, short = version.partition("/")
    known = {"groupVersion": version, "version": short}
    return {"name": name, "versions": [known], "preferredVersion": known}


def _resources(version: str) -> Json:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": list(_entries(version)),
    }


def _entries(version: str) -> Iterator[Json]:
    for kind in _kinds(version):
        name, namespaced = kind.resource.kind, kind.resource.namespaced
        yield _entry(kind, name, _ALL, _SHORT.get(kind, ""), namespaced=namespaced)
        if kind in STATUS_APART:
            yield _entry(f"{kind}/status", name, _STATUS, namespaced=namespaced)
    if version == "v1":
        yield _entry("pods/binding", "Binding", ("create",))
        yield _entry("namespaces", "Namespace", ("get", "list"), "ns", namespaced=False)


def _kinds(version: str) -> Iterator[Kind]:
    return (kind for kind in Kind if kind.resource.api_version == version)


def _entry(
    name: str,
    kind: str,
    verbs: tuple[str, ...],
    short: str = "",
    *,
    namespaced: bool = True,
) -> Json:
    entry: Json = {
        "name": name,
        "singularName": "" if "/" in name else kind.lower(),
        "namespaced": namespaced,
        "kind": kind,
        "verbs": list(verbs),
    }
    return entry | ({"shortNames": [short]} if short else {})


def _openapi(version: str) -> Json:
    group, _, short = version.rpartition("/")
    field = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    paths = {}
    for kind in _kinds(version):
        named = {"group": group, "version": short, "kind": kind.resource.kind}
        patch = {
            "parameters": [field],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-group-version-kind": named,
        }
        paths[f"{kind.resource.collection()}/{{name}}"] = {"patch": patch}
    info = {"title": "gpusharectl demo", "version": VERSION}
    return {"openapi": "3.0.0", "info": info, "paths": paths}


def ready_of(pod: Reader) -> str:
    """Return how many of the pod's containers are ready: ``1/2``."""
    total = len(pod.object("spec").optional_objects("containers"))
    containers = _statuses(pod, "containerStatuses")
    ready = sum(
        status.optional_boolean("ready", default=False) for status in containers
    )
    return f"{ready}/{total}"


def restarts_of(pod: Reader) -> str:
    """Return how often the pod's containers were restarted."""
    containers = _statuses(pod, "containerStatuses")
    return str(sum(status.optional_integer("restartCount") for status in containers))


def pod_status(pod: Reader) -> str:
    """Return the pod's STATUS, such as ``ContainerCreating`` or ``Terminating``."""
    status = pod.optional_object("status")
    phase = status.optional_text("phase")
    leaving = pod.object("metadata").raw.get("deletionTimestamp")
    if leaving and phase not in TERMINAL:
        return "Terminating"
    if pod.object("spec").raw.get("schedulingGates"):
        return "SchedulingGated"
    reason = status.optional_text("reason") or phase
    return _initializing(pod) or _containers(pod, reason) or "Unknown"


def _initializing(pod: Reader) -> str:
    """Return the status of the first init container that is not done, if any."""
    inits = _statuses(pod, "initContainerStatuses")
    for done, status in enumerate(inits):
        state = status.optional_object("state")
        ended = state.optional_object("terminated")
        if ended.raw and not ended.optional_integer("exitCode"):
            continue
        if status.optional_boolean("started", default=False) and not ended.raw:
            continue
        reason = _reason(state)
        if reason and reason != "PodInitializing":
            return f"Init:{reason}"
        return f"Init:{done}/{len(inits)}"
    return ""


def _containers(pod: Reader, reason: str) -> str:
    """Return the reason of the first container that has one, else the pod's own."""
    running = False
    for status in reversed(_statuses(pod, "containerStatuses")):
        state = status.optional_object("state")
        reason = _reason(state) or reason
        ready = status.optional_boolean("ready", default=False)
        running = running or (ready and bool(state.raw.get("running")))
    return "Running" if reason == "Completed" and running else reason


def _reason(state: Reader) -> str:
    ended = state.optional_object("terminated")
    if ended.raw:
        code = f"ExitCode:{ended.optional_integer('exitCode')}"
        return ended.optional_text("reason") or code
    return state.optional_object("waiting").optional_text("reason")


def _statuses(pod: Reader, key: str) -> list[Reader]:
    return pod.optional_object("status").optional_objects(key)


NONE = "<none>"
Cells = tuple[str | int, ...]


def make_table(
    kind: str,
    objects: Iterable[Json],
    metadata: Json,
    now: datetime,
    *,
    whole: bool = False,
) -> Json:
    """Return a Table of objects of this plural; each row has the object's metadata.

    ``whole``: each row has the whole object, which kubectl asks for to sort.
    """
    cells, *names = COLUMNS.get(kind, _OTHERS)
    version = {"apiVersion": "meta.k8s.io/v1"}
    partial = {"kind": "PartialObjectMetadata", **version}
    return {
        "kind": "Table",
        **version,
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": name,
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": "",
                "priority": priority,
            }
            for priority, listed in enumerate(names)
            for name in listed.split(", ")
            if name
        ],
        "rows": [
            {
                "cells": list(cells(Reader(thing), now)),
                "object": thing
                if whole
                else {**partial, "metadata": thing["metadata"]},
            }
            for thing in objects
        ],
    }


def _born(thing: Reader, now: datetime) -> str:
    return format_age(thing.object("metadata").optional_text("creationTimestamp"), now)


def _name(thing: Reader) -> str:
    return thing.object("metadata").text("name")


def _pod(pod: Reader, now: datetime) -> Cells:
    spec, status = pod.object("spec"), pod.optional_object("status")
    return (
        _name(pod),
        ready_of(pod),
        pod_status(pod),
        restarts_of(pod),
        _born(pod, now),
        status.optional_text("podIP") or NONE,
        spec.optional_text("nodeName") or NONE,
        status.optional_text("nominatedNodeName") or NONE,
        NONE,
    )


def _node(node: Reader, now: datetime) -> Cells:
    info = node.optional_object("status").optional_object("nodeInfo")
    return (
        _name(node),
        _node_status(node),
        _roles(node),
        _born(node, now),
        info.optional_text("kubeletVersion"),
        _address(node, "InternalIP"),
        _address(node, "ExternalIP"),
        info.optional_text("osImage") or UNKNOWN,
        info.optional_text("kernelVersion") or UNKNOWN,
        info.optional_text("containerRuntimeVersion") or UNKNOWN,
    )


def _node_status(node: Reader) -> str:
    words = [
        "Ready" if condition.optional_text("status") == "True" else "NotReady"
        for condition in node.optional_object("status").optional_objects("conditions")
        if condition.optional_text("type") == "Ready"
    ] or ["Unknown"]
    spec = node.optional_object("spec")
    if spec.optional_boolean("unschedulable", default=False):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _roles(node: Reader) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node.object("metadata").optional_object("labels").texts(prefix)
    return ",".join(sorted(key.removeprefix(prefix) for key in labels)) or NONE


def _address(node: Reader, kind: str) -> str:
    for address in node.optional_object("status").optional_objects("addresses"):
        if address.optional_text("type") == kind:
            return address.optional_text("address")
    return NONE


def _event(event: Reader, now: datetime) -> Cells:
    about = event.optional_object("involvedObject")
    last = event.optional_text("lastTimestamp") or event.optional_text("eventTime")
    return (
        format_age(last, now),
        event.optional_text("type"),
        event.optional_text("reason"),
        f"{about.optional_text('kind').lower()}/{about.optional_text('name')}",
        event.optional_text("message").strip(),
        event.optional_object("source").optional_text("component"),
        event.optional_integer("count") or 1,
        _name(event),
    )


def _namespace(namespace: Reader, now: datetime) -> Cells:
    return _name(namespace), "Active", _born(namespace, now)


def _any(thing: Reader, now: datetime) -> Cells:
    return _name(thing), _born(thing, now)


COLUMNS: Mapping[str, tuple[Callable[[Reader, datetime], Cells], str, str]] = {
    "pods": (
        _pod,
        "Name, Ready, Status, Restarts, Age",
        "IP, Node, Nominated Node, Readiness Gates",
    ),
    "nodes": (
        _node,
        "Name, Status, Roles, Age, Version",
        "Internal-IP, External-IP, OS-Image, Kernel-Version, Container-Runtime",
    ),
    "events": (
        _event,
        "Last Seen, Type, Reason, Object, Message",
        "Source, Count, Name",
    ),
    "namespaces": (_namespace, "Name, Status, Age", ""),
}
"""The cells of each kind, and its columns: always shown, and for ``-o wide`` only."""
_OTHERS = (_any, "Name, Age", "")
