"""A cluster in memory, with the API server's own rules for versions and bindings.

It ships, since ``demo`` and ``simulate`` live on it; the contract suite holds it to
what a real kube-apiserver does (decision 0012).
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from itertools import count
from typing import Any

from gpushare.kube.cluster import Json, Kind, Page, Target, WatchEvent
from gpushare.kube.errors import Conflict, Gone, Invalid
from gpushare.kube.selectors import by_fields
from gpushare.kube.store import Change, Key, Store, as_event

_BOOKMARK_S = 10.0
_GRACE_S = 30
_KINDS = {
    Kind.PODS: "Pod",
    Kind.NODES: "Node",
    Kind.EVENTS: "Event",
    Kind.BUDGETS: "PodDisruptionBudget",
}


def utc_now() -> datetime:
    """Give the time, for those who hand in no clock."""
    return datetime.now(UTC)


class Embedded:
    """``Cluster`` in memory, and the writes that its owner makes."""

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = utc_now,
        bookmark_s: float = _BOOKMARK_S,
    ) -> None:
        self._store = Store()
        self._now = now
        self._bookmark_s = bookmark_s
        self._event_numbers = count(1)
        self._pages: dict[str, tuple[tuple[Json, ...], str]] = {}

    def list_page(
        self,
        kind: Kind,
        *,
        limit: int,
        continue_token: str = "",
        field_selector: str = "",
    ) -> Page:
        """Read one page; see ``Cluster``. All pages come from the first one's list."""
        if continue_token:
            left, version = self._continued(continue_token)
        else:
            selects = by_fields(kind, field_selector)
            found, number = self._store.list(kind)
            left, version = tuple(filter(selects, found)), str(number)
        page, rest = (left[:limit], left[limit:]) if limit else (left, ())
        token = ""
        if rest:
            token = f"{version}.{uuid.uuid4().hex}"
            self._pages[token] = (rest, version)
        return Page(page, version, token)

    def watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        timeout_s: float,
        field_selector: str = "",
    ) -> Iterator[WatchEvent]:
        """Follow changes; see ``Cluster``."""
        selects = by_fields(kind, field_selector)
        since = _version(resource_version)
        self._store.insist(since)
        for news in self._store.follow(kind, since, timeout_s, self._bookmark_s):
            if isinstance(news, Change):
                event = as_event(news, selects)
                if event is not None:
                    yield event
            else:
                metadata = {"resourceVersion": str(news), "creationTimestamp": None}
                yield WatchEvent(
                    "BOOKMARK",
                    {"kind": _KINDS[kind], "apiVersion": "v1", "metadata": metadata},
                )

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Read one object; see ``Cluster``."""
        return self._store.read((kind, namespace, name))

    def bind(
        self,
        pod: Target,
        node: str,
        annotations: Mapping[str, str],
        *,
        timeout_s: float,  # noqa: ARG002
    ) -> None:
        """Bind and annotate in one write; see ``Cluster``.

        The rules and their texts: ``pkg/registry/core/pod/storage`` (contracts 1.5).
        """
        key = (Kind.PODS, pod.namespace, pod.name)
        with self._store.changed:
            found = self._store.read_(key)
            _precondition(found, "uid", pod.uid)
            if found["spec"].get("nodeName"):
                there = found["spec"]["nodeName"]
                raise Conflict(f'pod {pod.name} is already assigned to node "{there}"')
            if "deletionTimestamp" in found["metadata"]:
                raise Conflict(f"pod {pod.name} is being deleted, cannot be assigned")
            found["spec"]["nodeName"] = node
            found["metadata"].setdefault("annotations", {}).update(annotations)
            self._set_condition(found, "PodScheduled")
            self._store.put_(key, found)

    def annotate(
        self, kind: Kind, namespace: str, name: str, annotations: Mapping[str, str]
    ) -> None:
        """Merge annotations; see ``Cluster``."""
        patch = {"metadata": {"annotations": dict(annotations)}}
        self.patch(kind, namespace, name, patch)

    def event(self, pod: Target, *, kind: str, reason: str, message: str) -> None:
        """Write an event about a pod; see ``Cluster``."""
        involved = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        }
        now = self._stamp()
        name = f"{pod.name}.{next(self._event_numbers):06d}"
        self.create(
            Kind.EVENTS,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"namespace": pod.namespace, "name": name},
                "involvedObject": involved,
                "type": kind,
                "reason": reason,
                "message": message,
                "source": {"component": "default-scheduler"},
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
        )

    def create(self, kind: Kind, thing: Json) -> Json:
        """Add an object, and give it as it was stored; ``Conflict`` if it is there."""
        made = deepcopy(thing)
        metadata = made.setdefault("metadata", {})
        if kind is not Kind.NODES:
            metadata.setdefault("namespace", "default")
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise Invalid("metadata.name: name or generateName is required")
            metadata["name"] = f"{metadata['generateName']}{uuid.uuid4().hex[:5]}"
        metadata["creationTimestamp"] = self._stamp()
        made.setdefault("apiVersion", "policy/v1" if kind is Kind.BUDGETS else "v1")
        made.setdefault("kind", _KINDS[kind])
        if kind is Kind.PODS:
            _default_pod(made)
        with self._store.changed:
            return self._store.add_(_key(kind, made), made, str(uuid.uuid4()))

    def replace(self, kind: Kind, thing: Json, *, subresource: str = "") -> Json:
        """Put an object in the place of the one of that name; versions are checked."""
        key = _key(kind, thing)
        with self._store.changed:
            return self._update_(key, deepcopy(thing), subresource)

    def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        patch: Json,
        *,
        subresource: str = "",
    ) -> Json:
        """Merge a JSON merge patch (RFC 7386) into an object.

        A ``resourceVersion`` or ``uid`` in it is a precondition: ``Conflict``.
        """
        key = (kind, namespace, name)
        with self._store.changed:
            merged = merge(self._store.read_(key), patch)
            return self._update_(key, merged, subresource)

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        grace_period_s: int | None = None,
        uid: str = "",
    ) -> Json:
        """Delete an object, and give its last state.

        A bound pod that is given a grace only gets a deletion timestamp, and goes with
        a second call of grace 0, as kubelet makes it.
        """
        key = (kind, namespace, name)
        with self._store.changed:
            found = self._store.read_(key)
            if uid:
                _precondition(found, "uid", uid)
            grace_s = self._grace_s(found, grace_period_s) if kind is Kind.PODS else 0
            if not grace_s:
                return self._store.remove_(key)
            found["metadata"].setdefault("deletionTimestamp", self._stamp())
            found["metadata"]["deletionGracePeriodSeconds"] = grace_s
            return self._store.put_(key, found)

    def compact(self) -> None:
        """Forget the history, as etcd does at times; older versions are ``Gone``."""
        self._store.compact()
        self._pages.clear()

    def _update_(self, key: Key, wanted: Json, subresource: str) -> Json:
        """Write over an object, of which only one half may be meant."""
        found = self._store.read_(key)
        for field in ("resourceVersion", "uid"):
            asked = wanted["metadata"].get(field)
            if asked:
                _precondition(found, field, asked)
        if subresource == "status":
            found["status"] = wanted.get("status", {})
            return self._store.put_(key, found)
        if key[0] is Kind.PODS and _resources(found) != _resources(wanted):
            raise Invalid("spec: Forbidden: resources of a pod cannot be changed")
        kept = ("uid", "creationTimestamp", "deletionTimestamp", "namespace", "name")
        for field in (*kept, "deletionGracePeriodSeconds", "resourceVersion"):
            if field in found["metadata"]:
                wanted["metadata"][field] = found["metadata"][field]
        if key[0] is Kind.PODS:
            wanted["status"] = found.get("status", {})
        return self._store.put_(key, wanted)

    def _continued(self, token: str) -> tuple[tuple[Json, ...], str]:
        found = self._pages.pop(token, None)
        if found is None:
            raise Gone("the provided continue parameter is too old")
        return found

    def _grace_s(self, pod: Json, asked: int | None) -> int:
        if not pod["spec"].get("nodeName"):
            return 0
        if asked is not None:
            return asked
        return int(pod["spec"].get("terminationGracePeriodSeconds", _GRACE_S))

    def _set_condition(self, pod: Json, kind: str) -> None:
        status = pod.setdefault("status", {})
        others = [c for c in status.get("conditions", []) if c["type"] != kind]
        new = {"type": kind, "status": "True", "lastTransitionTime": self._stamp()}
        status["conditions"] = [*others, new]

    def _stamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")


def merge(thing: Any, patch: Any) -> Any:  # noqa: ANN401
    """Apply a JSON merge patch: null removes, objects merge, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(thing) if isinstance(thing, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def _key(kind: Kind, thing: Json) -> Key:
    metadata = thing["metadata"]
    namespace = "" if kind is Kind.NODES else metadata.get("namespace", "default")
    return (kind, namespace, metadata["name"])


def _version(text: str) -> int:
    if not text.isdigit():
        raise Invalid(f"resourceVersion: {text!r} is no version")
    return int(text)


def _precondition(found: Json, field: str, asked: str) -> None:
    has = found["metadata"].get(field)
    if has != asked:
        raise Conflict(
            f"Precondition failed: {field} in precondition: {asked}, in object: {has}"
        )


def _default_pod(pod: Json) -> None:
    """Fill in what the API server fills in, as far as anybody here looks."""
    spec = pod.setdefault("spec", {})
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("priority", 0)
    pod["status"] = {"phase": "Pending", **pod.get("status", {})}
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        if limits:
            asked = {**limits, **(resources.get("requests") or {})}
            resources["requests"] = {key: str(value) for key, value in asked.items()}
            resources["limits"] = {key: str(value) for key, value in limits.items()}


def _resources(pod: Json) -> list[object]:
    containers = pod.get("spec", {}).get("containers", ())
    return [container.get("resources") for container in containers]
