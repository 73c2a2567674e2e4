"""Namespaces that a process holds: network, mounts, host name and process ids.

Nothing has a name in the file system and nothing outlives the process, so that not
even a killed test run leaves a namespace, a mount or a link behind.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.process import LEASH, Launcher, Process, ProcessDiedError

HERE = Path(__file__).parent
NO_PARENT_IN_SIGHT = "0"
"""What a process sees as its parent's id when that one lives outside."""


@dataclass
class InsideProcess(Process):
    """A process in another process-id namespace, as seen and signalled from here.

    ``popen`` is nsenter, which waits outside and ends as the process inside ends.
    """

    inside: int | None = None

    @property
    def pid(self) -> int:
        return self.popen.pid if self.inside is None else self.inside

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        if number in {signal.SIGCONT, signal.SIGKILL}:
            # nsenter stops itself along with its child, and must go on to see it end.
            self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.running:
            self.send(signal.SIGKILL)
        self.popen.wait()

    def stop(self, timeout_s: float = 60.0) -> None:
        if self.running:
            self.send(signal.SIGTERM)
        try:
            self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()


class Namespaces:
    """Network, mounts, host name and process ids of one node."""

    def __init__(self, launcher: Launcher, name: str, command: Sequence[str]) -> None:
        """Start ``command`` as the first process; its end ends all others inside."""
        self.name = name
        self._launcher = launcher
        flags = ["--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc"]
        self.holder = launcher.start(
            f"{name}.init", ["unshare", *flags, "--kill-child", *command]
        )
        self.pid = first_child(self.holder)

    def enter(self, command: Sequence[str]) -> list[str]:
        return entered(self.pid, command)

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a short command inside to its end; look at its ``returncode``."""
        return subprocess.run(
            self.enter(command),
            env=environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            check=False,
        )

    def must(self, *command: str) -> str:
        return succeeded(self.run(command))

    def launch(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> InsideProcess:
        """Start a process inside; it dies with this program, and with the node."""
        leashed = [sys.executable, "-IS", str(LEASH), NO_PARENT_IN_SIGHT, *command]
        log = f"{self.name}.{name}"
        outside = self._launcher.start(log, self.enter(leashed), environment)
        process = InsideProcess(name, outside.log, outside.popen)
        # It may have ended already; then there is nothing left to signal.
        with contextlib.suppress(ProcessDiedError):
            process.inside = first_child(outside)
        return process

    def end_processes(self) -> None:
        """Kill everything inside but the first process, as a power cut would."""
        self.run(["sh", "-c", "kill -KILL -1"])

    def close(self) -> None:
        """End the first process, and with it every other one; wait until all have."""
        if self.holder.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.holder.popen.wait()

    def path(self, inside: str | Path) -> Path:
        """Say where a file of the node is seen from outside, mounts included."""
        return Path(f"/proc/{self.pid}/root") / str(inside).lstrip("/")


def entered(pid: int, command: Sequence[str]) -> list[str]:
    """Give what runs a command in the namespaces that this process holds."""
    spaces = ["--net", "--mount", "--uts", "--pid"]
    return ["nsenter", f"--target={pid}", *spaces, *command]


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """Give a command's output; its exit code and words are the error otherwise."""
    if done.returncode != 0:
        words = (done.stdout + done.stderr).strip()
        raise AssertionError(f"{done.args} ended ({done.returncode}): {words}")
    return done.stdout


def first_child(process: Process, timeout_s: float = 60.0) -> int:
    """Wait for the process's first child and give its id, as seen from here."""
    children = Path(f"/proc/{process.popen.pid}/task/{process.popen.pid}/children")
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(OSError):
            if found := children.read_text().split():
                return int(found[0])
        if not process.running or time.monotonic() > deadline:
            raise ProcessDiedError(f"{process.name} did not start{process.log_tail()}")
        time.sleep(0.005)
