"""Whose processes are: real ones in real cgroups, and a tree of files for the rest."""

import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from exporter.owners.owner_pods import NO_POD, Owner, owner_of
from exporter.owners.procfs import ProcFs
from tests.machine import needs
from tests.testbed.kubeadm import cgroups
from tests.testbed.waiting import wait_until

Log = pytest.LogCaptureFixture
UID = "0f8e4d2a-7b1c-4c6e-9a35-5d2b8f1e6c70"
CONTAINER = "4b1d" * 16
OURS = Owner(UID, CONTAINER)
OUTSIDE = "0::/system.slice/sshd.service\n"
SAID_ONCE = ["processes have no owners", "processes have owners again"]
INSIDE = f"0::/kubepods/pod{UID}/{CONTAINER}\n"


def root_of(version: int) -> Path | None:
    """Where this machine has cgroups of a version, and lets us make some."""
    if version == 1:
        # Not cpuset's, whose new groups take no process before they are given a CPU.
        usable = [
            group for group in cgroups.hierarchies() if "cpuset" not in group.name
        ]
    else:
        usable = [
            folder
            for folder in (cgroups.MOUNTED, cgroups.MOUNTED / "unified")
            if (folder / "cgroup.controllers").exists()
        ]
    return next((group for group in usable if os.access(group, os.W_OK)), None)


def own() -> Owner:
    return owner_of(Path("/proc/self/cgroup").read_text())


@pytest.fixture(params=[1, 2])
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A real group of a container's, as kubelet and a runtime make it."""
    root = root_of(request.param)
    needs(
        root is not None,
        f"cgroups of version {request.param} that we may make",
        "run as root on a machine that has them mounted",
    )
    assert root is not None
    top = root / f"owners-{uuid.uuid4().hex[:8]}"
    made = top / "kubepods" / "burstable" / f"pod{UID}" / CONTAINER
    made.mkdir(parents=True)
    yield made
    for folder in [made, *list(made.parents)[:4]]:
        # Busy for a moment after its last process has gone.
        wait_until(lambda folder=folder: removed(folder), f"removed {folder}")


def removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return not folder.exists()
    return True


def test_a_process_in_a_container_s_cgroup_is_the_container_s(group: Path) -> None:
    """So is its child; what it makes below its own cgroup is still its own."""
    other = group / "kubepods" / f"pod{uuid.uuid4()}" / ("0f" * 32)
    other.mkdir(parents=True)
    shell = ["sh", "-c", "read go; sleep 600 & echo $!; wait"]
    with subprocess.Popen(shell, stdin=PIPE, stdout=PIPE, text=True) as parent:
        assert parent.stdin
        assert parent.stdout
        pid, child = parent.pid, 0
        try:
            assert ProcFs().owners([pid]) == {pid: own()}
            (group / "cgroup.procs").write_text(str(pid))
            parent.stdin.write("go\n")
            parent.stdin.flush()
            child = int(parent.stdout.readline())
            procfs = ProcFs()
            ours = {pid: OURS, child: OURS, os.getpid(): own()}
            assert procfs.owners(list(ours)) == ours
            assert procfs.trouble == ""
            (other / "cgroup.procs").write_text(str(child))
            assert ProcFs().owners([child]) == {child: OURS}
        finally:
            os.kill(child or pid, 9)
    for folder in (other, *list(other.parents)[:2]):
        wait_until(lambda folder=folder: removed(folder), f"removed {folder}")


class Tree:
    """A ``/proc`` of files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()

    def process(
        self, pid: int, cgroup: str, started: int = 1000, command: str = "train"
    ) -> Path:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(exist_ok=True)
        before = " ".join(["0"] * 18)
        (folder / "stat").write_text(f"{pid} ({command}) S {before} {started} 0 0\n")
        (folder / "cgroup").write_text(cgroup)
        return folder


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize("command", ["train", "a) S 1 2 (", ") ) )", ""])
def test_a_pid_given_anew_is_another_process(tree: Tree, command: str) -> None:
    procfs = ProcFs(tree.root)
    another = f"0::/kubepods/pod{UID}/{'c' * 64}"
    for started, cgroup, wanted in (
        (1000, INSIDE, OURS),
        (2000, OUTSIDE, NO_POD),
        (3000, another, Owner(UID, "c" * 64)),
    ):
        tree.process(7, cgroup, started, command)
        assert procfs.owners([7]) == {7: wanted}


def test_a_pid_given_anew_while_it_is_read_is_nobody_we_know(tree: Tree) -> None:
    """The cgroup that was read may be either one's; the next time it is clear."""
    procfs = ProcFs(tree.root)
    held = tree.process(7, "", started=1000) / "cgroup"
    held.unlink()
    os.mkfifo(held)
    told: list[object] = []
    reading = threading.Thread(target=lambda: told.append(procfs.owners([7])))
    reading.start()
    # Opening it for writing waits for the reader, who has read the start by then.
    with held.open("w") as cgroup:
        stat = held.with_name("stat")
        stat.write_text(stat.read_text().replace(" 1000 ", " 2000 "))
        cgroup.write(INSIDE)
    reading.join()
    assert told == [{}]
    held.unlink()
    tree.process(7, OUTSIDE, started=2000)
    assert procfs.owners([7]) == {7: NO_POD}


