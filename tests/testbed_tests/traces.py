"""What a cluster leaves on the machine.

Of one cluster alone, because others may come and go meanwhile.
"""

import contextlib
import json
import subprocess
from pathlib import Path

from tests.testbed.kubeadm import cgroups, instances, sysctls
from tests.testbed.kubeadm.instances import Record
from tests.testbed.kubeadm.network import NODES_EACH, Addresses
from tests.testbed.waiting import wait_until


def traces(record: Record) -> list[str]:
    """Name all that this cluster has on the machine, less its processes."""
    addresses = Addresses(record.instance)
    networks = {addresses.network, *map(addresses.pods, NODES_EACH)}
    folder = Path(record.folder).parent
    nodes = [str(path) for path in folder.glob("*") if path.is_dir()]
    return [
        *(name for name in listed("link", "ifname") if name == addresses.link),
        *(network for network in listed("route", "dst") if network in networks),
        *cgroups.left(instances.cgroup_prefix(record.instance)),
        *(line for line in mounted() if str(folder) in line),
        *(str(known) for known in instances.known() if known.folder == record.folder),
        *nodes,
    ]


def listed(what: str, field: str) -> list[str]:
    answer = json.loads(subprocess.check_output(["ip", "-json", what]))
    return [str(each.get(field)) for each in answer]


def mounted() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def outside() -> dict[str, list[str]]:
    """What no cluster of ours may change, however many there are."""
    usual = (
        *("/var/lib/kubelet", "/var/lib/etcd", "/run/containerd"),
        *("/etc/kubernetes", "/etc/cdi"),
    )
    return {
        "mounts": [line for line in mounted() if "kube" in line or "netns" in line],
        "folders": [
            path for path in (*usual, "/run/containerd") if Path(path).exists()
        ],
    }


def processes(ancestor: int) -> set[tuple[int, str]]:
    """Give this process and all below it, by number and start.

    With the last of them go their namespaces, because no mount holds those.
    """
    found = [ancestor]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            # It may have ended meanwhile.
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
    return {(pid, start) for pid in found if (start := started(pid))}


def started(pid: int) -> str:
    """Say when a process started; nothing where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def wait_for_end(made: set[tuple[int, str]]) -> None:
    wait_until(
        lambda: [pid for pid, start in made if started(pid) == start],
        "end of all its processes",
        accept=lambda left: not left,
    )


def settings() -> dict[str, str]:
    """The machine's own settings; nothing while a cluster has changed them."""
    return {} if instances.known() else sysctls.read()


def record_of(folder: Path) -> Record:
    return wait_until(
        lambda: [each for each in instances.known() if each.folder == str(folder)],
        "record of the cluster",
        60,
    )[0]
