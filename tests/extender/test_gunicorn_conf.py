"""The real extender's gunicorn: busy clients, and those beside them."""

import os
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from gpushare.kube.cluster import Json, Kind
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import card, node_json, pod_json
from tests.extender.extender_fixture import binding
from tests.testbed.certificates import Certificates, certificates
from tests.testbed.gunicorn_server import running_server
from tests.testbed.process import Process
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.processes

THREADS = 2
SLOW = 200
NAME = "localhost"
FILTER = orjson.dumps({"Pod": pod_json(units=4), "NodeNames": ["n"]})
REQUEST = (
    b"POST /scheduler/filter HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
) % (len(FILTER), FILTER)
ANSWERED = b'"NodeNames":["n"]'
LAST = re.compile(rb'"Error":"[^"]*"}')


@contextmanager
def serving(
    folder: Path,
    threads: int,
    held: Certificates | None = None,
    cluster: Embedded | None = None,
) -> Iterator[tuple[int, Process]]:
    """Run it as the DaemonSet does, with certificates over TLS; gives its port."""
    cluster = cluster or Embedded()
    cluster.create(Kind.NODES, node_json("n", card(units=29)))
    settings = {"THREADS": str(threads), **(held.settings if held else {})}
    with running_server(folder, "extender", cluster, settings) as server:
        yield server.port, server.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extender")


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    with serving(folder, THREADS) as (port, _):
        yield port


def connect(port: int, stack: ExitStack, says: bytes = b"") -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port), timeout=30)
    stack.enter_context(closing(link)).sendall(says)
    return link


def worker_of(process: Process) -> int:
    """The worker of gunicorn's master; 0 between two of them."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int((children.read_text().split() or ["0"])[0])


def ask(port: int) -> None:
    assert answered(port)


def answered(port: int) -> bool:
    """Whether filter names the node; until pods are listed it says why it does not."""
    with ExitStack() as stack:
        return ANSWERED in answers(connect(port, stack, REQUEST))


def answers(link: socket.socket, count: int = 1) -> bytes:
    """Read so many answers, each of which ends with filter's last field."""
    heard = b""
    while len(LAST.findall(heard)) < count:
        more = link.recv(65536)
        assert more, f"hung up after {heard!r}"
        heard += more
    return heard


def test_one_answer_for_each_question(port: int) -> None:
    """At once, after a pause, and two in one breath."""
    with ExitStack() as stack:
        link = connect(port, stack)
        for pause_s in (0.0, 0.0, 0.2, 0.0):
            time.sleep(pause_s)
            link.sendall(REQUEST)
            assert answers(link).count(ANSWERED) == 1
        link.sendall(REQUEST * 2)
        assert answers(link, 2).count(ANSWERED) == 2


def test_half_a_request_after_a_whole_one(port: int) -> None:
    """Nobody waits for the rest, and nothing of it is lost."""
    with ExitStack() as stack:
        both = REQUEST + REQUEST[:100]
        slow = [connect(port, stack, both) for _ in range(SLOW)]
        for link in slow:
            assert ANSWERED in answers(link)
        ask(port)
        slow[-1].sendall(REQUEST[100:])
        assert ANSWERED in answers(slow[-1])


def test_the_silent_do_not_take_all_descriptors(tmp_path: Path) -> None:
    """Of 1,024 it leaves 64 to the public listener, and 40 for what else is open."""
    with serving(tmp_path, THREADS) as (port, process), ExitStack() as stack:
        worker = worker_of(process)
        _, most = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (1024 - 64 - 40, most))
        for _ in range(940):
            connect(port, stack)
        ask(port)
        assert worker_of(process) == worker


def test_a_new_worker_raises_a_low_limit_of_descriptors(tmp_path: Path) -> None:
    """In a flood many connections are accepted before the first of them is closed."""
    with serving(tmp_path, THREADS) as (port, process):
        worker = worker_of(process)
        _, most = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (1024, most))
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: worker_of(process) not in (0, worker), "a new worker")
        wait_until(lambda: answered(port), "a new worker that has listed pods")
        allowed, _ = resource.prlimit(worker_of(process), resource.RLIMIT_NOFILE)
        assert allowed == min(4096, most)


