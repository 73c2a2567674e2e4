"""Versioned collections of objects with history and watches, as etcd has them.

Objects are kept as JSON text and parsed for each reader, so that nobody can change what
is stored. The source of both grammars of selectors:
``k8s.io/apimachinery/pkg/{fields,labels}/selector.go``.
"""

import base64
import binascii
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from threading import Condition
from typing import Self

import orjson

from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Gone, Invalid
from gpushare.kube.label_selectors import LabelRequirement

_NAMESPACED = ("metadata.name", "metadata.namespace")
FIELDS: Mapping[Kind, tuple[str, ...]] = {
    Kind.PODS: (
        *_NAMESPACED,
        "spec.nodeName",
        "spec.schedulerName",
        "status.nominatedNodeName",
        "status.phase",
    ),
    Kind.NODES: ("metadata.name",),
    Kind.EVENTS: (
        *_NAMESPACED,
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.uid",
        "reason",
        "type",
    ),
    Kind.BUDGETS: _NAMESPACED,
    Kind.CLAIMS: _NAMESPACED,
    Kind.SLICES: ("metadata.name", "spec.driver", "spec.nodeName"),
}
"""The fields that a selector may name; others are ``Invalid``, as in Kubernetes."""

_COMMA = re.compile(r",(?![^(]*\))")
_EQUALITY = re.compile(r"([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=()]*)")
_SET = re.compile(r"([^\s!=,()]+)\s+(in|notin)\s*\(([^()]*)\)")
_PRESENCE = re.compile(r"(!?)\s*([^\s!=,()]+)")


