"""Follow a collection of the API server as long as the process lives.

The kubernetes client's informer is not used: it reads everything in one page, does not
back off, does not report when it has synced, and hangs forever on a half-open
connection (contracts 7, decision 0010).
"""

import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, Queue
from threading import Event, Thread
from typing import final

from gpushare.kube.cluster import Cluster, Json, Kind, ListPage, WatchEvent
from gpushare.kube.errors import ClusterError, Gone, Throttled

logger = logging.getLogger(__name__)


class Sink(ABC):
    """A receiver of a collection's objects: it says what it has, takes and drops.

    The key of an object is its UID, and its name if it has no namespace.
    """

    @abstractmethod
    def begin_list(self) -> AbstractSet[str]:
        """Note that a list begins, and return the keys of all that is here now.

        What of it the list does not bring is dropped. What comes from elsewhere while
        the list is read stays.
        """

    @abstractmethod
    def put(self, body: Json) -> None:
        """Take over an object that was listed, is new, or has changed."""

    @abstractmethod
    def drop(self, key: str) -> None:
        """Forget an object that is gone, if it is here."""

    def end_list(self) -> None:  # noqa: B027
        """Note that a whole list was taken over."""

    @final
    def replace(self, pages: Iterator[ListPage]) -> None:
        """Take over a whole list.

        If ``pages`` raises, nothing is dropped: the object may be on a later page.
        """
        before, listed = self.begin_list(), set[str]()
        for page in pages:
            for body in page.items:
                listed.add(_key(body))
                self.put(body)
        for key in before - listed:
            self.drop(key)
        self.end_list()

    @final
    def apply(self, event: WatchEvent) -> None:
        """Take over one change; never a bookmark."""
        if event.type == "DELETED":
            self.drop(_key(event.object))
        else:
            self.put(event.object)


def _key(body: Json) -> str:
    metadata = body["metadata"]
    return str(metadata["uid" if metadata.get("namespace") else "name"])


@dataclass(frozen=True, slots=True)
class ReflectorPace:
    """Intervals and limits; times are in seconds.

    ``watch_s`` is short, so that a silent watch is noticed within it and the client's
    grace, even if the server sends no bookmarks. A watch that ends before ``hasty_s``
    without an event counts as a failure; otherwise it would be a busy loop. After
    ``list_after`` failures in a row the list is read again: an API server restored from
    a backup does not know the version, and reports that in various ways.
    """

    page_limit: int = 500
    watch_s: float = 30.0
    hasty_s: float = 1.0
    first_wait_s: float = 0.2
    longest_wait_s: float = 10.0
    list_after: int = 8


