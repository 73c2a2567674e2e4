"""Reads the owners of the host's processes from ``/proc``; ``owners`` parses them."""

import logging
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from exporter.owners.owner_pods import NO_POD, Owner, owner_of, pods_above
from gpushare.kubelet.limit_files import InnerPid

logger = logging.getLogger(__name__)

_READ_BYTES = 65536
_INNER_PID = re.compile(r"^NSpid:.*\s(\d+)$", re.MULTILINE)
_START_TIME = 19
"""Field 22 of ``stat``, counted from after the command's closing bracket."""


class ProcFs:
    """Reads ``<root>/proc``, which must be the host's, because drivers use its pids.

    Any thread may call. A problem is logged once when it begins and once when it ends.
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
        self._own_cgroup = ""

    @property
    def trouble(self) -> str:
        """What is wrong with ``/proc``, as a sentence; empty if nothing is."""
        return self._trouble

    def owners(self, pids: Collection[int]) -> Mapping[int, Owner]:
        """Return the owner of each process whose cgroup can be read.

        ``NO_POD`` for one outside Kubernetes; no entry for one that is gone, or that
        may not be read.
        """
        with self._lock:
            known: dict[int, Owner] = {}
            unseen: set[int] = set()
            denied = ""
            for pid in set(pids):
                try:
                    known[pid] = self._owner(pid)
                except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
                    unseen.add(pid)
                except OSError as error:
                    denied = f"{error.filename}: {error.strerror}"
            self._known = {pid: self._known[pid] for pid in known if pid in self._known}
            blindness = self._why_not_hosts(frozenset(unseen), known)
            self._note(denied or blindness, known)
        return known

    def inside(self, pids: Iterable[int]) -> Mapping[int, InnerPid]:
        """Return how the containers of processes know them.

        No entry for one that is gone, and before Linux 4.1, which does not tell. Unlike
        ``maps`` and ``root``, these files need no right to trace the process.
        """
        inner: dict[int, InnerPid] = {}
        for pid in pids:
            folder = self._proc / str(pid)
            with suppress(OSError, ValueError):
                status = _read(folder / "status")
                if match := _INNER_PID.search(status):
                    inner[pid] = InnerPid(int(match[1]), int(_start_time(folder)))
        return inner

    def _owner(self, pid: int) -> Owner:
        """Read its start time before and after: the pid may be reused in between."""
        folder = self._proc / str(pid)
        started = _start_time(folder)
        known = self._known.get(pid)
        if known is not None and known[0] == started:
            return known[1]
        owner = owner_of(_read(folder / "cgroup"), pods_above(self._read_own_cgroup()))
        if _start_time(folder) != started:
            raise ProcessLookupError(pid)
        # One outside a pod may still be moved into a container; one inside stays.
        if owner == NO_POD:
            self._known.pop(pid, None)
        else:
            self._known[pid] = (started, owner)
        return owner

    def _why_not_hosts(self, unseen: frozenset[int], known: Mapping[int, Owner]) -> str:
        """Say that this may not be the host's ``/proc``; empty if it seems to be.

        While no process was ever seen, each process that is missing counts. Later only
        one that is missing twice does, because a process may have ended. None counts
        once a process of another pod was seen: only the host's ``/proc`` has those.
        """
        self._seen_any = self._seen_any or bool(known)
        self._is_hosts = self._is_hosts or self._has_others(known)
        stayed, self._unseen = unseen & self._unseen, unseen
        missed = stayed if self._seen_any else unseen
        if not missed or self._is_hosts:
            return ""
        some = ", ".join(map(str, sorted(missed)[:5]))
        return (
            f"{self._proc} does not show processes that the driver lists ({some}); "
            "is it the host's (hostPID)?"
        )

    def _has_others(self, known: Mapping[int, Owner]) -> bool:
        """Return whether some process is in a pod other than this exporter's."""
        own_text = self._read_own_cgroup()
        own_pod = owner_of(own_text, pods_above(own_text)).pod
        return bool({owner.pod for owner in known.values()} - {NO_POD.pod, own_pod})

    def _read_own_cgroup(self) -> str:
        """Return the cgroup of this process; empty if it cannot be read. Read once."""
        if not self._own_cgroup:
            with suppress(OSError):
                self._own_cgroup = _read(self._proc / "self" / "cgroup")
        return self._own_cgroup

    def _note(self, trouble: str, known: Mapping[int, Owner]) -> None:
        if trouble and not self._logged:
            logger.warning("processes have no owners", extra={"because": trouble})
            self._logged = True
        # Not if no process was listed, because that proves nothing.
        elif self._logged and known and not trouble:
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