def test_a_known_process_s_cgroup_is_not_read_again(tree: Tree) -> None:
    """A process outside may be moved into a container, so it is looked at each time."""
    procfs = ProcFs(tree.root)
    folder = tree.process(7, INSIDE)
    assert procfs.owners([7]) == {7: OURS}
    (folder / "cgroup").write_text(OUTSIDE)
    assert procfs.owners([7]) == {7: OURS}
    assert procfs.owners([]) == {}
    assert procfs.owners([7]) == {7: NO_POD}
    (folder / "cgroup").write_text(INSIDE)
    assert procfs.owners([7]) == {7: OURS}


def test_what_may_not_be_read_is_told_once_and_recovers(
    tree: Tree, caplog: Log
) -> None:
    caplog.set_level("INFO", "exporter.owners.procfs")
    procfs = ProcFs(tree.root)
    tree.process(7, INSIDE)
    closed = tree.process(8, INSIDE) / "cgroup"
    closed.unlink()
    closed.mkdir()  # reading fails, whoever asks: root may read any file
    for _ in range(3):
        assert procfs.owners([7, 8]) == {7: OURS}
        assert procfs.trouble == f"{closed}: Is a directory"
    closed.rmdir()
    closed.write_text(OUTSIDE)
    assert procfs.owners([7, 8]) == {7: OURS, 8: NO_POD}
    assert procfs.trouble == ""
    assert caplog.messages == SAID_ONCE


HIDES = "does not show processes that the driver lists"


def test_a_proc_that_shows_nothing_is_trouble_at_once(
    tmp_path: Path, caplog: Log
) -> None:
    """Whatever the pids: no container may be taken for idle. It is told once."""
    caplog.set_level("INFO", "exporter.owners.procfs")
    procfs = ProcFs(tmp_path)
    for pid in range(7, 10):
        assert procfs.owners([pid]) == {}
        assert f"{HIDES} ({pid}); is it the host's (hostPID)?" in procfs.trouble
        procfs.owners([])
        assert procfs.trouble == ""
    Tree(tmp_path).process(7, INSIDE)
    assert procfs.owners([7, 9]) == {7: OURS}
    assert procfs.trouble == ""
    assert caplog.messages == SAID_ONCE


def test_another_namespace_s_process_proves_nothing(tree: Tree) -> None:
    """A pid may be there by chance: what stays unseen beside it is trouble."""
    procfs = ProcFs(tree.root)
    tree.process(7, OUTSIDE)
    assert procfs.owners([7, 8, 9]) == {7: NO_POD}
    assert procfs.trouble == ""
    assert procfs.owners([7, 9, 10]) == {7: NO_POD}
    assert f"{HIDES} (9)" in procfs.trouble
    assert procfs.owners([7, 10]) == {7: NO_POD}
    assert f"{HIDES} (10)" in procfs.trouble
    assert procfs.owners([7]) == {7: NO_POD}
    assert procfs.trouble == ""


def test_our_own_pod_s_process_proves_nothing(tree: Tree) -> None:
    """Any pod's ``/proc`` shows it; another pod's only the host's does."""
    procfs = ProcFs(tree.root)
    other = str(uuid.uuid4())
    tree.process(1, INSIDE)
    (tree.root / "proc" / "self").symlink_to("1")
    for _ in range(2):
        assert procfs.owners([1, 9]) == {1: OURS}
    assert f"{HIDES} (9)" in procfs.trouble
    tree.process(2, f"0::/kubepods/pod{other}/{CONTAINER}\n")
    for _ in range(2):
        assert procfs.owners([1, 2, 9]) == {1: OURS, 2: Owner(other, CONTAINER)}
        assert procfs.trouble == ""


def test_what_ended_is_no_trouble(tree: Tree) -> None:
    """One that has just ended is none where any process was seen before."""
    for cgroup, lists in (
        (INSIDE, ([7], [7], [7, 8], [9])),
        (OUTSIDE, ([8], [9], [10])),
    ):
        procfs = ProcFs(tree.root)
        folder = tree.process(7, cgroup)
        assert procfs.owners([7])
        shutil.rmtree(folder)
        for pids in lists:
            assert procfs.owners(pids) == {}
            assert procfs.trouble == ""


@pytest.mark.parametrize("stat", ["", "7 (train", "7 (train) S 1 2 3", "\x00" * 40])
def test_a_line_cut_short_is_of_nobody_we_know(tree: Tree, stat: str) -> None:
    """It raises nothing and takes no other process's owner away."""
    tree.process(8, INSIDE)
    (tree.process(7, INSIDE) / "stat").write_text(stat)
    assert ProcFs(tree.root).owners([7, 8]) == {8: OURS}
