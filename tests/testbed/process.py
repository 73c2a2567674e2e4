"""Child processes that log to a file, say why they died, and end with the tests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

LEASH = Path(__file__).with_name("leash.py")
GO_ENVIRONMENT = {"GOGC": "400"}
"""Kubernetes' programs collect garbage less often, since cores are what tests lack."""


class ProcessDiedError(RuntimeError):
    """A process ended, or never became ready; the message shows its last log lines."""


@dataclass
class Process:
    name: str
    log: Path
    popen: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send any signal: SIGSTOP and SIGCONT make the process hang and go on.

        After SIGSTOP it waits until all threads hang. A busy machine takes some
        milliseconds for it, in which the process would still answer.
        """
        self.popen.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """End it the hard way, as a crash would, and wait until it is gone."""
        self.popen.kill()
        self.popen.wait()

    def stop(self, timeout_s: float = 60.0) -> None:
        """Ask it to end and wait; kill it when it has not ended in time."""
        self.popen.terminate()
        try:
            self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait_ready(self, ready: Callable[[], bool], timeout_s: float = 90.0) -> None:
        """Return once ``ready`` says so; it may raise OSError while nobody listens."""
        deadline = time.monotonic() + timeout_s
        while not _tolerant(ready):
            if not self.running:
                code = self.popen.returncode
                raise ProcessDiedError(f"{self.name} ended ({code}){self.log_tail()}")
            if time.monotonic() > deadline:
                raise ProcessDiedError(
                    f"{self.name} not ready after {timeout_s} s{self.log_tail()}"
                )
            time.sleep(0.05)

    def log_tail(self, lines: int = 20) -> str:
        last = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f", last lines of {self.log}:", *last])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _tolerant(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except OSError:
        return False


@dataclass
class Launcher:
    """Starts children that die with this program, and ends those left at the end."""

    folder: Path
    started: list[Process] = field(default_factory=list)
    # All children come from one thread that lives as long as the launcher, because
    # the kernel's parent-death signal fires when the *thread* that forked ends.
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "launcher")
    )

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command; its output goes to ``<folder>/<name>.log``, appended."""
        process = self._thread.submit(self._spawn, name, command, environment).result()
        self.started.append(process)
        return process

    def end_all(self) -> None:
        """Kill what still runs, the youngest first."""
        for process in reversed(self.started):
            process.kill()
        self._thread.shutdown()

    def _spawn(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None
    ) -> Process:
        path = self.folder / f"{name}.log"
        with path.open("ab") as log:
            popen = subprocess.Popen(
                [sys.executable, "-IS", LEASH, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **GO_ENVIRONMENT,
                    **(os.environ if environment is None else environment),
                },
                start_new_session=True,  # so that Ctrl-C reaches the tests alone
            )
        return Process(name, path, popen)
