"""A killed cluster leaves no trace on the machine once somebody has cleared up.

Of one cluster alone, because others may come and go meanwhile.
"""

import contextlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.testbed.kubeadm import Programs, cgroups, instances
from tests.testbed.kubeadm.instances import Record
from tests.testbed.kubeadm.network import NODES_EACH, Addresses
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
STARTS_A_CLUSTER = """
import os, sys, pathlib
from tests.testbed.binaries import cache_folder
from tests.testbed.kubeadm import Cluster, ensure_programs
with Cluster(ensure_programs(cache_folder(os.environ)), pathlib.Path(sys.argv[1])):
    pass
"""


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


def outside() -> list[str]:
    """What no cluster of ours may change, however many there are."""
    usual = "/var/lib/kubelet /var/lib/etcd /run/containerd /etc/kubernetes /etc/cdi"
    return [
        *(line for line in mounted() if "kube" in line or "netns" in line),
        *(path for path in usual.split() if Path(path).exists()),
    ]


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


def settings() -> dict[str, str]:
    """The machine's own settings; nothing while a cluster has changed them."""
    return {} if instances.known() else instances.read_sysctls()


def test_a_killed_run_is_cleared_up_after(
    cluster_programs: Programs, tmp_path: Path
) -> None:
    """Its processes end with it; whoever comes next removes the rest."""
    before, calm = outside(), settings()
    folder = tmp_path / "c"
    nodes = str(folder / "nodes")
    command = [sys.executable, "-c", STARTS_A_CLUSTER, str(folder)]
    killed = subprocess.Popen(command, cwd=ROOT)
    try:
        (record,) = wait_until(
            lambda: [one for one in instances.known() if one.folder == nodes],
            "record of the cluster",
            60,
        )
        wait_until((folder / "cp.kubelet.log").exists, "kubelet")
        made = processes(killed.pid)
    finally:
        killed.kill()
        killed.wait()
    assert len(made) > 1
    assert replace(record, folder="") == Record(record.instance, "", killed.pid)
    # A child that was just being started has its lock, too, until its program runs.
    wait_until(lambda: not instances.alive(record), "end of the killed run's lock")
    instances.clear_up()
    assert traces(record) == []
    assert outside() == before
    wait_until(
        lambda: not any(started(pid) == start for pid, start in made),
        "end of all its processes",
    )
    assert not calm or settings() in ({}, calm)
