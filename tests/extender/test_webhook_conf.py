"""The real webhook: gunicorn over TLS, as the Deployment starts it."""

import http.client
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from cryptography import x509
from jsonpatch import apply_patch

from gpushare.addresses import free_address
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpusharectl.demo.api_server import ApiServerOnLoopback
from tests.builders import card, node_json, pod_json
from tests.extender.parallel_reviews import Call, all_at_once
from tests.extender.webhook_client import asked, steps_of
from tests.testbed.certificates import Certificates, certificates
from tests.testbed.process import Launcher
from tests.testbed.rest import Rest
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.processes

COMMAND = (
    sys.executable,
    "-m",
    "gunicorn",
    "--config",
    "python:extender.webhook_conf",
    "extender.main:build_webhook()",
)
MANY = 500
SLOW = 100


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

    def ask(self, link: http.client.HTTPSConnection, body: Json) -> Json:
        headers = {"Content-Type": "application/json"}
        link.request("POST", "/mutate", orjson.dumps(body), headers)
        answer = link.getresponse()
        assert answer.status == 200
        found: Json = orjson.loads(answer.read())["response"]
        return found


def environment(folder: Path, held: Certificates, kubeconfig: Path) -> dict[str, str]:
    settings = {
        "LISTEN": str(free_address()),
        "PUBLIC_LISTEN": str(free_address()),
        "TLS_CERT": held.path("server.crt"),
        "TLS_KEY": held.path("server.key"),
        "KUBECONFIG": str(kubeconfig),
        "BITFUSION_CARD_MIB": "auto",
        "LOG_FORMAT": "text",
    }
    return os.environ | {f"GPUSHARE_{key}": value for key, value in settings.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("webhook")
    held = certificates(folder / "tls")
    cluster = Embedded(bookmark_every_s=0.5)
    cluster.create(Kind.NODES, node_json("n", card(units=29)))
    launcher = Launcher(folder)
    with ApiServerOnLoopback(cluster) as api:
        child = environment(folder, held, api.kubeconfig(folder / "kubeconfig"))
        process = launcher.start("webhook", COMMAND, child)
        port, public = (
            int(child[f"GPUSHARE_{name}"].rpartition(":")[2])
            for name in ("LISTEN", "PUBLIC_LISTEN")
        )
        found = Served(cluster, held, port, Rest(public, tls=False))
        try:
            process.wait_ready(lambda: found.public.get("/readyz")[0] == 200)
            yield found
        finally:
            process.stop()
            launcher.end_all()


def of_bitfusion(percent: int) -> Json:
    pod = pod_json(f"b-{percent}")
    limits = {
        "bitfusion.io/gpu-amount": "1",
        "bitfusion.io/gpu-percent": str(percent),
    }
    resources = {"limits": limits, "requests": dict(limits)}
    main = pod["spec"]["containers"][0]
    main |= {"command": ["python a.py"], "resources": resources}
    return pod


def call(number: int) -> Call:
    """One of four kinds of review, each with a number of its own in it."""
    units, uid = number % 29 + 1, f"uid-{number}"
    match number % 4:
        case 0:
            return Call("/mutate", asked(pod_json(units=units), uid=uid))
        case 1:
            path = "/mutate/bitfusion-all"
            return Call(path, asked(of_bitfusion(number % 99 + 1), uid=uid))
        case 2:
            path = "/mutate/bitfusion-injection"
            return Call(path, asked(of_bitfusion(number % 99 + 1), uid=uid))
        case _:
            wrong = pod_json(units=units, cores=1000 + number)
            return Call("/validate", asked(wrong, uid=uid))


def check(number: int, asked_for: Call, answer: Json) -> None:
    """See that an answer is to this question, and to no other."""
    response = answer["response"]
    assert response["uid"] == f"uid-{number}"
    if asked_for.path == "/validate":
        cores = 1000 + number
        assert response["allowed"] is (cores % 100 == 0)
        if not response["allowed"]:
            assert f": {cores} cores are neither" in response["status"]["message"]
        return
    pod = asked_for.body["request"]["object"]
    main = apply_patch(pod, steps_of(response))["spec"]["containers"][0]
    limits = main["resources"]["limits"]
    if asked_for.path == "/mutate":
        assert limits == {names.CORE: "1", names.MEMORY: str(number % 29 + 1)}
        return
    percent = number % 99 + 1
    assert limits[names.CORE] == str(percent)
    assert limits[names.MEMORY] == str(max(1, percent * 29 // 100))
    wrapped = asked_for.path.endswith("-all")
    assert (main["command"][0] == "/bin/bash") is wrapped


def test_five_hundred_at_once(served: Served) -> None:
    """Each hears what is its own: nothing is kept from one review to the next."""
    calls = [call(number) for number in range(MANY)]
    answers = all_at_once(served.port, served.held.client(None), calls)
    for number, (one, answer) in enumerate(zip(calls, answers, strict=True)):
        check(number, one, answer)


def test_the_pool_follows_the_nodes(served: Served) -> None:
    """A card that comes is known to the next review, and one that goes is not."""
    with closing(served.connect()) as link:
        body = asked(pod_json(units=60, cores=1))

        def warned() -> bool:
            return "warnings" in served.ask(link, body)

        wait_until(warned, "a warning of the largest card")
        served.cluster.create(Kind.NODES, node_json("large", card(units=94)))
        wait_until(lambda: not warned(), "news of the larger card")


def serial(link: http.client.HTTPSConnection) -> int:
    assert isinstance(link.sock, ssl.SSLSocket)
    shown = link.sock.getpeercert(binary_form=True)
    assert shown
    return x509.load_der_x509_certificate(shown).serial_number


def test_a_certificate_is_renewed_without_a_gap(served: Served) -> None:
    """Who is connected stays so; who comes sees the new one; nobody is turned away."""
    body = asked(pod_json(units=4))
    with closing(served.connect()) as old:
        assert served.ask(old, body)["allowed"]
        before = serial(old)
        renewed = served.held.renew("server")
        shown = set()
        for _ in range(20):
            with closing(served.connect()) as new:
                assert served.ask(new, body)["allowed"]
                shown.add(serial(new))
        assert shown == {renewed}
        assert served.ask(old, body)["allowed"]
        assert serial(old) == before != renewed


def test_metrics_and_health_are_on_the_public_port(served: Served) -> None:
    """Of that listener reviews are none of the business."""
    assert served.public.get("/healthz")[0] == 200
    status, answer = served.public.get("/metrics")
    assert status == 200
    text = str(answer["text"])
    assert 'vcuda_webhook_reviews_total{path="/mutate",result="changed"}' in text
    expires = "vcuda_webhook_certificate_not_after_timestamp_seconds"
    assert f'{expires}{{file="server"}}' in text
    assert served.public.post("/mutate", asked(pod_json()))[0] == 405


def test_a_hundred_who_drip_keep_no_probe_waiting(served: Served) -> None:
    """Else anybody could have kubelet find it unready, and nobody could make pods."""
    where = ("127.0.0.1", served.public.port)
    with ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(where, timeout=30))
            for _ in range(SLOW)
        ]
        for drop in (b"GET /readyz HTTP/1.1", b"\r\nA: ", b"b", b"c"):
            for link in slow:
                with suppress(ConnectionError):
                    link.sendall(drop)
            for _ in range(5):
                assert served.public.get("/readyz")[0] == 200
                assert served.public.get("/healthz")[0] == 200


def test_plain_http_is_not_spoken(served: Served) -> None:
    """A pod's variables may be in a review."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as link:
        link.sendall(b"POST /mutate HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        heard = b""
        with suppress(ConnectionResetError):
            heard = link.recv(1000)
        assert b"HTTP/1.1 200" not in heard


def test_all_complaints_at_the_start(tmp_path: Path) -> None:
    """On standard error, before anything listens."""
    held = certificates(tmp_path / "tls")
    child = environment(tmp_path, held, tmp_path / "no-kubeconfig")
    child |= {"GPUSHARE_TLS_KEY": held.path("client.key"), "GPUSHARE_VOID": "perhaps"}
    done = subprocess.run(
        COMMAND, env=child, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "The webhook cannot start:\n" in done.stderr
    for setting in ("TLS_KEY", "VOID", "KUBECONFIG"):
        assert f"  GPUSHARE_{setting}: " in done.stderr
