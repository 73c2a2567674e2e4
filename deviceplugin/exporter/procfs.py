"""Whose the host's processes are, read from ``/proc``; ``attribution`` judges."""

import logging
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from deviceplugin.exporter.owners import NO_POD, Owner, owner_of, pods_above

logger = logging.getLogger(__name__)

_READ_BYTES = 65536
_START_TIME = 19
"""Field 22 of ``stat``, counted from after the command's closing bracket."""


class ProcFs:
    """Reads ``<root>/proc``, which must be the host's: drivers name the host's pids.

    All methods may be called from any thread. Trouble is logged once when it comes and
    once when it goes.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"
        self._lock = threading.Lock()
        self._known: dict[int, tuple[str, Owner]] = {}
        self._unseen: frozenset[int] = frozenset()
        self._seen_any = False
        self._is_hosts = False
        self._trouble = ""
        self._logged = False
        self._pods_above: int | None = None

    @property
    def trouble(self) -> str:
        """What is wrong with ``/proc``, as a sentence; empty while nothing is."""
        return self._trouble

    def owners(self, pids: Collection[int]) -> Mapping[int, Owner]:
        """Give the owner of each process whose cgroup can be read.

        ``NOBODY`` for one outside Kubernetes; no entry for one that is gone, or that
        may not be read.
        """
        with self._lock:
            told: dict[int, Owner] = {}
            unseen: set[int] = set()
            denied = ""
            for pid in set(pids):
                try:
                    told[pid] = self._owner(pid)
                except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
                    unseen.add(pid)
                except OSError as error:
                    denied = f"{error.filename}: {error.strerror}"
            self._known = {pid: self._known[pid] for pid in told if pid in self._known}
            blindness = self._blindness(frozenset(unseen), told)
            self._note(denied or blindness, told)
        return told

    def _owner(self, pid: int) -> Owner:
        """Read twice when it was started: the pid may be given anew in between."""
        folder = self._proc / str(pid)
        started = _start_time(folder)
        known = self._known.get(pid)
        if known is not None and known[0] == started:
            return known[1]
        owner = owner_of(_read(folder / "cgroup"), self._above())
        if _start_time(folder) != started:
            raise ProcessLookupError(pid)
        # One outside may yet be moved into a container; one inside stays there.
        if owner == NO_POD:
            self._known.pop(pid, None)
        else:
            self._known[pid] = (started, owner)
        return owner

    def _blindness(self, unseen: frozenset[int], told: Mapping[int, Owner]) -> str:
        """Say that these files may be another ``/proc`` than the host's.

        While nothing was ever seen, each process that is not seen says so: whoever
        takes it for ended takes its container for idle. Then only one that stays
        unseen does, for one may well have ended. And none does once another pod's was
        seen: no ``/proc`` but the host's has those.
        """
        self._seen_any = self._seen_any or bool(told)
        self._is_hosts = self._is_hosts or self._has_others(told)
        stayed, self._unseen = unseen & self._unseen, unseen
        missed = stayed if self._seen_any else unseen
        if not missed or self._is_hosts:
            return ""
        some = ", ".join(map(str, sorted(missed)[:5]))
        return (
            f"{self._proc} does not show processes that the driver lists ({some}); "
            "is it the host's (hostPID)?"
        )

    def _has_others(self, told: Mapping[int, Owner]) -> bool:
        """Tell whether some process is of a pod, and of another one than ours."""
        pods = {owner.pod for owner in told.values()} - {NO_POD.pod}
        return bool(pods) and bool(pods - {self._ours()})

    def _ours(self) -> str:
        try:
            own = _read(self._proc / "self" / "cgroup")
        except OSError:
            return NO_POD.pod
        return owner_of(own, pods_above(own)).pod

    def _above(self) -> int:
        """Say how many pods the node itself is in; read once, for it never changes."""
        if self._pods_above is None:
            try:
                own = _read(self._proc / "self" / "cgroup")
            except OSError:
                return 0
            self._pods_above = pods_above(own)
        return self._pods_above

    def _note(self, trouble: str, told: Mapping[int, Owner]) -> None:
        if trouble and not self._logged:
            logger.warning("processes have no owners", extra={"why": trouble})
            self._logged = True
        # Not where nobody was listed: that proves nothing.
        elif self._logged and told and not trouble:
            logger.info("processes have owners again")
            self._logged = False
        self._trouble = trouble


def _start_time(folder: Path) -> str:
    # The command stands in brackets and may hold any bytes, brackets included.
    fields = _read(folder / "stat").rpartition(")")[2].split()
    if len(fields) <= _START_TIME:
        raise ProcessLookupError(folder.name)
    return fields[_START_TIME]


def _read(path: Path) -> str:
    with path.open("rb") as opened:
        return opened.read(_READ_BYTES).decode(errors="replace")
