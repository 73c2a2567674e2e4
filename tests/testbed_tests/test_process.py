"""Children of the tests never outlive their parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.testbed.waiting import wait_until

STARTS_A_SLEEPER = """
import sys, pathlib, time
from tests.testbed.process import Launcher
child = Launcher(pathlib.Path(sys.argv[1])).start("sleeper", ["sleep", "600"])
print(child.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


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