def test_what_clients_send_fills_no_log(port: int, folder: Path) -> None:
    """Nor is any line of another form than the others."""
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with ExitStack() as stack:
        for says in (b"nonsense\r\n\r\n", b"GET /a HTTP/1.1\r\n" + upgrade):
            assert connect(port, stack, says).recv(9) == b"HTTP/1.1 "
    with (folder / "extender.log").open("rb") as log:
        assert {orjson.loads(line)["event"] for line in log} == {"synced"}


@pytest.mark.parametrize("how", ["stopped", "master-killed"])
def test_it_ends_with_a_client_that_asks_on(tmp_path: Path, how: str) -> None:
    """A worker that outlives its master would be a second ledger for the same cards."""
    with serving(tmp_path, 16) as (port, process), ExitStack() as stack:
        link = connect(port, stack, REQUEST)
        worker = worker_of(process)
        answers(link)
        ending = threading.Thread(target=process.stop)
        if how == "stopped":
            ending.start()
            stack.callback(ending.join)
        else:
            os.kill(process.pid, signal.SIGKILL)
        late = time.monotonic() + 30
        try:
            with suppress(OSError):
                while time.monotonic() < late:
                    link.sendall(REQUEST)
                    if not link.recv(65536):
                        break
            gone = Path(f"/proc/{worker}/stat")
            wait_until(lambda: not gone.exists(), "end of worker")
        finally:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_request_that_comes_as_it_ends_is_answered(
    tmp_path: Path, *, tls: bool
) -> None:
    """Also one that began before; the answers say that they are the last."""
    held = certificates(tmp_path / "tls") if tls else None
    with serving(tmp_path, THREADS, held) as (port, process), ExitStack() as stack:
        links = [connect(port, stack) for _ in range(3)]
        if held is not None:
            wrap = partial(held.client().wrap_socket, server_hostname=NAME)
            links = [stack.enter_context(wrap(link)) for link in links]
        for link in links:
            link.sendall(REQUEST)
            answers(link)
        used, begun, silent = links
        begun.sendall(REQUEST[:-1])
        process.send(signal.SIGTERM)
        wait_until(lambda: not listens(port), "closed door")
        used.sendall(REQUEST)
        begun.sendall(REQUEST[-1:])
        for link in (used, begun):
            heard = answers(link)
            assert ANSWERED in heard
            assert b"connection: close" in heard
            assert link.recv(1) == b""
        assert silent.recv(1) == b""
        for link in links:
            link.close()
        assert process.popen.wait(timeout=30) == 0


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


class Slow(Embedded):
    """An API server that answers a binding when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.may = threading.Event()

    def bind(self, *args: Any, **more: Any) -> None:
        self.begun.release()
        assert self.may.wait(60)
        super().bind(*args, **more)


def bind_request(pod: Json) -> bytes:
    body = orjson.dumps(binding(pod))
    head = REQUEST[: REQUEST.index(b"Content-Length")].replace(b"filter", b"bind")
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_a_bind_under_way_is_answered_before_the_end(tmp_path: Path) -> None:
    """Told to end, it takes no new connection, and does not forget what it does."""
    slow = Slow()
    pod = slow.create(Kind.PODS, pod_json("slow", units=4))
    with (
        serving(tmp_path, THREADS, cluster=slow) as (port, process),
        ExitStack() as stack,
    ):
        link = connect(port, stack, bind_request(pod))
        assert slow.begun.acquire(timeout=30)
        ending = threading.Thread(target=process.stop)
        ending.start()
        stack.callback(ending.join)
        wait_until(lambda: not listens(port), "end of listening")
        slow.may.set()
        heard = answers(link)
        assert heard.endswith(b'{"Error":""}')
        assert b"connection: close" in heard.lower()
    assert slow.get(Kind.PODS, "default", "slow")["spec"]["nodeName"] == "n"


def test_binds_that_wait_hold_nobody_up(tmp_path: Path) -> None:
    """More of them than threads, while the API server does not answer."""
    slow = Slow()
    pods = [slow.create(Kind.PODS, pod_json(f"p-{n}", units=1)) for n in range(9)]
    with serving(tmp_path, THREADS, cluster=slow) as (port, _), ExitStack() as stack:
        stack.callback(slow.may.set)
        links = [connect(port, stack, bind_request(pod)) for pod in pods]
        for _ in range(THREADS):
            assert slow.begun.acquire(timeout=30)
        for _ in range(3):
            ask(port)
        slow.may.set()
        for link in links:
            assert answers(link).endswith(b'{"Error":""}')
