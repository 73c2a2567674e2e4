"""The real servers under gunicorn, as child processes, and what is seen of them."""

import http.client
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.kube import names
from gpushare.kube.cluster import Kind
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import card, node_json, pod_json
from tests.fuzz.bodies import NODES, WAITING
from tests.testbed.certificates import certificates
from tests.testbed.gunicorn_server import running_server
from tests.testbed.process import Process
from tests.testbed.rest import Rest

JSON = {"Content-Type": "application/json"}
BROKEN = (http.client.HTTPException, ConnectionError)


@dataclass
class Served:
    """One server that answers."""

    process: Process
    port: int
    public: Rest
    tls: ssl.SSLContext | None = None
    uids: Mapping[str, str] = field(default_factory=dict)
    """Of the pods that wait."""
    _link: http.client.HTTPConnection | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = JSON,
    ) -> tuple[int, bytes]:
        """Send one request on a kept connection; on a new one where that was closed."""
        for fresh in (False, True):
            if fresh or self._link is None:
                self.hang_up()
                self._link = self._connect()
            try:
                self._link.request(method, path, body, dict(headers))
                answer = self._link.getresponse()
                return answer.status, answer.read()
            except BROKEN:
                if fresh:
                    raise
        raise AssertionError

    def hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def workers(self) -> list[int]:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in children.split()]

    def resident_kib(self) -> int:
        """Give the resident memory of the one worker."""
        (worker,) = self.workers()
        lines = Path(f"/proc/{worker}/status").read_text().splitlines()
        (found,) = (line for line in lines if line.startswith("VmRSS:"))
        return int(found.split()[1])

    def said(self) -> list[str]:
        """Give what it logged of bugs of its own."""
        lines = self.process.log.read_text(errors="replace").splitlines()
        return [
            line for line in lines if "internal error" in line or "Traceback" in line
        ]

    def _connect(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        return http.client.HTTPSConnection(
            "localhost", self.port, context=self.tls, timeout=60
        )


def cluster() -> tuple[Embedded, dict[str, str]]:
    """Three nodes with cards, one whose cards nobody can read; pods that run, wait."""
    found = Embedded(bookmark_every_s=0.5)
    for name in NODES[:3]:
        cards = [card(index, 29, uuid=f"{name}-{index}") for index in range(2)]
        found.create(Kind.NODES, node_json(name, *cards))
    broken = node_json("n-3", annotations={names.CARDS: '{"v":1'})
    found.create(Kind.NODES, broken)
    running = pod_json("running", units=9, node="n-0", phase="Running")
    found.create(Kind.PODS, running)
    uids = {}
    for number in range(WAITING):
        made = found.create(Kind.PODS, pod_json(f"wait-{number}", units=4, cores=10))
        uids[f"wait-{number}"] = made["metadata"]["uid"]
    return found, uids


@contextmanager
def extender(folder: Path) -> Iterator[Served]:
    """Serve the extender over a cluster in memory."""
    with _running(folder, "extender", {}) as found:
        yield found


@contextmanager
def webhook(folder: Path) -> Iterator[Served]:
    """Serve the webhook, with all that it can be told to look at."""
    held = certificates(folder / "tls")
    more = {
        "TLS_CERT": held.path("server.crt"),
        "TLS_KEY": held.path("server.key"),
        "BITFUSION_CARD_MIB": "auto",
    }
    with _running(folder, "webhook", more, held.client(None)) as found:
        yield found


@contextmanager
def _running(
    folder: Path,
    package: str,
    more: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
) -> Iterator[Served]:
    memory, uids = cluster()
    settings = {"LOG_FORMAT": "text", **more}
    with running_server(folder, package, memory, settings) as server:
        served = Served(server.process, server.port, server.public, tls, uids)
        try:
            yield served
        finally:
            served.hang_up()
