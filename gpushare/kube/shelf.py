"""One collection of objects with the history of its changes, in memory.

Objects are kept as JSON text and parsed anew for each reader, so that nobody can change
what is kept. Nothing here is thread-safe: the ``Store`` has the lock.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

import orjson

from gpushare.kube.cluster import Json
from gpushare.kube.selectors import Selector

Key = tuple[str, str]
"""Namespace, empty for nodes, and name; lists are sorted by it."""

_version_of = attrgetter("version")


@dataclass(frozen=True, slots=True)
class Stored:
    """An object at one version, and that by which selectors choose it."""

    raw: bytes
    fields: Mapping[str, str]
    labels: Mapping[str, str]

    def chosen(self, selector: Selector) -> bool:
        """Tell whether a selector chooses the object."""
        return selector.matches(self.fields, self.labels)

    def parsed(self) -> Json:
        """Give a copy of the object that its owner may change."""
        found: Json = orjson.loads(self.raw)
        return found


@dataclass(frozen=True, slots=True)
class Change:
    """One write: what was there and what is, None for nothing."""

    version: int
    key: Key
    before: Stored | None
    after: Stored | None


@dataclass(slots=True)
class Shelf:
    """One collection: ``keys`` sorted, ``dropped`` the last change forgotten."""

    now: dict[Key, Stored] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)
    history: list[Change] = field(default_factory=list)
    dropped: int = 0

    def put(self, change: Change) -> None:
        """Take over a write, which is the newest."""
        if change.after is None:
            del self.now[change.key]
            del self.keys[bisect_left(self.keys, change.key)]
        else:
            if change.before is None:
                insort(self.keys, change.key)
            self.now[change.key] = change.after
        self.history.append(change)

    def since(self, version: int) -> list[Change]:
        """Give what changed after a version, the oldest first."""
        return self.history[bisect_right(self.history, version, key=_version_of) :]

    def at(self, version: int) -> tuple[list[Key], dict[Key, Stored | None]]:
        """Give all keys of then and now, and what stood under those changed since."""
        then: dict[Key, Stored | None] = {}
        for change in self.since(version):
            then.setdefault(change.key, change.before)
        return (sorted({*self.keys, *then}) if then else self.keys), then

    def forget(self, count: int) -> None:
        """Forget the oldest changes."""
        if count:
            self.dropped = self.history[count - 1].version
            del self.history[:count]


def stamped(thing: Json, version: int) -> Json:
    """Give the object with this resource version."""
    metadata = {**thing["metadata"], "resourceVersion": str(version)}
    return {**thing, "metadata": metadata}
