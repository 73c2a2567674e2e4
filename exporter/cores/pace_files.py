"""Tells the preload library of each container how long its kernel launches wait.

A file ``pace`` in the container's folder of limits says it, in one line: its form (1),
the delay in microseconds, and when it was written (``CLOCK_MONOTONIC``, ms). Ten times
a second while launches wait it is written anew, or its time is set if the delay is the
same. The library takes a file that is older than a second for no delay, so whatever
ends this process ends all delays.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event

from exporter.cores.pace import UNKNOWN_AFTER_S, Pace, fade, measured_paces
from exporter.held import of_container
from exporter.owners.limit_folders import container_of
from exporter.snapshot import ProcessRound, TelemetrySnapshot
from exporter.usage import UsageBook, UseKey
from gpushare.files import replace_file
from gpushare.kubelet.limit_files import LIMITS
from gpushare.logs import LogOnce

logger = logging.getLogger(__name__)

PACE = "pace"
MEASURE_EVERY_S = 0.5
"""How often processes are read, in place of the group's own interval."""
_EVERY_S = 0.1


class PaceWriter:
    """Measures with each round of processes, and writes between the rounds.

    ``containers`` is the plugin's folder of that name. ``clock`` returns monotonic
    seconds. Only ``delays`` may be called from another thread.
    """

    def __init__(
        self,
        snapshot: Callable[[], TelemetrySnapshot],
        book: UsageBook,
        containers: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._snapshot = snapshot
        self._book = book
        self._containers = containers
        self._clock = clock
        self._round: ProcessRound | None = None
        self._round_at = clock()
        self._folders: Mapping[str, list[Path]] = {}
        self._paces: Mapping[UseKey, Pace] = {}
        self._written_us: Mapping[str, int] = {}
        self._delays: Mapping[UseKey, float] = {}
        self._log_once = LogOnce(logger)

    def run(self, stop: Event) -> None:
        """Write until ``stop`` is set."""
        while not stop.wait(_EVERY_S):
            self.write()

    def delays(self) -> Mapping[UseKey, float]:
        """Return how long a launch waits (s), of each container that has a file."""
        return self._delays

    def write(self) -> None:
        """Take over a new round, and write the files of this moment."""
        now, round_ = self._clock(), self._snapshot().processes
        if round_ is not self._round:
            self._round, self._round_at = round_, now
            self._folders = self._read_folders()
            self._paces = measured_paces(self._paces, self._book.now())
        late = now - self._round_at > UNKNOWN_AFTER_S
        self._paces = {
            key: fade(pace) if late or pace.share is None else pace
            for key, pace in self._paces.items()
        }
        longest: dict[str, int] = {}
        for key, pace in self._paces.items():
            # On two cards, by a claim too: one file says it for the launches on both.
            name = of_container(*key[1:])
            longest[name] = max(longest.get(name, 0), round(pace.delay_us))
        self._written_us = {
            name: delay_us
            for name, delay_us in longest.items()
            if self._put_delay(name, delay_us, now)
        }
        self._delays = {
            key: self._written_us[name] / 1e6
            for key in self._paces
            if (name := of_container(*key[1:])) in self._written_us
        }

    def _read_folders(self) -> Mapping[str, list[Path]]:
        try:
            folders = _folders_by_container(self._containers)
        except OSError as error:
            # Such as too many open files: those of before are still there.
            why = error.strerror or str(error)
            message = "new containers do not hear how long their launches wait"
            self._log_once.problem(self._containers, why, message, because=why)
            return self._folders
        self._log_once.recovered(self._containers)
        return folders

    def _put_delay(self, name: str, delay_us: int, now: float) -> bool:
        """Write a container's files; return whether it has any, and knows its delay."""
        folders = self._folders.get(name, [])
        # Without a delay the last file may grow old: that means the same.
        if not delay_us and not self._written_us.get(name):
            return bool(folders)
        same = self._written_us.get(name) == delay_us
        written = [self._put(path, delay_us, now, same=same) for path in folders]
        return bool(written) and all(written)

    def _put(self, folder: Path, delay_us: int, now: float, *, same: bool) -> bool:
        try:
            if same:
                os.utime(folder / PACE)
            else:
                replace_file(folder / PACE, f"1 {delay_us} {int(now * 1000)}\n")
        except FileNotFoundError:
            # Its pod has just ended.
            self._log_once.recovered(folder)
            return False
        except OSError as error:
            why = error.strerror or str(error)
            message = "a container does not hear how long its launches wait"
            facts = {"folder": str(folder), "because": why}
            self._log_once.problem(folder, why, message, **facts)
            return False
        self._log_once.recovered(folder)
        return True


def _folders_by_container(containers: Path) -> Mapping[str, list[Path]]:
    """Return the folders with a library's limits; a container may have two."""
    folders: dict[str, list[Path]] = {}
    for name, folder in _folders(containers):
        folders.setdefault(name, []).append(folder)
    return folders


def _folders(containers: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(containers.glob(f"*/{LIMITS}")):
        folder = path.parent
        try:
            name = container_of(folder)
        except (OSError, ValueError, TypeError, KeyError):
            # It was removed meanwhile, or is cut short.
            continue
        yield name, folder
