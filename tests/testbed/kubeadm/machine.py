"""Whether this machine can carry a real cluster, and what has to be installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.testbed.kubeadm import cgroups
from tests.testbed.toolchain import BinariesUnavailableError

NEEDED = {
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    # Not its program, because the package with the dynamic one has that as well.
    "busybox-static": "/var/lib/dpkg/info/busybox-static.list",
    "iproute2": "/sbin/ip",
    "iptables": "/usr/sbin/iptables",
    "conntrack": "/usr/sbin/conntrack",
    "util-linux": "/usr/bin/nsenter",
    "procps": "/sbin/sysctl",
    "gcc": "/usr/bin/gcc",
    "libc6-dev": "/usr/include/stdlib.h",
    "mmdebstrap": "/usr/bin/mmdebstrap",
    "buildah": "/usr/bin/buildah",
}
"""Debian's packages, and a file of each that shows that it is there."""

CONTROLLERS = {"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids"}


def why_not() -> tuple[str, str] | None:
    """Say what keeps a real cluster off this machine, and the cure; None if nothing."""
    if sys.platform != "linux":
        return f"containers do not run on {sys.platform}", "use Linux"
    if os.geteuid() != 0:
        return "only root may make namespaces and control groups", "run it as root"
    lacking = CONTROLLERS - {path.name for path in cgroups.hierarchies()}
    if lacking:
        reason = f"no version 1 control groups for {', '.join(sorted(lacking))}"
        return reason, "boot with systemd.unified_cgroup_hierarchy=0"
    if not _may_unshare():
        return "no new namespaces are allowed here", "use a machine, not a container"
    if missing_packages() and shutil.which("apt-get") is None:
        return f"missing: {', '.join(missing_packages())}", "install them"
    return None


def missing_packages() -> list[str]:
    return [name for name, shown_by in NEEDED.items() if not Path(shown_by).exists()]


def install_packages() -> None:
    """Install what is missing; raises ``BinariesUnavailableError`` where that fails."""
    missing = missing_packages()
    if not missing:
        return
    print(f"installing {', '.join(missing)}", flush=True)
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if _quietly(command) != 0:
        # A machine that is new has no list of packages yet, or an old one.
        _quietly(["apt-get", "update"])
        _quietly(command)
    if still := missing_packages():
        raise BinariesUnavailableError(
            f"{', '.join(still)} could not be installed",
            f"apt-get update && apt-get install {' '.join(still)}",
        )


def _may_unshare() -> bool:
    flags = ["--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc"]
    return _quietly(["unshare", *flags, "true"]) == 0


def _quietly(command: list[str]) -> int:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, check=False
        )
    except FileNotFoundError:
        return 127
    return done.returncode
