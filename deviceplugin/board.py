"""Where the snapshot lies: written in parts by many threads, read whole by scrapes."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from deviceplugin.fields import PROCESSES
from deviceplugin.snapshot import ProcessRound, Round, Snapshot

Value = TypeVar("Value")


class Board:
    """The newest snapshot. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._snapshot = Snapshot()

    def read(self) -> Snapshot:
        """Give what is known now; it never changes afterwards. Waits for nobody."""
        return self._snapshot

    def change(self, change: Callable[[Snapshot], Snapshot]) -> None:
        """Put another snapshot in place of the present one, whole."""
        with self._lock:
            self._snapshot = change(self._snapshot)

    def put_round(self, one: Round) -> None:
        """Put a group's newest round in place of its last one."""
        self.change(lambda was: replace(was, rounds={**was.rounds, one.group: one}))

    def put_processes(self, one: ProcessRound | None, trouble: str) -> None:
        """Put the newest round of processes, with why owners cannot be told, if so.

        Both at once: a process without an owner would else look like one that ended.
        """
        self.change(
            lambda was: replace(
                was, processes=one, troubles=_said(was.troubles, PROCESSES, trouble)
            )
        )

    def trouble(self, about: str, words: str) -> None:
        """Say what is missing and why; empty once nothing is."""
        if self._snapshot.troubles.get(about, "") != words:
            self.change(
                lambda was: replace(was, troubles=_said(was.troubles, about, words))
            )


def _said(troubles: Mapping[str, str], about: str, words: str) -> dict[str, str]:
    others = _without(troubles, about)
    return {**others, about: words} if words else others


def _without(these: Mapping[str, Value], name: str) -> dict[str, Value]:
    return {key: value for key, value in these.items() if key != name}
