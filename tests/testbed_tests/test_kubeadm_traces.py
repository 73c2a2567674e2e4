"""A killed cluster leaves no trace on the machine once somebody has cleared up.

That one which is ended leaves none is asserted at the end of the cluster's own tests.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.testbed.kubeadm import Programs, instances
from tests.testbed.kubeadm.instances import Record
from tests.testbed.waiting import wait_until
from tests.testbed_tests.traces import (
    outside,
    processes,
    record_of,
    settings,
    traces,
    wait_for_end,
)

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
STARTS_A_CLUSTER = """
import os, sys, pathlib
from tests.testbed.binaries import cache_folder
from tests.testbed.kubeadm import Cluster, ensure_programs
with Cluster(ensure_programs(cache_folder(os.environ)), pathlib.Path(sys.argv[1])):
    pass
"""


def test_a_killed_run_is_cleared_up_after(
    cluster_programs: Programs, tmp_path: Path
) -> None:
    """Its processes end with it; whoever comes next removes the rest."""
    before, calm = outside(), settings()
    folder = tmp_path / "c"
    command = [sys.executable, "-c", STARTS_A_CLUSTER, str(folder)]
    killed = subprocess.Popen(command, cwd=ROOT)
    try:
        record = record_of(folder / "nodes")
        wait_until((folder / "cp.kubelet.log").exists, "kubelet", 60)
        made = processes(killed.pid)
    finally:
        killed.kill()
        killed.wait()
    assert len(made) > 1
    assert replace(record, folder="") == Record(record.instance, "", killed.pid)
    instances.clear_up()
    assert traces(record) == []
    assert outside() == before
    wait_for_end(made)
    assert not calm or settings() in ({}, calm)
