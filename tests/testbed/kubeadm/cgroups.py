"""One control group per node in each version 1 hierarchy, made and removed."""

import contextlib
import errno
import os
import signal
from pathlib import Path

from tests.testbed.waiting import wait_until

MOUNTED = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """Give the roots of the version 1 hierarchies; none on a machine of version 2."""
    return sorted(path.parent for path in MOUNTED.glob("*/release_agent"))


def roots() -> list[Path]:
    """Give all roots, that of version 2 included: runc makes groups there as well."""
    return sorted(path.parent for path in MOUNTED.glob("*/cgroup.procs"))


def make(name: str) -> None:
    """Make the group everywhere, so that a kubelet takes it for its root.

    Several kubelets on one machine need a root each, because each removes every pod
    group that it finds below its root and does not know.
    """
    for root in hierarchies():
        group = root / name
        group.mkdir(exist_ok=True)
        for limit in ("cpuset.cpus", "cpuset.mems"):
            # A new cpuset is empty, and nothing may run in an empty one.
            if (root / limit).exists():
                (group / limit).write_text((root / limit).read_text())


def empty(name: str) -> None:
    """End all that runs in the group and remove the groups below it."""
    for root in roots():
        for group in _below(root / name):
            _remove(group)


def remove(name: str) -> None:
    empty(name)
    for root in roots():
        _remove(root / name)


def left(prefix: str) -> list[str]:
    """Name the groups that begin so, in any hierarchy."""
    found = {path.name for root in roots() for path in root.glob(f"{prefix}*")}
    return sorted(found)


def _below(group: Path) -> list[Path]:
    """Give the groups below, the deepest first."""
    walked = [Path(folder) for folder, _, _ in os.walk(group, topdown=False)]
    return [path for path in walked if path != group]


def _remove(group: Path) -> None:
    wait_until(lambda: _removed(group), f"removed control group {group}")


def _removed(group: Path) -> bool:
    for pid in _members(group):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        # Busy for a moment after its last process has gone.
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _members(group: Path) -> list[int]:
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []
