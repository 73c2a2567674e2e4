"""Children of the tests: they say why they died, and never outlive their parent."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.process import Launcher, ProcessDiedError
from tests.testbed.waiting import wait_until

STARTS_A_SLEEPER = """
import sys, pathlib, time
from tests.testbed.process import Launcher
child = Launcher(pathlib.Path(sys.argv[1])).start("sleeper", ["sleep", "600"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.end_all()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


def test_early_death_shows_the_log(launcher: Launcher) -> None:
    """The error names the process, its exit code and its last words."""
    process = launcher.start("shortlived", ["sh", "-c", "echo no such flag; exit 3"])
    with pytest.raises(ProcessDiedError, match=r"shortlived ended \(3\)[^$]*no such"):
        process.wait_ready(lambda: False)


def test_end_all_ends_a_process_that_ignores_sigterm(launcher: Launcher) -> None:
    """Nothing is asked politely at the end."""
    process = launcher.start("stubborn", ["sh", "-c", "trap '' TERM; sleep 600"])
    launcher.end_all()
    assert not alive(process.pid)


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    """Even a SIGKILL of pytest leaves no etcd behind."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_A_SLEEPER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not alive(child), "end of the orphan")
