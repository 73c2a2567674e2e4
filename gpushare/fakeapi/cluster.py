"""A cluster in memory, for the demo and the simulator: no processes, no network.

It keeps to the rules of a real API server that the house relies on, and one contract
suite (``tests/contract/test_cluster.py``) holds both to the same behaviour.

Following a store's changes as one who sees only what a selector chooses.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from gpushare.fakeapi import rules
from gpushare.fakeapi import rules as eviction
from gpushare.fakeapi.rules import SHAPES, merge
from gpushare.fakeapi.selectors import Selector
from gpushare.fakeapi.store import Change, Key, Store, Stored, stamped, start_of
from gpushare.kube.cluster import Json, Kind, Page, Target, WatchEvent, pod_event
from gpushare.kube.errors import AlreadyExists, NotFound
from gpushare.kube.names import COMPONENT


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to watch, for how long, and how often to say that all is quiet."""

    kind: Kind
    selector: Selector
    timeout_s: float
    bookmark_every_s: float


def follow(
    store: Store,
    wanted: Wanted,
    there: list[Stored],
    version: int,
    clock: Callable[[], float],
) -> Iterator[WatchEvent]:
    """Tell what is there, then what changes after a version; ``Gone`` if that is lost.

    Bookmarks come at their interval, however much happens, and just before the end.
    """
    end = clock() + wanted.timeout_s
    due = clock() + wanted.bookmark_every_s
    yield from (WatchEvent("ADDED", one.parsed()) for one in there)
    while True:
        now = clock()
        if now >= min(due, end):
            yield _bookmark(wanted.kind, version)
            if now >= end:
                return
            due = now + wanted.bookmark_every_s
        wait_s = max(0.0, min(due, end) - clock())
        changes, version = store.since(wanted.kind, version, wait_s)
        yield from _events(changes, wanted.selector)


def _events(changes: list[Change], selector: Selector) -> Iterator[WatchEvent]:
    """Tell changes as one who sees only what the selector chooses."""
    for change in changes:
        was = change.before is not None and change.before.chosen(selector)
        if change.after is not None and change.after.chosen(selector):
            yield WatchEvent("MODIFIED" if was else "ADDED", change.after.parsed())
        elif change.before is not None and was:
            last = stamped(change.before.parsed(), change.version)
            yield WatchEvent("DELETED", last)


def _bookmark(kind: Kind, version: int) -> WatchEvent:
    shape = SHAPES[kind]
    bare = {"apiVersion": shape.api_version, "kind": shape.name, "metadata": {}}
    return WatchEvent("BOOKMARK", stamped(bare, version))


HISTORY = 50_000
"""Changes kept of each collection, so that a long simulation does not fill memory."""


def utc_now() -> datetime:
    """Return the time of day for timestamps."""
    return datetime.now(UTC)


def random_uid() -> str:
    """Return a UID as the API server does."""
    return str(uuid.uuid4())


