"""Following a store's changes as one who sees only what a selector chooses."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpushare.kube.cluster import Kind, WatchEvent
from gpushare.kube.selectors import Selector
from gpushare.kube.shapes import SHAPES
from gpushare.kube.shelf import Change, Stored, stamped
from gpushare.kube.store import Store


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
