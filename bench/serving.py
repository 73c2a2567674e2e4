"""The extender or the webhook over a cluster in memory, as a child process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from types import MappingProxyType

from gpushare.addresses import find_free_address
from tests.testbed.waiting import wait_until

_START_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """Where it listens, and which process answers."""

    port: int
    """Of the calls and the echo."""
    public: int
    """Of /metrics."""
    worker: int


@contextmanager
def serve_extender(
    nodes: int, pods: int = 0, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Served]:
    """Run the extender over a cluster of this size until it has read all of it."""
    size = {"BENCH_NODES": str(nodes), "BENCH_PODS": str(pods)}
    with _serve("extender", {**size, **settings}) as served:
        yield served


@contextmanager
def serve_webhook(settings: Mapping[str, str]) -> Iterator[Served]:
    """Run the webhook over one node until it has read it."""
    with _serve("webhook", settings) as served:
        yield served


@contextmanager
def _serve(process: str, settings: Mapping[str, str]) -> Iterator[Served]:
    address, public = find_free_address(), find_free_address()
    environment = os.environ | {
        "GPUSHARE_LISTEN": str(address),
        "GPUSHARE_PUBLIC_LISTEN": str(public),
        "GPUSHARE_LOG_LEVEL": "WARNING",
        **settings,
    }
    command = [sys.executable, "-m", "gunicorn", "--config"]
    command += [f"python:bench.{process}_conf", f"bench.server:build_{process}()"]
    child = subprocess.Popen(command, env=environment)

    def is_ready() -> bool:
        if child.poll() is not None:
            raise RuntimeError(f"the {process} ended")
        link = HTTPConnection(public.host, public.port, timeout=5)
        with closing(link), suppress(OSError):
            link.request("GET", "/readyz")
            return link.getresponse().status == 200
        return False

    try:
        wait_until(is_ready, f"ready {process}", _START_WITHIN_S)
        listed = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
        yield Served(address.port, public.port, int(listed.split()[0]))
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()