class Embedded:
    """``Cluster`` in memory, for any number of threads; what it hands out are copies.

    ``bookmark_every_s`` is how often a quiet watch says so; the last bookmark comes
    just before the watch's end. Namespaces need not be created.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = utc_now,
        clock: Callable[[], float] = time.monotonic,
        new_uid: Callable[[], str] = random_uid,
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
    ) -> Page:
        """Read one page, all pages of a list from one moment; ``limit`` 0 is all."""
        selector = Selector.parse(kind, field_selector, label_selector)
        start = start_of(continue_token)
        found = self._store.slice(kind, selector, limit, start)
        items = tuple(one.parsed() for one in found.items)
        return Page(items, str(found.version), found.token)

    def watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        timeout_s: float,
        field_selector: str = "",
        label_selector: str = "",
    ) -> Iterator[WatchEvent]:
        """Follow changes; see ``Cluster``. Complaints about the arguments come at once.

        Version ``""`` or ``"0"`` begins with what is there, as ``ADDED``.
        """
        selector = Selector.parse(kind, field_selector, label_selector)
        there, version = self._store.begin(kind, selector, resource_version)
        return follow(
            self._store,
            Wanted(kind, selector, timeout_s, self._bookmark_every_s),
            there,
            version,
            self._clock,
        )

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Read one object; see ``Cluster``."""
        return _present(kind, name, self._store.read(kind, _key(kind, namespace, name)))

    def create(self, kind: Kind, body: Json) -> Json:
        """Add an object and give it as stored; ``AlreadyExists``, ``Invalid``.

        A pod begins ``Pending`` whatever its status says, and asks for its limits
        where it has no requests.
        """
        copy = orjson.loads(orjson.dumps(body))
        made = rules.created(kind, copy, self._new_uid(), self._now())
        metadata = made["metadata"]

        def rule(current: Json | None) -> Json:
            if current is not None:
                raise AlreadyExists(f'{kind} "{metadata["name"]}" already exists')
            return made

        key = _key(kind, metadata.get("namespace", ""), metadata["name"])
        return self._store.write(kind, key, rule)

    def replace(self, kind: Kind, body: Json, *, subresource: str = "") -> Json:
        """Write a whole object over the one of its name.

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
        """Merge a patch into an object and give the object.

        ``metadata.uid`` and ``metadata.resourceVersion`` in the patch are
        preconditions: ``Conflict``. ``subresource="status"`` writes the status, which
        pods and nodes let be written in no other way.
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
        """Delete an object and give its last state; ``NotFound``, ``Conflict`` by uid.

        A bound pod with grace only gets its deletion timestamp, and goes when it is
        deleted with grace 0, which is kubelet's part. None is the pod's own grace,
        30 s where it names none.
        """

        def rule(current: Json | None) -> Json | None:
            found = _present(kind, name, current)
            rules.precondition(found, uid)
            if kind is not Kind.PODS:
                return None
            return rules.dying(found, grace_period_s, self._now())

        return self._store.write(kind, _key(kind, namespace, name), rule)

    def bind(
        self,
        pod: Target,
        node: str,
        annotations: Mapping[str, str],
        *,
        timeout_s: float = 0.0,  # noqa: ARG002
    ) -> None:
        """Bind and annotate in one write; see ``Cluster``. It never takes time."""

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
    ) -> None:
        """Merge annotations; see ``Cluster``."""
        body = {"metadata": {"annotations": dict(annotations)}}
        self.patch(kind, namespace, name, body)

    def evict(self, pod: Target) -> None:
        """Delete by the Eviction API; see ``Cluster``."""
        found = self.get(Kind.PODS, pod.namespace, pod.name)
        rules.precondition(found, pod.uid)
        if not eviction.spares_budgets(found):
            budgets = self.list_page(Kind.BUDGETS, limit=0).items
            covering = eviction.budget_over(found, budgets)
            if covering is not None:
                name = covering["metadata"]["name"]

                def rule(current: Json | None) -> Json:
                    there = _present(Kind.BUDGETS, name, current)
                    return eviction.spent(there, found, self._now())

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
        made = pod_event(pod, kind, reason, message, source, self._now())
        self.create(Kind.EVENTS, made)

    def compact(self) -> None:
        """Forget old versions: watches from them and pages of them get ``Gone``."""
        self._store.compact()

    def _change(
        self,
        kind: Kind,
        wanted: Json,
        name: str,
        change: Callable[[Json], Json],
        subresource: str,
    ) -> Json:
        """Change what is there; ``wanted`` is metadata: namespace and preconditions."""
        uid, version = wanted.get("uid", ""), wanted.get("resourceVersion", "")

        def rule(current: Json | None) -> Json:
            before = _present(kind, name, current)
            rules.precondition(before, uid, version)
            return rules.updated(kind, before, change(before), subresource)

        key = _key(kind, wanted.get("namespace", ""), name)
        return self._store.write(kind, key, rule)


def _key(kind: Kind, namespace: str, name: str) -> Key:
    return (namespace if rules.SHAPES[kind].namespaced else "", name)


def _present(kind: Kind, name: str, found: Json | None) -> Json:
    if found is None:
        raise NotFound(f'{kind} "{name}" not found')
    return found
