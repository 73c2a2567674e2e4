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
    Target,
    WatchEvent,
    marked,
    pod_event,
    tainted,
)
from gpushare.kube.errors import AlreadyExists, NotFound
from gpushare.kube.names import COMPONENT
from gpusharectl.demo.fakeapi import rules
from gpusharectl.demo.fakeapi.rules import merge, named
from gpusharectl.demo.fakeapi.selectors import Selector
from gpusharectl.demo.fakeapi.store import Change, Key, Store, Stored, stamped, start_of

HISTORY = 50_000
"""Changes kept of each collection; the limit bounds a long simulation's memory."""


def _events(changes: list[Change], selector: Selector) -> Iterator[WatchEvent]:
    """Yield the changes as a watch with this selector sees them."""
    for change in changes:
        was = change.before is not None and change.before.chosen(selector)
        if change.after is not None and change.after.chosen(selector):
            yield WatchEvent("MODIFIED" if was else "ADDED", change.after.parsed())
        elif change.before is not None and was:
            last = stamped(change.before.parsed(), change.version)
            yield WatchEvent("DELETED", last)


def _bookmark(kind: Kind, version: int) -> WatchEvent:
    return WatchEvent("BOOKMARK", stamped(named(kind, {"metadata": {}}), version))


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
        found = self._store.slice(kind, selector, limit, start)
        items = tuple(one.parsed() for one in found.items)
        return ListPage(items, str(found.version), found.token)

    def watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        timeout_s: float,
        field_selector: str = "",
        label_selector: str = "",
    ) -> Iterator[WatchEvent]:
        """Follow changes; see ``Cluster``. Errors in the arguments are raised at once.

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
        there: list[Stored],
        version: int,
    ) -> Iterator[WatchEvent]:
        """Yield what is there, then the changes after a version; ``Gone`` if too old.

        Bookmarks come at their interval, also between events, and just before the end.
        """
        end = self._clock() + timeout_s
        due = self._clock() + self._bookmark_every_s
        yield from (WatchEvent("ADDED", one.parsed()) for one in there)
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
        """Read one object; see ``Cluster``."""
        return _present(kind, name, self._store.read(kind, _key(kind, namespace, name)))

    def create(self, kind: Kind, body: Json, *, dry_run: bool = False) -> Json:
        """Store a new object and return it; ``AlreadyExists``, ``Invalid``.

        A pod is ``Pending`` whatever its status says; its requests default to its
        limits. ``dry_run`` stores nothing.
        """
        copy = orjson.loads(orjson.dumps(body))
        new = rules.created(kind, copy, self._new_uid(), self._now())
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
        rules.check(kind, body)
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
            lambda before: merge(before, patch, strategic=strategic),
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
            found = _present(kind, name, current)
            rules.precondition(found, uid)
            if kind is not Kind.PODS:
                return None
            return rules.terminating(found, grace_period_s, self._now())

        return self._store.write(kind, _key(kind, namespace, name), rule)

    def bind(
        self,
        pod: Target,
        node: str,
        annotations: Mapping[str, str],
        *,
        timeout_s: float = 0.0,  # noqa: ARG002
    ) -> None:
        """Bind and annotate in one write; see ``Cluster``."""

        def rule(current: Json | None) -> Json:
            found = _present(Kind.PODS, pod.name, current)
            rules.precondition(found, pod.uid)
            return rules.bound(found, node, annotations, self._now())

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
        """Merge annotations; see ``Cluster``."""
        self.patch(kind, namespace, name, marked(annotations, labels))

    def set_taints(
        self, node: str, taints: Sequence[Json], resource_version: str
    ) -> None:
        """Replace the taints; see ``Cluster``."""
        self.patch(Kind.NODES, "", node, tainted(taints, resource_version))

    def evict(self, pod: Target) -> None:
        """Delete by the Eviction API; see ``Cluster``."""
        found = self.get(Kind.PODS, pod.namespace, pod.name)
        rules.precondition(found, pod.uid)
        if not rules.spares_budgets(found):
            budgets = self.list_page(Kind.BUDGETS, limit=0).items
            covering = rules.budget_over(found, budgets)
            if covering is not None:
                name = covering["metadata"]["name"]

                def rule(current: Json | None) -> Json:
                    there = _present(Kind.BUDGETS, name, current)
                    return rules.spent(there, found, self._now())

                self._store.write(Kind.BUDGETS, (pod.namespace, name), rule)
        self.delete(Kind.PODS, pod.namespace, pod.name, uid=pod.uid)

    def event(
        self,
        pod: Target,
        *,
        kind: str,
        reason: str,
        message: str,
        component: str = COMPONENT,
        host: str = "",
    ) -> None:
        """Write an event about a pod; see ``Cluster``."""
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
            rules.precondition(before, uid, version)
            return rules.updated(kind, before, change(before), subresource)

        key = _key(kind, wanted.get("namespace", ""), name)
        return self._store.write(kind, key, rule)


def _key(kind: Kind, namespace: str, name: str) -> Key:
    return (namespace if kind.resource.namespaced else "", name)


def _present(kind: Kind, name: str, found: Json | None) -> Json:
    if found is None:
        raise NotFound(f'{kind} "{name}" not found')
    return found
