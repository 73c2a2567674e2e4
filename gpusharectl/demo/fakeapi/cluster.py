"""An API server in memory, for the demo, the simulator and tests.

It implements the rules of a real API server that gpushare's processes rely on. One
contract suite (``tests/contract/test_cluster.py``) tests both.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import orjson

from gpushare.kube.cluster import (
    Json,
    Kind,
    ListPage,
    PodTarget,
    WatchEvent,
    patch_of_marks,
    patch_of_taints,
    pod_event,
)
from gpushare.kube.errors import AlreadyExists, NotFound
from gpushare.kube.names import COMPONENT
from gpusharectl.demo.fakeapi import rules
from gpusharectl.demo.fakeapi.rules import merge_patch, with_kind
from gpusharectl.demo.fakeapi.store import (
    Key,
    Selector,
    Store,
    Stored,
    StoredChange,
    stamped,
    start_of,
)

HISTORY = 50_000
"""Changes kept of each collection; the limit bounds a long simulation's memory."""


def _events(changes: list[StoredChange], selector: Selector) -> Iterator[WatchEvent]:
    """Yield the changes as a watch with this selector sees them."""
    for change in changes:
        was = change.before is not None and change.before.chosen(selector)
        if change.after is not None and change.after.chosen(selector):
            yield WatchEvent("MODIFIED" if was else "ADDED", change.after.parsed())
        elif change.before is not None and was:
            last = stamped(change.before.parsed(), change.version)
            yield WatchEvent("DELETED", last)