@dataclass(frozen=True, slots=True)
class Selector:
    """All terms on fields and labels, which an object must meet."""

    fields: tuple[LabelRequirement, ...] = ()
    labels: tuple[LabelRequirement, ...] = ()

    @classmethod
    def parse(cls, kind: Kind, fields: str, labels: str = "") -> Self:
        """Parse both selectors; either may be empty; ``Invalid`` says what is wrong."""
        terms = _terms(fields, _equality)
        for term in terms:
            if term.key not in FIELDS[kind]:
                raise Invalid(f"field label not supported: {term.key}")
        return cls(terms, _terms(labels, _label))

    def matches(self, fields: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Return whether an object with these fields and labels is chosen."""
        return all(term.holds(fields) for term in self.fields) and all(
            term.holds(labels) for term in self.labels
        )


def fields_of(kind: Kind, thing: Json) -> dict[str, str]:
    """Return the fields that selectors of this kind may name, empty if missing."""
    return {field: _text(thing, field) for field in FIELDS[kind]}


def _text(thing: Json, field: str) -> str:
    part: object = thing
    for key in field.split("."):
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, str) else ""


def _terms(
    text: str, read: Callable[[str], LabelRequirement | None]
) -> tuple[LabelRequirement, ...]:
    requirements = []
    for part in _COMMA.split(text) if text.strip() else ():
        term = read(part.strip())
        if term is None:
            raise Invalid(f"unable to parse requirement: {part.strip()!r}")
        requirements.append(term)
    return tuple(requirements)


def _equality(part: str) -> LabelRequirement | None:
    if not (match := _EQUALITY.fullmatch(part)):
        return None
    key, sign, value = match.groups()
    return LabelRequirement(key, "NotIn" if sign == "!=" else "In", (value,))


def _label(part: str) -> LabelRequirement | None:
    if match := _SET.fullmatch(part):
        key, word, listed = match.groups()
        values = tuple(value.strip() for value in listed.split(","))
        return LabelRequirement(key, "In" if word == "in" else "NotIn", values)
    if match := _PRESENCE.fullmatch(part):
        absent, key = match.groups()
        return LabelRequirement(key, "DoesNotExist" if absent else "Exists")
    return _equality(part)


Key = tuple[str, str]
"""Namespace (empty for nodes) and name; lists are sorted by it."""

_version_of = attrgetter("version")


@dataclass(frozen=True, slots=True)
class Stored:
    """An object at one version, with the fields and labels for selectors."""

    raw: bytes
    fields: Mapping[str, str]
    labels: Mapping[str, str]

    def chosen(self, selector: Selector) -> bool:
        """Return whether a selector chooses the object."""
        return selector.matches(self.fields, self.labels)

    def parsed(self) -> Json:
        """Return a copy of the object that the caller may change."""
        body: Json = orjson.loads(self.raw)
        return body


@dataclass(frozen=True, slots=True)
class StoredChange:
    """One write: the object before and after it, None for none."""

    version: int
    key: Key
    before: Stored | None
    after: Stored | None


@dataclass(slots=True)
class VersionedCollection:
    """One collection; not thread-safe. ``dropped`` is the last dropped version."""

    now: dict[Key, Stored] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)
    history: list[StoredChange] = field(default_factory=list)
    dropped: int = 0

    def put(self, change: StoredChange) -> None:
        """Apply the newest write."""
        if change.after is None:
            del self.now[change.key]
            del self.keys[bisect_left(self.keys, change.key)]
        else:
            if change.before is None:
                insort(self.keys, change.key)
            self.now[change.key] = change.after
        self.history.append(change)

    def since(self, version: int) -> list[StoredChange]:
        """Return the changes after a version, the oldest first."""
        return self.history[bisect_right(self.history, version, key=_version_of) :]

    def at(self, version: int) -> tuple[list[Key], dict[Key, Stored | None]]:
        """Return all keys of then and now, and the old objects of changed keys."""
        then: dict[Key, Stored | None] = {}
        for change in self.since(version):
            then.setdefault(change.key, change.before)
        return (sorted({*self.keys, *then}) if then else self.keys), then

    def forget(self, count: int) -> None:
        """Drop the oldest changes."""
        if count:
            self.dropped = self.history[count - 1].version
            del self.history[:count]


def stamped(thing: Json, version: int) -> Json:
    """Return the object with a resource version."""
    metadata = {**thing["metadata"], "resourceVersion": str(version)}
    return {**thing, "metadata": metadata}


Rule = Callable[[Json | None], Json | None]
"""Return the new object for the old one; None for no object, before or after."""


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """Part of a list at one version; ``last`` is where to go on, None at the end."""

    items: list[Stored]
    version: int
    last: Key | None

    @property
    def token(self) -> str:
        """What to go on with, as text; empty at the end."""
        if self.last is None:
            return ""
        where = orjson.dumps([self.version, *self.last])
        return base64.urlsafe_b64encode(where).decode()


class Store:
    """All collections under one version counter and one lock.

    ``keep`` is the number of changes to a collection after which the oldest are
    forgotten, as etcd's compaction does.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._changed = Condition()
        self._version = 1
        self._compacted = 1
        self._collections = {kind: VersionedCollection() for kind in Kind}

    def read(self, kind: Kind, key: Key) -> Json | None:
        """Read one object, None where there is none."""
        with self._changed:
            stored = self._collections[kind].now.get(key)
        return None if stored is None else stored.parsed()

    def write(self, kind: Kind, key: Key, rule: Rule) -> Json:
        """Change one object in one step, and give it as it is now, or as it was last.

        Errors of the rule pass through and leave all as it was. A rule that changes
        nothing makes no version, as on the real one.
        """
        with self._changed:
            before = self._collections[kind].now.get(key)
            old = None if before is None else before.parsed()
            new = rule(None if before is None else before.parsed())
            if new is None and old is None:
                raise KeyError(key)
            if new is not None and new == old:
                return new
            self._version += 1
            after = None if new is None else self._stored(kind, new)
            self._collections[kind].put(StoredChange(self._version, key, before, after))
            self._trim(self._collections[kind])
            self._changed.notify_all()
            result: Json = new or old or {}
            return stamped(result, self._version)

    def slice(
        self, kind: Kind, selector: Selector, limit: int, start: tuple[int, Key] | None
    ) -> StoredSlice:
        """Read up to ``limit`` objects (0: all), after a version's key; ``Gone``."""
        with self._changed:
            version, after = start or (self._version, None)
            self._check(version)
            collection = self._collections[kind]
            keys, then = collection.at(version)
            items: list[Stored] = []
            last: Key | None = None
            for key in keys[0 if after is None else bisect_right(keys, after) :]:
                stored = then[key] if key in then else collection.now[key]
                if stored is None or not stored.chosen(selector):
                    continue
                if limit and len(items) == limit:
                    return StoredSlice(items, version, last)
                items.append(stored)
                last = key
        return StoredSlice(items, version, None)

    def begin(
        self, kind: Kind, selector: Selector, version: str
    ) -> tuple[list[Stored], int]:
        """Return the first objects of a watch, and the version to continue from.

        These are none, or all objects if the version is empty or ``"0"``. ``Gone`` if
        the version is too old, ``Invalid`` if it is not a version.
        """
        if version in ("", "0"):
            first = self.slice(kind, selector, 0, None)
            return first.items, first.version
        if not version.isdecimal():
            raise Invalid(f"resourceVersion: {version!r} is no version")
        with self._changed:
            self._check(int(version))
        return [], int(version)

    def since(
        self, kind: Kind, version: int, timeout_s: float
    ) -> tuple[list[StoredChange], int]:
        """Wait for changes; return them and the version to continue from.

        ``Gone`` if some of them were dropped.
        """
        collection = self._collections[kind]
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    bool(collection.history)
                    and collection.history[-1].version > version
                ),
                timeout_s,
            )
            if version < collection.dropped:
                raise Gone(_too_old(version, self._compacted))
            return collection.since(version), self._version

    def compact(self) -> None:
        """Drop all changes up to now."""
        with self._changed:
            for collection in self._collections.values():
                collection.forget(len(collection.history))
            self._compacted = self._version

    def _check(self, version: int) -> None:
        # A version from before a restart may be higher: listing again helps too.
        if not self._compacted <= version <= self._version:
            raise Gone(_too_old(version, self._compacted))

    def _trim(self, collection: VersionedCollection) -> None:
        # Many at once, because each removal moves the whole list.
        if len(collection.history) > 2 * self._keep:
            collection.forget(len(collection.history) - self._keep)
            self._compacted = max(self._compacted, collection.dropped)

    def _stored(self, kind: Kind, thing: Json) -> Stored:
        raw = orjson.dumps(stamped(thing, self._version))
        labels = dict(thing["metadata"].get("labels") or {})
        return Stored(raw, fields_of(kind, thing), labels)


def start_of(token: str) -> tuple[int, Key] | None:
    """Parse a slice's token, None for an empty one; ``Invalid`` for other text."""
    if not token:
        return None
    try:
        version, namespace, name = orjson.loads(base64.urlsafe_b64decode(token))
        return int(version), (str(namespace), str(name))
    except (ValueError, TypeError, binascii.Error) as error:
        raise Invalid("continue: this token is not valid here") from error


def _too_old(version: int, compacted: int) -> str:
    return f"too old resource version: {version} ({compacted})"
