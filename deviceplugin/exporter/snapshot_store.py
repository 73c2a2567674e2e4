"""Where the snapshot lies: written in parts by many threads, read whole by scrapes.

What containers use, kept up to date for scrapes and for the watchdog.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import TypeVar

from deviceplugin.exporter.owners import Tenancy
from deviceplugin.exporter.snapshot import ProcessRound, Round, Snapshot
from deviceplugin.exporter.usage import CONTEXT_MIB, Usage, account_usage
from deviceplugin.telemetry.fields import GROUPS, MEMORY, PROCESSES, UTILIZATION

Value = TypeVar("Value")

LATE_S = 30.0
"""So long a round may take beyond its group's pace: each kind of cards has a deadline
of its own, one after the other. After that its values are nobody's any more."""
_EVERY_S = {group.name: group.every_s for group in GROUPS}


class SnapshotStore:
    """The newest snapshot. All methods may be called from any thread.

    ``clock`` gives seconds of a clock that nobody sets.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshot = Snapshot()
        self._put_at: dict[str, float] = {}
        self._last: tuple[Snapshot, frozenset[str], Snapshot] | None = None

    def read(self) -> Snapshot:
        """Give what is known now; it never changes afterwards. Waits for nobody.

        A round that no newer one followed in time has no values any more, and says so.
        """
        snapshot, now, last = self._snapshot, self._clock(), self._last
        late = frozenset(
            group
            for group, put_at in list(self._put_at.items())
            if now - put_at > _EVERY_S[group] + LATE_S
        )
        if not late:
            return snapshot
        if last is None or last[0] is not snapshot or last[1] != late:
            last = self._last = (snapshot, late, _without_late(snapshot, late))
        return last[2]

    def change(self, change: Callable[[Snapshot], Snapshot]) -> None:
        """Put another snapshot in place of the present one, whole."""
        with self._lock:
            self._snapshot = change(self._snapshot)

    def put_round(self, one: Round) -> None:
        """Put a group's newest round in place of its last one."""
        self._put_at[one.group] = self._clock()
        self.change(lambda was: replace(was, rounds={**was.rounds, one.group: one}))

    def put_processes(self, one: ProcessRound | None, trouble: str) -> None:
        """Put the newest round of processes, with why owners cannot be told, if so.

        Both at once: a process without an owner would else look like one that ended.
        """
        self._put_at[PROCESSES] = self._clock()
        self.change(
            lambda was: replace(
                was, processes=one, troubles=_said(was.troubles, PROCESSES, trouble)
            )
        )

    def set_trouble(self, about: str, words: str) -> None:
        """Say what is missing and why; empty once nothing is."""
        if self._snapshot.troubles.get(about, "") != words:
            self.change(
                lambda was: replace(was, troubles=_said(was.troubles, about, words))
            )


def _without_late(snapshot: Snapshot, late: frozenset[str]) -> Snapshot:
    """Take out what these groups told, and say that they tell nothing."""
    rounds, troubles = dict(snapshot.rounds), dict(snapshot.troubles)
    processes = snapshot.processes
    for group in sorted(late):
        why = f"{group} was not read for over {_EVERY_S[group] + LATE_S:.0f} s"
        if group == PROCESSES and processes is not None:
            processes = replace(processes, cards={}, owners={}, failure=why)
        elif group in rounds:
            rounds[group] = replace(rounds[group], cards={}, failure=why)
        else:
            continue
        troubles.setdefault(group, why)
    return replace(snapshot, rounds=rounds, processes=processes, troubles=troubles)


def _said(troubles: Mapping[str, str], about: str, words: str) -> dict[str, str]:
    others = _without(troubles, about)
    return {**others, about: words} if words else others


def _without(these: Mapping[str, Value], name: str) -> dict[str, Value]:
    return {key: value for key, value in these.items() if key != name}


class UsageBook:
    """The join of processes and pods, worked out anew only when one of them changed.

    One for a process: it remembers since when each container has been idle. Without
    ``tenants`` there are no pods to tell of. May be asked from any thread.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        tenants: Callable[[], Tenancy | None] | None = None,
        *,
        context_mib: float = CONTEXT_MIB,
    ) -> None:
        self._context_mib = context_mib
        self._snapshot = snapshot
        self._tenants = tenants
        self._lock = Lock()
        self._read: tuple[object, ...] = ()
        self._usage = Usage()

    def tenancy(self) -> Tenancy | None:
        """Give the pods of the node; None while nobody tells of them."""
        return self._tenants() if self._tenants else None

    @property
    def has_pods(self) -> bool:
        """Whether pods are followed at all."""
        return self._tenants is not None

    def now(self) -> Usage:
        """Give what containers use by the newest round."""
        with self._lock:
            snapshot, tenancy = self._snapshot(), self.tenancy()
            read = (
                snapshot.processes,
                snapshot.found,
                snapshot.rounds.get(MEMORY),
                snapshot.rounds.get(UTILIZATION),
                snapshot.troubles,
                tenancy,
            )
            if not _same(read, self._read):
                self._usage = account_usage(
                    snapshot, tenancy, self._usage, self._context_mib
                )
                self._read = read
            return self._usage


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Tell whether these are the very same objects: comparing rounds would cost."""
    return len(one) == len(other) and all(
        a is b for a, b in zip(one, other, strict=True)
    )
