"""All parts of the demo's cluster on one desk, started and stopped together.

The extender is the real one, a child process under gunicorn, and talks to the embedded
API server over loopback HTTP. The others are stand-ins, in threads of this process.
"""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

from gpushare.kube.embedded import Embedded
from gpushare.settings import Address
from gpusharectl.demo.apiserver import ApiServerOnLoopback
from gpusharectl.demo.kubelet import StandInKubelet
from gpusharectl.demo.scheduler import StandInScheduler

_LOOPBACK = "127.0.0.1"
_START_WITHIN_S = 60.0
_STOP_WITHIN_S = 10.0


class CannotStartError(RuntimeError):
    """A part did not come up; the message has its last words."""


class Desk:
    """The running cluster; ``folder`` gets the kubeconfig and the extender's log."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Embedded()
        self.kubelet = StandInKubelet(self.cluster)
        self.kubeconfig = folder / "kubeconfig"
        self.log = folder / "extender.log"
        self._server = ApiServerOnLoopback(self.cluster)
        self._stop = Event()
        self._threads: list[Thread] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._public: Address | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything, the scheduler first, so that nobody asks in vain."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._child is not None:
            _end(self._child)
        self._server.stop()

    def extender_runs(self) -> bool:
        """Tell whether the extender is still there."""
        return self._child is not None and self._child.poll() is None

    def insist(self) -> None:
        """Raise ``CannotStartError`` with its last words when the extender ended."""
        if not self.extender_runs():
            words = self.log.read_text(errors="replace").strip()
            raise CannotStartError(f"the extender ended:\n{words}")

    def _start(self) -> None:
        self._server.start()
        self._server.kubeconfig(self.kubeconfig)
        listen = Address(_LOOPBACK, _free_port())
        self._public = Address(_LOOPBACK, _free_port())
        self._child = self._extender(listen, self._public)
        self._wait_ready(self._public)
        scheduler = StandInScheduler(self.cluster, listen)
        self._thread("scheduler", scheduler.run)
        self._thread("kubelet", self.kubelet.run)

    def _extender(self, listen: Address, public: Address) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            *("-m", "gunicorn", "--config", "python:extender.gunicorn_conf"),
            "extender.main:build()",
        ]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GPUSHARE_")}
        environment = kept | {
            "GPUSHARE_LISTEN": str(listen),
            "GPUSHARE_PUBLIC_LISTEN": str(public),
            "GPUSHARE_KUBECONFIG": str(self.kubeconfig),
            "GPUSHARE_LOG_FORMAT": "text",
        }
        with self.log.open("wb") as log:
            return subprocess.Popen(  # noqa: S603
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for us: we stop the extender when nobody asks it any more.
                start_new_session=True,
            )

    def _wait_ready(self, public: Address) -> None:
        deadline = time.monotonic() + _START_WITHIN_S
        while not _answers(public, "/readyz"):
            if not self.extender_runs() or time.monotonic() > deadline:
                words = self.log.read_text(errors="replace").strip()
                raise CannotStartError(f"the extender did not come up:\n{words}")
            time.sleep(0.05)

    def _thread(self, name: str, run: Callable[[Event], None]) -> None:
        thread = Thread(target=run, args=(self._stop,), name=name)
        self._threads.append(thread)
        thread.start()


def _answers(address: Address, path: str) -> bool:
    link = http.client.HTTPConnection(address.host, address.port, timeout=1)
    try:
        link.request("GET", path)
        return link.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        link.close()


def _end(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(_STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])
