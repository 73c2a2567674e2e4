"""Objects in memory with resource versions and a history, as etcd has them.

Objects are kept as JSON bytes, so that nobody who was handed one can change the store,
and a watch costs a parse and no deep copy.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Condition

import orjson

from gpushare.kube.cluster import EventType, Json, Kind, WatchEvent
from gpushare.kube.errors import Conflict, Gone, NotFound

Key = tuple[Kind, str, str]
"""Kind, namespace (empty for nodes) and name."""
Selects = Callable[[Json], bool]


@dataclass(frozen=True, slots=True)
class Change:
    """One write: what was there before and is there now; empty bytes for nothing."""

    version: int
    key: Key
    before: bytes
    after: bytes


@dataclass(slots=True)
class Store:
    """Every write gets the next version; watchers read the history after theirs."""

    changed: Condition = field(default_factory=Condition)
    """The one lock; a method that ends in an underscore wants it held."""
    version: int = 0
    _objects: dict[Key, bytes] = field(default_factory=dict)
    _history: list[Change] = field(default_factory=list)
    _oldest: int = 0
    _created: int = 0

    def read(self, key: Key) -> Json:
        """Give an object; ``NotFound``."""
        with self.changed:
            return self.read_(key)

    def read_(self, key: Key) -> Json:
        """Give an object to one who holds the lock; ``NotFound``."""
        found = self._objects.get(key)
        if found is None:
            raise NotFound(f'{key[0]} "{key[2]}" not found')
        return _parsed(found)

    def list(self, kind: Kind) -> tuple[list[Json], int]:
        """Give all objects of a kind, by namespace and name, and the version."""
        with self.changed:
            keys = sorted(key for key in self._objects if key[0] == kind)
            return [_parsed(self._objects[key]) for key in keys], self.version

    def add_(self, key: Key, thing: Json, uid: str) -> Json:
        """Put a new object in; ``Conflict`` when there is one of that name."""
        if key in self._objects:
            raise Conflict(f'{key[0]} "{key[2]}" already exists')
        thing["metadata"]["uid"] = uid
        return self.put_(key, thing)

    def put_(self, key: Key, thing: Json) -> Json:
        """Write an object and wake the watchers; nothing happens if it is the same."""
        before = self._objects.get(key, b"")
        if before and _parsed(before) == thing:
            return thing
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = orjson.dumps(thing)
        self._note(Change(self.version, key, before, self._objects[key]))
        return thing

    def remove_(self, key: Key) -> Json:
        """Take an object out; its last state carries the version of the removal."""
        last = self.read_(key)
        self.version += 1
        last["metadata"]["resourceVersion"] = str(self.version)
        del self._objects[key]
        self._note(Change(self.version, key, orjson.dumps(last), b""))
        return last

    def compact(self) -> None:
        """Forget the history; a watch or page from before now is ``Gone``."""
        with self.changed:
            self._oldest = self.version
            self._history.clear()

    def insist(self, version: int) -> None:
        """Raise ``Gone`` when a version has been compacted away."""
        if version < self._oldest:
            raise Gone(f"too old resource version: {version} ({self._oldest})")

    def follow(
        self, kind: Kind, since: int, timeout_s: float, bookmark_s: float
    ) -> Iterator[Change | int]:
        """Give the changes of a kind after a version, until the time is over.

        A bare number is a bookmark: nothing else has happened up to that version. One
        comes whenever ``bookmark_s`` pass without a change, and one at the end.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self.changed:
                self.insist(since)
                wait = min(bookmark_s, deadline - time.monotonic())
                if self.version == since and wait > 0:
                    self.changed.wait(wait)
                self.insist(since)
                news = [
                    change for change in self._after(since) if change.key[0] == kind
                ]
                since = self.version
            yield from news
            over = time.monotonic() >= deadline
            if over or not news:
                yield since
            if over:
                return

    def _after(self, version: int) -> Iterator[Change]:
        """Walk the end of the history; versions are consecutive."""
        missing = self.version - version
        yield from self._history[len(self._history) - missing :] if missing else ()

    def _note(self, change: Change) -> None:
        self._history.append(change)
        self.changed.notify_all()


def as_event(change: Change, selects: Selects) -> WatchEvent | None:
    """Tell a change as one watcher sees it, through its selector.

    An object that enters a selection is added, one that leaves it is deleted.
    """
    before = _parsed(change.before) if change.before else None
    after = _parsed(change.after) if change.after else None
    was = before is not None and selects(before)
    now = after is not None and selects(after)
    kind: EventType = "MODIFIED" if was and now else "ADDED" if now else "DELETED"
    if not was and not now:
        return None
    thing = after if now else _left(before, after)
    return None if thing is None else WatchEvent(kind, thing)


def _left(before: Json | None, after: Json | None) -> Json | None:
    """Give the last state that the watcher knew, with the version of its leaving."""
    if before is not None and after is not None:
        version = after["metadata"]["resourceVersion"]
        before["metadata"]["resourceVersion"] = version
    return before


def _parsed(raw: bytes) -> Json:
    thing: Json = orjson.loads(raw)
    return thing
