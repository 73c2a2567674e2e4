"""Who runs which cluster on this machine, and what a dead one has left.

Each living cluster holds a lock that the kernel lets go of with its process. So a
record whose lock is free is of a cluster that died, and whoever comes next clears up.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from tests.testbed.kubeadm import cgroups, network
from tests.testbed.kubeadm.network import INSTANCES, Addresses
from tests.testbed.waiting import wait_until

RECORDS = Path("/run/gpushare-kubeadm")
INOTIFY = "fs.inotify.max_user_instances"
ENOUGH_INOTIFY = 1024
"""The usual 128 are used up by four or five clusters: containerd has no CRI then."""
SYSCTLS = (
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
    INOTIFY,
)
"""What a kubelet changes for the whole machine, and what a cluster here raises."""


class NoRoomError(RuntimeError):
    """Every number, and with it every network, is taken."""


@dataclass(frozen=True)
class Record:
    """What others must know of a cluster."""

    instance: int
    folder: str
    """Where its nodes' files are; removed with the cluster."""
    pid: int
    kubeconfig: str = ""
    kept: bool = False
    """Up for a person, until ``down``."""
    ready: bool = False
    control_plane: int = 0
    """The first process of its control-plane node, whose namespaces one may enter."""


class Claim:
    """A number of our own, ours until ``release`` or the end of this process."""

    def __init__(self, record: Record, lock: IO[str]) -> None:
        self.record = record
        self._lock = lock

    @classmethod
    def take(cls, folder: Path, *, kept: bool = False) -> Self:
        """Clear up after dead clusters, then take the first free number."""
        with _registry():
            _clear_up()
            routed = network.taken()
            for instance in INSTANCES:
                lock = _locked(instance)
                if lock is None:
                    continue
                if Addresses(instance).network in routed:
                    _unlock(lock, instance)
                    continue
                _keep_sysctls()
                _raise_inotify()
                record = Record(instance, str(folder), os.getpid(), kept=kept)
                claim = cls(record, lock)
                claim.write(claim.record)
                return claim
        raise NoRoomError(f"{len(INSTANCES)} clusters run here already")

    def write(self, record: Record) -> None:
        """Let others see what has become known of the cluster."""
        self.record = record
        path = RECORDS / f"{record.instance}.json"
        path.with_suffix(".new").write_text(json.dumps(asdict(record)))
        path.with_suffix(".new").replace(path)

    def release(self) -> None:
        """Remove all that the cluster has left, once its processes have ended."""
        with _registry():
            _sweep(self.record)
            _unlock(self._lock, self.record.instance)
            _restore_sysctls()


def known() -> list[Record]:
    texts: list[str] = []
    for path in sorted(RECORDS.glob("*.json")):
        # Another cluster may end just now.
        with suppress(FileNotFoundError):
            texts += [path.read_text()] if path.stem.isdigit() else []
    return [Record(**json.loads(text)) for text in texts]


def alive(record: Record) -> bool:
    with _registry():
        lock = _locked(record.instance)
        if lock is None:
            return True
        _unlock(lock, record.instance)
        return False


def clear_up() -> None:
    with _registry():
        _clear_up()
        _restore_sysctls()


def cgroup_prefix(instance: int) -> str:
    return f"gpushare-kubeadm-{instance}-"


def _clear_up() -> None:
    for record in known():
        lock = _locked(record.instance)
        if lock is not None:
            _sweep(record)
            _unlock(lock, record.instance)


def _sweep(record: Record) -> None:
    for group in cgroups.left(cgroup_prefix(record.instance)):
        cgroups.remove(group)
    network.remove_link(Addresses(record.instance))
    folder = Path(record.folder)
    wait_until(lambda: _removed(folder), f"removed {folder}")
    (RECORDS / f"{record.instance}.json").unlink(missing_ok=True)


def _removed(folder: Path) -> bool:
    """Remove a folder that a dying process may still be writing into."""
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
    return not folder.exists()


@contextmanager
def _registry() -> Iterator[None]:
    """Let one process at a time claim, release or clear up.

    The folder goes with its last record, so that a machine at rest shows no trace.
    """
    lock = _registry_lock()
    try:
        yield
    finally:
        if not [path for path in RECORDS.iterdir() if path.name != "lock"]:
            (RECORDS / "lock").unlink()
            RECORDS.rmdir()
        lock.close()


def _registry_lock() -> IO[str]:
    path = RECORDS / "lock"
    while True:
        RECORDS.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            lock = path.open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The one before us may have removed the file while we waited for it.
            if path.exists() and os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
                return lock
            lock.close()


def _locked(instance: int) -> IO[str] | None:
    """Take this number's lock; None where a living cluster holds it."""
    lock = (RECORDS / f"{instance}.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _unlock(lock: IO[str], instance: int) -> None:
    (RECORDS / f"{instance}.lock").unlink(missing_ok=True)
    lock.close()


def _keep_sysctls() -> None:
    """Save the machine's settings, unless a cluster has changed them already."""
    saved = RECORDS / "sysctls.json"
    if not saved.exists():
        saved.write_text(json.dumps(read_sysctls()))


def _raise_inotify() -> None:
    """Let several clusters run at once, where the machine allows the change."""
    limit = _sysctl(INOTIFY)
    with contextlib.suppress(OSError):
        if int(limit.read_text()) < ENOUGH_INOTIFY:
            limit.write_text(str(ENOUGH_INOTIFY))


def _restore_sysctls() -> None:
    """Put them back once the last cluster has gone."""
    saved = RECORDS / "sysctls.json"
    if saved.exists() and not known():
        for name, value in json.loads(saved.read_text()).items():
            # Best effort, because a container of ours may own some of them read-only.
            with contextlib.suppress(OSError):
                _sysctl(name).write_text(value)
        saved.unlink()


def read_sysctls() -> dict[str, str]:
    """Give the values as they are now; a setting that this kernel lacks is left out."""
    present = [name for name in SYSCTLS if _sysctl(name).exists()]
    return {name: _sysctl(name).read_text().strip() for name in present}


def _sysctl(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))
