"""The extender over a cluster in memory, as a child process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from gpushare.addresses import find_free_address

_START_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """Where it listens, and which process answers."""

    port: int
    """Of the verbs and the echo."""
    public: int
    """Of /metrics."""
    worker: int


@contextmanager
def server(nodes: int, pods: int) -> Iterator[Served]:
    """Run the extender over a cluster of this size until it has read all of it."""
    port, public = find_free_address().port, find_free_address().port
    environment = os.environ | {
        "BENCH_NODES": str(nodes),
        "BENCH_PODS": str(pods),
        "GPUSHARE_LISTEN": f"127.0.0.1:{port}",
        "GPUSHARE_PUBLIC_LISTEN": f"127.0.0.1:{public}",
        "GPUSHARE_LOG_LEVEL": "WARNING",
    }
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--config",
        "python:bench.gunicorn_conf",
    ]
    child = subprocess.Popen([*command, "bench.server:build()"], env=environment)
    try:
        wait_ready(child, public)
        listed = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
        (worker,) = listed.split()
        yield Served(port, public, int(worker))
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()


def wait_ready(child: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the extender has read its cluster."""
    deadline = time.monotonic() + _START_WITHIN_S
    while child.poll() is None and time.monotonic() < deadline:
        link = HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            link.request("GET", "/readyz")
            if link.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            link.close()
        time.sleep(0.1)
    raise RuntimeError("the extender did not come up")
