"""The process behind a cluster that stays up for a person, and what is put into it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from tests.testbed.kubeadm import instances
from tests.testbed.kubeadm.cluster import ADMIN_CONF, Cluster
from tests.testbed.kubeadm.instances import Record
from tests.testbed.kubeadm.namespaces import entered
from tests.testbed.kubeadm.programs import Programs
from tests.testbed.waiting import wait_until

APPS = "apps.yaml"


@dataclass(frozen=True)
class Wanted:
    """What to bring up; ``archive`` is our image, which every node gets."""

    nodes: int
    archive: Path
    bare: bool = False
    """Whether the installer is left to the person."""


def furnish(cluster: Cluster, *, bare: bool) -> None:
    """Give ``cp`` two cards and ``worker1`` one; install all that shares them."""
    # Not above, because the exercises are themselves built on this folder.
    from tests.cluster.fresh import fresh
    from tests.cluster.manifests import RTX_3090, TWO_P4
    from tests.nvml.build import the_stub

    folder = cluster.folder / "site"
    folder.mkdir()
    site = fresh(cluster, the_stub(), folder)
    cards = {"cp": TWO_P4, "worker1": [RTX_3090]}
    equipped = [name for name in cards if name in cluster.nodes]
    for name in equipped:
        site.put_cards(name, cards[name])
    _write_apps(cluster.folder / APPS)
    if not bare:
        print(site.must("install", f"--nodes={','.join(equipped)}", "--yes"))


def things_to_try(folder: Path, *, bare: bool) -> str:
    """Say what a person may do with such a cluster, whose folder this is."""
    return _TO_INSTALL * bare + _TO_TRY.format(apps=folder / APPS).strip()


_TO_INSTALL = """\
# Nothing of gpushare is installed; its image is on the nodes. On the control plane:
make cluster-shell
gpusharectl install
# And when it has run, here or there:
"""
_TO_TRY = """
# A shell on the control-plane node, with gpusharectl and kubectl: make cluster-shell
# Cards: cp has two Tesla P4 of 29 units of 256 MiB each, and worker1, where
# there is one, has an RTX 3090 of 94.
kubectl describe nodes | grep -E '^Name:|vcuda'
# Seed 001's applications: of 4, 20 and 20 units on cp; of 50, 40 and 1 on
# worker1.
kubectl apply -f {apps}
kubectl get pods -n baetyl-edge -o wide
# The one card that each of them sees, and what it was told of its share:
kubectl exec -n baetyl-edge deploy/edgekit-gpu-cuda10-2 -- nvidia-smi -L
kubectl exec -n baetyl-edge deploy/edgekit-gpu-cuda10-2-2 -- nvidia-smi -L
kubectl exec -n baetyl-edge deploy/edgekit-gpu-cuda10-2-3 -- nvidia-smi -L
kubectl exec -n baetyl-edge deploy/nvidia-cuda11-base-3 -- \\
    cat /etc/vcuda/allocation.json
# More than worker1 has left: the new pod waits, and its events say why.
kubectl set resources -n baetyl-edge deploy/nvidia-cuda11-base-3 \\
    --limits=baidu.com/vcuda-memory=10
kubectl describe pods -n baetyl-edge -l app=nvidia-cuda11-base-3
"""


def _write_apps(path: Path) -> None:
    import yaml

    from tests.cluster.manifests import (
        ONE_CARD_APPS,
        SEED_COMMAND,
        TWO_CARD_APPS,
        deployment,
        replaced_first,
    )
    from tests.cluster.site import EDGE

    made = []
    for node, apps in (("cp", TWO_CARD_APPS), ("worker1", ONE_CARD_APPS)):
        there = {"nodeSelector": {"kubernetes.io/hostname": node}}
        for name, units in apps.items():
            app = deployment(name, units, script=SEED_COMMAND, **there)
            one = replaced_first(app)
            one["metadata"]["namespace"] = EDGE
            made.append(one)
    path.write_text(yaml.safe_dump_all(made, sort_keys=False))


# The status of its last command is no error of `make cluster-shell`.
SHELL = ["bash", "-c", "bash --noprofile --norc; exit 0"]
ENDING = {signal.SIGTERM, signal.SIGINT}


def up(programs: Programs, wanted: Wanted) -> int:
    """Start a keeper and wait until its cluster is there; say how to reach it."""
    for record in _kept():
        if instances.alive(record):
            print(f"A cluster is up already.\nexport KUBECONFIG={record.kubeconfig}")
            return 0
    folder = Path(tempfile.mkdtemp(prefix="gpushare-kubeadm-"))
    words = ["keep", str(folder), f"--nodes={wanted.nodes}"]
    words += ["--bare"] * wanted.bare
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
    print(things_to_try(folder, bare=wanted.bare))
    return 0


def shell(programs: Programs, command: list[str]) -> int:
    """Run a command on the control-plane node, or a shell; return only if none is up.

    It has kubectl, ctr, and gpusharectl of this checkout.
    """
    for record in _kept():
        if record.ready and instances.alive(record):
            words = way_in(programs, record, command or SHELL)
            os.execvp(words[0], words)
    print("No cluster is up; make cluster BARE=1 starts one", file=sys.stderr)
    return 1


def way_in(programs: Programs, record: Record, command: list[str]) -> list[str]:
    """Give what runs a command on the control-plane node as its administrator would."""
    own = {
        "PATH": f"{Path(sys.executable).parent}:{programs.path}",
        "KUBECONFIG": ADMIN_CONF,
        "PS1": r"\h:\w\$ ",
    }
    told = [f"{name}={value}" for name, value in own.items()]
    there = ["env", f"--chdir={Path.cwd()}", *told, *command]
    return entered(record.control_plane, there)


def keep(programs: Programs, folder: Path, wanted: Wanted) -> None:
    """Hold a cluster until told to end, which may be while it comes up."""
    for ending in ENDING:
        # Not blocked, because the containers would inherit that and never end.
        signal.signal(ending, _leave)
    try:
        archives = [wanted.archive]
        with Cluster(programs, folder, kept=True, archives=archives) as cluster:
            for number in range(1, wanted.nodes):
                cluster.join(f"worker{number}")
            furnish(cluster, bare=wanted.bare)
            cluster.announce()
            while True:
                # Not a pause: a signal that comes just before it would not end it.
                time.sleep(1)
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
