"""The real webhook: gunicorn over TLS, as the Deployment starts it."""

import http.client
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from cryptography import x509
from jsonpatch import apply_patch

from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import card, node_json, pod_json
from tests.testbed.certificates import Certificates, certificates
from tests.testbed.gunicorn_server import command_of, running_server
from tests.testbed.rest import Rest
from tests.webhook.webhook_client import asked, steps_of

pytestmark = pytest.mark.processes

BEFORE = (
    *command_of("webhook")[:4],
    "python:extender.webhook_conf",
    "extender.main:build_webhook()",
)
"""In manifests from before the webhook was a package of its own."""
MODES = ("all", "injection")
MANY, CLIENTS = 500, 50
SLOW = 200
ROOM = 230
"""Connections at a time: fewer than the floods below."""


@dataclass(frozen=True)
class Served:
    """One webhook that answers, and what it was started with."""

    cluster: Embedded
    held: Certificates
    port: int
    public: Rest

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            "localhost", self.port, context=self.held.client(None), timeout=30
        )

    def ask(
        self, link: http.client.HTTPSConnection, body: Json, path: str = "/mutate"
    ) -> Json:
        headers = {"Content-Type": "application/json"}
        link.request("POST", path, orjson.dumps(body), headers)
        answer = link.getresponse()
        assert answer.status == 200
        found: Json = orjson.loads(answer.read())["response"]
        return found


