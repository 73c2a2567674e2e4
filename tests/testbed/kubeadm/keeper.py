"""The process behind a cluster that stays up: the cluster lives as long as it does."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

from tests.testbed.kubeadm import instances
from tests.testbed.kubeadm.cluster import Cluster
from tests.testbed.kubeadm.furnish import furnish, things_to_try
from tests.testbed.kubeadm.instances import Record
from tests.testbed.kubeadm.programs import Programs
from tests.testbed.waiting import wait_until

ENDING = {signal.SIGTERM, signal.SIGINT}


def up(programs: Programs, nodes: int) -> int:
    """Start a keeper and wait until its cluster is there; say how to reach it."""
    for record in _kept():
        if instances.alive(record):
            print(f"A cluster is up already.\nexport KUBECONFIG={record.kubeconfig}")
            return 0
    folder = Path(tempfile.mkdtemp(prefix="gpushare-kubeadm-"))
    words = ["keep", str(folder), f"--nodes={nodes}"]
    with (folder / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.testbed.kubeadm", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C here does not reach it
        )
    announced = _announced(keeper)
    if announced is None:
        print((folder / "keeper.log").read_text(), file=sys.stderr)
        shutil.rmtree(folder)
        return 1
    kubectl = programs.control_plane.path("kubectl")
    print(f"export KUBECONFIG={announced.kubeconfig}\nalias kubectl={kubectl}")
    print(things_to_try(folder))
    return 0


def keep(programs: Programs, folder: Path, nodes: int) -> None:
    """Hold a cluster until told to end, which may be while it comes up."""
    for ending in ENDING:
        # Not blocked, because the containers would inherit that and never end.
        signal.signal(ending, _leave)
    try:
        with Cluster(programs, folder, kept=True) as cluster:
            for number in range(1, nodes):
                cluster.join(f"worker{number}")
            furnish(cluster)
            cluster.announce()
            while True:
                signal.pause()
    except SystemExit:
        shutil.rmtree(folder)


def _leave(number: int, frame: object) -> NoReturn:
    for each in ENDING:
        # The end takes a second, and must not be cut short.
        signal.signal(each, signal.SIG_IGN)
    sys.exit(0)


def down() -> int:
    """End every kept cluster and clear up after killed ones."""
    for record in _kept():
        if instances.alive(record):
            os.kill(record.pid, signal.SIGTERM)
            gone = partial(instances.alive, record)
            wait_until(gone, "end of the cluster", 120, accept=lambda alive: not alive)
    folders = [Path(record.folder).parent for record in _kept()]
    instances.clear_up()
    for folder in folders:
        # A killed keeper could not remove its logs itself.
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _kept() -> list[Record]:
    return [record for record in instances.known() if record.kept]


def _announced(keeper: subprocess.Popen[bytes]) -> Record | None:
    """Wait until the keeper's cluster is ready; None where the keeper ended."""
    while keeper.poll() is None:
        for record in _kept():
            if record.pid == keeper.pid and record.ready:
                return record
        time.sleep(0.1)
    return None