class Reflector:
    """List in pages, watch with bookmarks, list again on 410, back off on errors."""

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        sink: Sink,
        *,
        field_selector: str = "",
        pace: ReflectorPace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._kind = kind
        self._sink = sink
        self._field_selector = field_selector
        self._pace = pace or ReflectorPace()
        self._clock = clock
        self._random = random.Random()  # noqa: S311
        self._version = ""
        self._failures = 0
        self._gone = 0
        """How often in a row the API server no longer knew the version."""
        self._heard_at: float | None = None
        self.synced = Event()
        """Set when the first whole list was applied; never cleared."""
        self.in_touch = Event()
        """Set while the list was read and the API server has answered since."""

    def age_s(self) -> float | None:
        """Return the seconds since the last answer; None before the first."""
        return None if self._heard_at is None else self._clock() - self._heard_at

    def run(self, stop: Event) -> None:
        """Follow the collection until ``stop`` is set, despite all errors."""
        while not stop.is_set():
            try:
                # A whole list says from which version to watch.
                if not self._version:
                    self._read_list()
                # Then its changes, until the server ends the watch: the next one
                # begins where this one was.
                self._follow_changes(stop)
                self._note_answer()
            except Gone as error:
                logger.info("listing again", extra=self._facts(error))
                self._version = ""
                # The API server is there: it does not count how long it was not.
                self._failures, self._gone = self._gone, self._gone + 1
                self._pause(stop, error)
            except ClusterError as error:
                self._pause(stop, error)
                # Perhaps it never knew the version.
                if self._failures >= self._pace.list_after:
                    self._version = ""

    def _read_list(self) -> None:
        versions: list[str] = []
        self._sink.replace(self._read_ahead(versions))
        self._version = versions[-1]
        if not self._failures:
            self.in_touch.set()
        if not self.synced.is_set():
            self.synced.set()
            logger.info("synced", extra={"kind": self._kind.value})

    def _read_ahead(self, versions: list[str]) -> Iterator[ListPage]:
        """Yield page by page; the next two are read while one is applied.

        Two, so that the API server writes one while the other is parsed here: the three
        take about as long.
        """
        ahead: Queue[ListPage | BaseException] = Queue(1)
        over = Event()
        reading = partial(self._read_pages, ahead, over)
        Thread(target=reading, name=f"list-{self._kind}", daemon=True).start()
        try:
            while True:
                page = ahead.get()
                if isinstance(page, BaseException):
                    raise page
                self._note_heard()
                versions.append(page.resource_version)
                yield page
                if not page.continue_token:
                    return
        finally:
            over.set()
            # So that the reader does not wait for ever for room.
            with suppress(Empty):
                ahead.get_nowait()

    def _read_pages(
        self, ahead: "Queue[ListPage | BaseException]", over: Event
    ) -> None:
        token = ""
        try:
            while not over.is_set():
                page = self._cluster.list_page(
                    self._kind,
                    limit=self._pace.page_limit,
                    continue_token=token,
                    field_selector=self._field_selector,
                )
                ahead.put(page)
                token = page.continue_token
                if not token:
                    return
        except BaseException as error:  # noqa: BLE001
            ahead.put(error)

    def _follow_changes(self, stop: Event) -> None:
        began, seen = self._clock(), 0
        stream = self._cluster.watch(
            self._kind,
            resource_version=self._version,
            timeout_s=self._pace.watch_s,
            field_selector=self._field_selector,
        )
        with closing(stream):  # type: ignore[type-var]
            for event in stream:
                self._apply_event(event)
                seen += 1
                if stop.is_set():
                    return
        if not seen and self._clock() - began < self._pace.hasty_s:
            raise Throttled("the watch ended at once without an event")
        self._note_heard()

    def _apply_event(self, event: WatchEvent) -> None:
        self._note_heard()
        if event.type != "BOOKMARK":
            self._sink.apply(event)
        self._version = event.object["metadata"]["resourceVersion"]
        self._note_answer()

    def _note_answer(self) -> None:
        self._failures = self._gone = 0
        if self.synced.is_set():
            self.in_touch.set()

    def _note_heard(self) -> None:
        self._heard_at = self._clock()

    def _pause(self, stop: Event, error: ClusterError) -> None:
        """Wait, longer after each failure in a row, with a random factor."""
        self._failures += 1
        self.in_touch.clear()
        longest = self._pace.first_wait_s * 2 ** min(self._failures - 1, 16)
        wait = min(longest, self._pace.longest_wait_s)
        wait *= self._random.uniform(0.5, 1.0)
        if isinstance(error, Throttled) and error.retry_after_s:
            wait = max(wait, error.retry_after_s)
        facts = self._facts(error) | {"wait_s": round(wait, 2)}
        # Restarts and ended streams cause a first failure.
        level = logging.WARNING if self._failures > 1 else logging.INFO
        logger.log(level, "waiting for the API server", extra=facts)
        stop.wait(wait)

    def _facts(self, error: ClusterError) -> dict[str, object]:
        return {
            "kind": self._kind.value,
            "because": f"{type(error).__name__}: {error}",
            "failures": self._failures,
        }


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether every reflector has synced and heard from the API server lately.

    ``notes`` names reflectors that need not, each with a sentence that says why.
    """

    reflectors: tuple[tuple[str, Reflector], ...]
    stale_after_s: float
    notes: Callable[[], Mapping[str, str]] = dict

    def why_not(self) -> list[str]:
        """Return a sentence for each reason not to answer; empty when ready."""
        reasons, notes = [], self.notes()
        for name, reflector in self.reflectors:
            if name in notes:
                continue
            age_s = reflector.age_s()
            if not reflector.synced.is_set():
                reasons.append(f"{name} have not been listed yet")
            elif age_s is None or age_s > self.stale_after_s:
                reasons.append(
                    f"no news of {name} for {age_s or 0:.0f} s; "
                    "is the API server reachable?"
                )
        return reasons

    def ages_s(self) -> dict[str, float]:
        """Return the seconds since each reflector last heard something."""
        ages = {name: reflector.age_s() for name, reflector in self.reflectors}
        return {name: age_s for name, age_s in ages.items() if age_s is not None}