def _bookmark(kind: Kind, version: int) -> WatchEvent:
    return WatchEvent("BOOKMARK", stamped(with_kind(kind, {"metadata": {}}), version))


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class Embedded:
    """``Cluster`` in memory. It is thread-safe, and returns copies of its objects.

    ``bookmark_every_s`` is the interval of bookmarks; the last one comes just before
    the watch's end. Namespaces need not be created.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
        bookmark_every_s: float = 1.0,
        history: int = HISTORY,
    ) -> None:
        self._now = now
        self._clock = clock
        self._new_uid = new_uid
        self._bookmark_every_s = bookmark_every_s
        self._store = Store(history)

    def list_page(
        self,
        kind: Kind,
        *,
        limit: int,
        continue_token: str = "",
        field_selector: str = "",
        label_selector: str = "",
    ) -> ListPage:
        """Read one page; all pages have one version. ``limit`` 0 is no limit."""
        selector = Selector.parse(kind, field_selector, label_selector)
        start = start_of(continue_token)
        listed = self._store.slice(kind, selector, limit, start)
        items = tuple(stored.parsed() for stored in listed.items)
        return ListPage(items, str(listed.version), listed.token)

    def watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        timeout_s: float,
        field_selector: str = "",
        label_selector: str = "",
    ) -> Iterator[WatchEvent]:
        """Follow changes. Errors in the arguments are raised at once.

        Version ``""`` or ``"0"`` begins with all objects, as ``ADDED``.
        """
        selector = Selector.parse(kind, field_selector, label_selector)
        begin = self._store.begin(kind, selector, resource_version)
        return self._follow(kind, selector, timeout_s, *begin)

    def _follow(
        self,
        kind: Kind,
        selector: Selector,
        timeout_s: float,
        first: list[Stored],
        version: int,
    ) -> Iterator[WatchEvent]:
        """Yield what is there, then the changes after a version; ``Gone`` if too old.

        Bookmarks come at their interval, also between events, and just before the end.
        """
        end = self._clock() + timeout_s
        due = self._clock() + self._bookmark_every_s
        yield from (WatchEvent("ADDED", stored.parsed()) for stored in first)
        while True:
            now = self._clock()
            if now >= min(due, end):
                yield _bookmark(kind, version)
                if now >= end:
                    return
                due = now + self._bookmark_every_s
            wait_s = max(0.0, min(due, end) - self._clock())
            changes, version = self._store.since(kind, version, wait_s)
            yield from _events(changes, selector)

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        return _present(kind, name, self._store.read(kind, _key(kind, namespace, name)))

    def create(self, kind: Kind, body: Json, *, dry_run: bool = False) -> Json:
        """Store a new object and return it; ``AlreadyExists``, ``Invalid``.

        A pod is ``Pending`` whatever its status says; its requests default to its
        limits. ``dry_run`` stores nothing.
        """
        copy = orjson.loads(orjson.dumps(body))
        new = rules.new_object(kind, copy, self._new_uid(), self._now())
        metadata = new["metadata"]

        def rule(current: Json | None) -> Json:
            if current is not None:
                raise AlreadyExists(f'{kind} "{metadata["name"]}" already exists')
            return new

        key = _key(kind, metadata.get("namespace", ""), metadata["name"])
        if dry_run:
            return rule(self._store.read(kind, key))
        return self._store.write(kind, key, rule)

    def replace(self, kind: Kind, body: Json, *, subresource: str = "") -> Json:
        """Replace the object of the same name.

        ``uid`` and ``resourceVersion`` in it, if any, are preconditions: ``Conflict``.
        """
        rules.check_object(kind, body)
        metadata = body["metadata"]
        return self._change(
            kind, metadata, metadata["name"], lambda _: body, subresource
        )

    def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        patch: Json,
        *,
        subresource: str = "",
        strategic: bool = False,
    ) -> Json:
        """Merge a patch into an object and return the object.

        ``metadata.uid`` and ``metadata.resourceVersion`` in the patch are
        preconditions: ``Conflict``. ``subresource="status"`` writes the status, which
        is the only way for pods and nodes.
        """
        meant = patch.get("metadata")
        wanted = meant if isinstance(meant, dict) else {}
        return self._change(
            kind,
            {**wanted, "namespace": namespace},
            name,
            lambda before: merge_patch(before, patch, strategic=strategic),
            subresource,
        )

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        grace_period_s: int | None = None,
        uid: str = "",
    ) -> Json:
        """Delete an object and return its last state; ``NotFound``, ``Conflict``.

        A bound pod with a grace period only gets its deletion timestamp. kubelet later
        deletes it with grace 0. None is the pod's own grace period, 30 s by default.
        """

        def rule(current: Json | None) -> Json | None:
            stored = _present(kind, name, current)
            rules.check_precondition(stored, uid)
            if kind is not Kind.PODS:
                return None
            return rules.terminating_pod(stored, grace_period_s, self._now())

        return self._store.write(kind, _key(kind, namespace, name), rule)

    def bind(
        self,
        pod: PodTarget,
        node: str,
        annotations: Mapping[str, str],
        *,
        timeout_s: float = 0.0,  # noqa: ARG002
    ) -> None:
        def rule(current: Json | None) -> Json:
            stored = _present(Kind.PODS, pod.name, current)
            rules.check_precondition(stored, pod.uid)
            return rules.bound_pod(stored, node, annotations, self._now())

        self._store.write(Kind.PODS, (pod.namespace, pod.name), rule)

    def annotate(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        self.patch(kind, namespace, name, patch_of_marks(annotations, labels))

    def set_taints(
        self, node: str, taints: Sequence[Json], resource_version: str
    ) -> None:
        self.patch(Kind.NODES, "", node, patch_of_taints(taints, resource_version))

    def evict(self, pod: PodTarget) -> None:
        stored_pod = self.get(Kind.PODS, pod.namespace, pod.name)
        rules.check_precondition(stored_pod, pod.uid)
        if not rules.spares_budgets(stored_pod):
            budgets = self.list_page(Kind.BUDGETS, limit=0).items
            covering = rules.covering_budget(stored_pod, budgets)
            if covering is not None:
                name = covering["metadata"]["name"]

                def rule(current: Json | None) -> Json:
                    budget = _present(Kind.BUDGETS, name, current)
                    return rules.spent_budget(budget, stored_pod, self._now())

                self._store.write(Kind.BUDGETS, (pod.namespace, name), rule)
        self.delete(Kind.PODS, pod.namespace, pod.name, uid=pod.uid)

    def event(
        self,
        pod: PodTarget,
        *,
        kind: str,
        reason: str,
        message: str,
        component: str = COMPONENT,
        host: str = "",
    ) -> None:
        source = {"component": component, "host": host}
        body = pod_event(pod, kind, reason, message, source, self._now())
        self.create(Kind.EVENTS, body)

    def compact(self) -> None:
        """Drop old versions: their watches and pages get ``Gone``."""
        self._store.compact()

    def _change(
        self,
        kind: Kind,
        wanted: Json,
        name: str,
        change: Callable[[Json], Json],
        subresource: str,
    ) -> Json:
        """Change an object; ``wanted`` is metadata with namespace and preconditions."""
        uid, version = wanted.get("uid", ""), wanted.get("resourceVersion", "")

        def rule(current: Json | None) -> Json:
            before = _present(kind, name, current)
            rules.check_precondition(before, uid, version)
            return rules.updated_object(kind, before, change(before), subresource)

        key = _key(kind, wanted.get("namespace", ""), name)
        return self._store.write(kind, key, rule)


def _key(kind: Kind, namespace: str, name: str) -> Key:
    return (namespace if kind.resource.namespaced else "", name)


def _present(kind: Kind, name: str, stored: Json | None) -> Json:
    if stored is None:
        raise NotFound(f'{kind} "{name}" not found')
    return stored
