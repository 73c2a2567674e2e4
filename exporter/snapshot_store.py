"""The newest snapshot, and the usage that is computed from it. Thread-safe."""

import time
from collections.abc import Callable
from dataclasses import replace
from threading import Lock

from exporter.owners.owner_pods import OwnerPods
from exporter.snapshot import ProcessRound, Round, TelemetrySnapshot
from exporter.telemetry.fields import GROUPS, MEMORY, PROCESSES, UTILIZATION
from exporter.usage import CONTEXT_MIB, Usage, account_usage

LATE_S = 30.0
"""How long a round may take beyond its group's interval, because the kinds of cards are
read one after the other, each with a deadline. Then its values are dropped."""
_EVERY_S = {group.name: group.every_s for group in GROUPS}


class SnapshotStore:
    """The newest snapshot; many threads write parts of it, scrapes read it whole.

    ``clock`` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._snapshot = TelemetrySnapshot()
        self._put_at: dict[str, float] = {}
        self._last: (
            tuple[TelemetrySnapshot, frozenset[str], TelemetrySnapshot] | None
        ) = None

    def read(self) -> TelemetrySnapshot:
        """Return what is known now, as an immutable object; never waits.

        A round that is too old has no values any more, and has a failure instead.
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

    def change(self, change: Callable[[TelemetrySnapshot], TelemetrySnapshot]) -> None:
        """Replace the snapshot."""
        with self._lock:
            self._snapshot = change(self._snapshot)

    def put_round(self, round_: Round) -> None:
        """Replace a group's last round by its newest."""
        self._put_at[round_.group] = self._clock()
        self.change(
            lambda was: replace(was, rounds={**was.rounds, round_.group: round_})
        )

    def put_processes(self, round_: ProcessRound | None, trouble: str) -> None:
        """Replace the round of processes, with the reason if owners are not known.

        Both at once: a process without an owner would otherwise look like an ended one.
        """
        self._put_at[PROCESSES] = self._clock()
        self.change(
            lambda was: replace(
                _with_trouble(was, PROCESSES, trouble), processes=round_
            )
        )

    def set_trouble(self, about: str, words: str) -> None:
        """Set what is missing and why; empty if nothing is."""
        if self._snapshot.troubles.get(about, "") != words:
            self.change(lambda was: _with_trouble(was, about, words))


def _without_late(
    snapshot: TelemetrySnapshot, late: frozenset[str]
) -> TelemetrySnapshot:
    """Drop the values of these groups, and say why."""
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


def _with_trouble(was: TelemetrySnapshot, about: str, words: str) -> TelemetrySnapshot:
    troubles = {**was.troubles, about: words}
    return replace(was, troubles={key: why for key, why in troubles.items() if why})


class UsageBook:
    """The usage of containers, computed again only when its inputs changed.

    There is one in a process, because it remembers since when each container is idle.
    Without ``owner_pods`` no pods are known. Any thread may call.
    """

    def __init__(
        self,
        snapshot: Callable[[], TelemetrySnapshot],
        owner_pods: Callable[[], OwnerPods | None] | None = None,
        *,
        context_mib: float = CONTEXT_MIB,
    ) -> None:
        self._context_mib = context_mib
        self._snapshot = snapshot
        self._owner_pods = owner_pods
        self._lock = Lock()
        self._read: tuple[object, ...] = ()
        self._usage = Usage()

    def owner_pods(self) -> OwnerPods | None:
        """Return the pods of the node; None while they are not known."""
        return self._owner_pods() if self._owner_pods else None

    @property
    def has_pods(self) -> bool:
        """Whether pods are followed at all."""
        return self._owner_pods is not None

    def now(self) -> Usage:
        """Return what containers use by the newest round."""
        with self._lock:
            snapshot, owner_pods = self._snapshot(), self.owner_pods()
            read = (
                snapshot.processes,
                snapshot.found,
                snapshot.rounds.get(MEMORY),
                snapshot.rounds.get(UTILIZATION),
                snapshot.troubles,
                owner_pods,
            )
            # The same objects; comparing rounds would be slow.
            if tuple(map(id, read)) != tuple(map(id, self._read)):
                self._usage = account_usage(
                    snapshot, owner_pods, self._usage, self._context_mib
                )
                self._read = read
            return self._usage