@contextmanager
def serving(
    folder: Path, *options: str, words: tuple[str, ...] = (), **more: str
) -> Iterator[Served]:
    """Run it as the Deployment does, with these options of gunicorn and settings."""
    held = certificates(folder / "tls")
    cluster = Embedded(bookmark_every_s=0.5)
    cluster.create(Kind.NODES, node_json("n", card(units=29)))
    settings = {
        "TLS_CERT": held.path("server.crt"),
        "TLS_KEY": held.path("server.key"),
        "BITFUSION_CARD_MIB": "auto",
        **more,
    }
    with running_server(
        folder, "webhook", cluster, settings, options=options, command=words
    ) as server:
        yield Served(cluster, held, server.port, server.public)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With room for few."""
    room = f"--worker-connections={ROOM}"
    with serving(tmp_path_factory.mktemp("webhook"), room) as found:
        yield found


def ask_and_check(served: Served, link: http.client.HTTPSConnection, n: int) -> None:
    """Ask one of four kinds of review, with a number of its own in question and answer.

    The largest card has 29 units.
    """
    path = ("/mutate", "/validate", *(f"/mutate/bitfusion-{m}" for m in MODES))[n % 4]
    cores, units = 1, n % 29 + 1
    pod = pod_json(units=units)
    if path == "/validate":
        pod = pod_json(units=units, cores=1000 + n)
    elif path != "/mutate":
        cores = n % 99 + 1
        units = max(1, cores * 29 // 100)
        limits = {"bitfusion.io/gpu-amount": 1, "bitfusion.io/gpu-percent": cores}
        main = {"command": ["python a.py"], "resources": {"limits": limits}}
        pod["spec"]["containers"][0] |= main
    response = served.ask(link, asked(pod, uid=f"uid-{n}"), path)
    assert response["uid"] == f"uid-{n}"
    if path == "/validate":
        assert f": {1000 + n} cores are" in response["status"]["message"]
        return
    main = apply_patch(pod, steps_of(response))["spec"]["containers"][0]
    given = main["resources"]["limits"]
    assert given == {names.CORE: str(cores), names.MEMORY: str(units)}
    assert ("/bin/bash" in main.get("command", ())) is path.endswith("-all")


def test_the_command_of_older_manifests(tmp_path: Path) -> None:
    """During an upgrade they meet the new image."""
    with serving(tmp_path, words=BEFORE) as served, closing(served.connect()) as link:
        ask_and_check(served, link, 0)


def test_five_hundred_at_once(served: Served) -> None:
    """Each hears what is its own: nothing is kept from one review to the next."""

    def ask(start: int) -> None:
        with closing(served.connect()) as link:
            for number in range(start, MANY, CLIENTS):
                ask_and_check(served, link, number)

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(ask, range(CLIENTS)))


def test_a_certificate_is_renewed_without_a_gap(served: Served) -> None:
    """Who is connected stays so; who comes sees the new one; nobody is turned away."""
    body = asked(pod_json(units=4))

    def serial(link: http.client.HTTPSConnection) -> int:
        assert served.ask(link, body)["allowed"]
        assert isinstance(link.sock, ssl.SSLSocket)
        shown = link.sock.getpeercert(binary_form=True)
        assert shown
        return x509.load_der_x509_certificate(shown).serial_number

    with closing(served.connect()) as old:
        before = serial(old)
        renewed = served.held.renew("server")
        for _ in range(5):
            with closing(served.connect()) as new:
                assert serial(new) == renewed
        assert serial(old) == before != renewed


def test_metrics_and_health_are_on_the_public_port(served: Served) -> None:
    assert served.public.get("/healthz")[0] == 200
    status, answer = served.public.get("/metrics")
    assert status == 200
    text = str(answer["text"])
    assert 'vcuda_webhook_reviews_total{path="/mutate",result="changed"}' in text
    expires = "vcuda_webhook_certificate_not_after_timestamp_seconds"
    assert f'{expires}{{file="server"}}' in text
    assert served.public.post("/mutate", asked(pod_json()))[0] == 405


STRANGER = "127.0.0.2"
HEAD = b"POST /mutate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


WAYS = {
    "half a head": HEAD,
    "half a body": HEAD + b"Content-Length: 99\r\n\r\n{",
    "a handshake alone": b"",
    "half a handshake": b"\x16\x03\x01\x02\x00\x01",
    "nothing": b"",
}
"""Of keeping a server waiting; the last two shake no hands."""


def come(
    served: Served,
    stack: ExitStack,
    says: bytes,
    *,
    source: str = "127.0.0.1",
    shakes: bool = True,
    small: bool = False,
) -> socket.socket:
    """Connect and say this; ``small`` keeps little of what is not read."""
    plain = socket.socket()
    if small:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.settimeout(60)
    plain.bind((source, 0))
    plain.connect(("127.0.0.1", served.port))
    link = stack.enter_context(closing(plain))
    if shakes:
        meet = served.held.client(None).wrap_socket
        link = stack.enter_context(closing(meet(link, server_hostname="localhost")))
    with suppress(ConnectionError, ssl.SSLError):
        link.sendall(says)
    return link


def slow(served: Served, stack: ExitStack, way: int, source: str) -> socket.socket:
    says = list(WAYS.values())[way % 5]
    return come(served, stack, says, source=source, shakes=way % 5 < 3)


def test_nobody_waits_for_the_slow(served: Served) -> None:
    """From the same address, forty of each kind, and all of them still there."""
    with ExitStack() as stack, closing(served.connect()) as before:
        assert served.ask(before, asked(pod_json()))["allowed"]
        for number in range(SLOW):
            slow(served, stack, number, "127.0.0.1")
        for number in range(5):
            assert served.ask(before, asked(pod_json(), uid=f"{number}"))["allowed"]
            with closing(served.connect()) as new:
                assert served.ask(new, asked(pod_json(units=4)))["patch"]


def test_a_flood_drowns_itself(served: Served) -> None:
    """More than there is room for: the address that has most gives way to others."""
    with ExitStack() as stack, closing(served.connect()) as before:
        assert served.ask(before, asked(pod_json()))["allowed"]
        for _ in range(2 * ROOM):
            slow(served, stack, -1, STRANGER)
        for link in (before, stack.enter_context(closing(served.connect()))):
            assert served.ask(link, asked(pod_json()))["allowed"]


def test_who_is_slow_is_hung_up_on(served: Served) -> None:
    with ExitStack() as stack:
        links = {way: slow(served, stack, n, STRANGER) for n, way in enumerate(WAYS)}
        for way, link in links.items():
            with suppress(ConnectionError, ssl.SSLError):
                assert link.recv(10) == b"", way


def test_who_does_not_hang_up_is_hung_up_on(served: Served) -> None:
    """Answered with an error, and silent: nobody waits for him to close first."""
    with ExitStack() as stack:
        for _ in range(20):
            link = come(served, stack, b"nonsense\r\n\r\n")
            assert link.recv(12) == b"HTTP/1.1 400"
        honest = stack.enter_context(closing(served.connect()))
        assert served.ask(honest, asked(pod_json()))["allowed"]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"411"),
        (b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n", b"417"),
        (b"Content-Length: %d\r\n\r\n" % 10**16, b"413"),
        (b"Content-Length: %d\r\n\r\n" % (9 << 20) + b" " * (9 << 20), b"413"),
    ],
    ids=["chunks", "expect", "no end", "long"],
)
def test_after_a_body_that_is_not_kept_nothing_follows(
    served: Served, more: bytes, status: bytes
) -> None:
    """He is told at once, and hung up on: his next bytes may be the body's rest."""
    with ExitStack() as stack:
        link = come(served, stack, HEAD + more, source=STRANGER)
        heard = b"".join(iter(lambda: link.recv(1 << 16), b""))
        assert heard.startswith(b"HTTP/1.1 " + status)
        assert b"\r\nconnection: close\r\n" in heard.lower()
        assert heard.endswith(b"}")


UNREADING = 32


def test_who_takes_no_answers_is_hung_up_on(served: Served) -> None:
    """They ask on and read nothing; others are answered meanwhile and afterwards."""
    body = orjson.dumps(asked(pod_json(units=4)))
    many = (HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body) * 100

    def asks_on(link: socket.socket) -> str:
        try:
            for _ in range(1000):
                link.sendall(many)
        except TimeoutError:
            return "waits"
        except OSError:
            return "hung up on"
        return "answered"

    with ExitStack() as stack, closing(served.connect()) as before:
        assert served.ask(before, asked(pod_json()))["allowed"]
        deaf = [
            come(served, stack, b"", source=STRANGER, small=True)
            for _ in range(UNREADING)
        ]
        with ThreadPoolExecutor(UNREADING) as pool:
            asking = [pool.submit(asks_on, link) for link in deaf]
            for number in range(5):
                assert served.ask(before, asked(pod_json(), uid=f"{number}"))["allowed"]
            assert {one.result() for one in asking} == {"hung up on"}
        assert served.ask(before, asked(pod_json()))["allowed"]
