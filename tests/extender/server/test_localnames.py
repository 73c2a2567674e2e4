"""By which names the verbs may be called: a page from elsewhere has none of them."""

import http.client
import importlib
from collections.abc import Iterator
from contextlib import closing
from threading import Event, Thread
from wsgiref.simple_server import WSGIRequestHandler, make_server

import orjson
import pytest
from gunicorn.config import Config
from gunicorn.http import RequestParser
from werkzeug.test import Client

from extender.main import assemble
from extender.server.app import is_local
from extender.settings import ExtenderSettings
from gpushare.fakeapi.cluster import Embedded

OURS = (
    "127.0.0.1:39999",
    "127.0.0.1",
    "[::1]:39999",
    "[::1]",
    "10.0.0.5:39999",
    "[fe80::1%eth0]:80",
    "localhost:41234",
    "LocalHost.",
    "a.localhost:1",
    "",
)
STRANGERS = (
    "page.example:39999",
    "page.example",
    "127.0.0.1.page.example:39999",
    "localhost.page.example",
    "notlocalhost",
    "control-plane-1:39999",
    "[page.example]:1",
    "[::1",
    "127.0.0.1,page.example",
    "me@127.0.0.1",
    "[::1].page.example",
    "[::1]page.example:39999",
    "[::1]:page.example",
    ":page.example",
    ":39999",
    "localhost:page.example",
    "127.0.0.1:39999:page.example",
)


@pytest.mark.parametrize("host", OURS)
def test_names_of_this_machine(host: str) -> None:
    """kube-scheduler's, a port-forward's, kubelet's for a probe."""
    assert is_local(host)


@pytest.mark.parametrize("host", STRANGERS)
def test_names_that_anybody_may_have(host: str) -> None:
    """Whatever else is in them."""
    assert not is_local(host)


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The verbs' listener, over a real socket."""
    stop = Event()
    made = assemble(ExtenderSettings(ui=True), Embedded(), stop)
    with make_server("127.0.0.1", 0, made.inner, handler_class=_Quiet) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()
    stop.set()


def asked(port: int, host: str | None, path: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as link:
        link.putrequest("GET", path, skip_host=True)
        if host is not None:
            link.putheader("Host", host)
        link.endheaders()
        answer = link.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize("path", ["/snapshot", "/ui", "/ui/state", "/metrics"])
@pytest.mark.parametrize("host", ["127.0.0.1:39999", "localhost:8080", "[::1]:1", None])
def test_a_real_request(port: int, host: str | None, path: str) -> None:
    assert asked(port, host, path)[0] == 200


@pytest.mark.parametrize(
    "path", ["/snapshot", "/ui", "/ui/state", "/metrics", "/nowhere", "/scheduler/bind"]
)
def test_a_page_from_elsewhere_reads_nothing(port: int, path: str) -> None:
    """It is told why, with what to write where it was somebody of ours."""
    status, body = asked(port, "page.example:39999", path)
    assert status == 421
    told = orjson.loads(body)
    assert told.keys() == {"error"}
    assert 'not as "page.example:39999"; call it by 127.0.0.1' in told["error"]


def test_it_binds_nothing_either() -> None:
    stop = Event()
    client = Client(assemble(ExtenderSettings(), Embedded(), stop).inner)
    stop.set()
    answer = client.post(
        "/scheduler/bind",
        base_url="http://page.example:39999",
        json={"PodName": "a", "PodNamespace": "b", "PodUID": "c", "Node": "d"},
    )
    assert answer.status_code == 421


def test_with_tls_a_certificate_says_who_it_is() -> None:
    """A name of the server's own certificate may stand in urlPrefix then."""
    stop = Event()
    tls = ExtenderSettings(tls_cert="a", tls_key="b", tls_client_ca="c")
    client = Client(assemble(tls, Embedded(), stop).inner)
    stop.set()
    answer = client.get("/healthz", base_url="https://control-plane-1:39999")
    assert answer.status_code == 200


def test_a_page_cannot_say_that_there_is_tls() -> None:
    """Some servers believe such a header, of this host's own addresses at least."""
    stop = Event()
    client = Client(assemble(ExtenderSettings(), Embedded(), stop).inner)
    stop.set()
    answer = client.get("/snapshot", base_url="https://page.example:39999")
    assert answer.status_code == 421


@pytest.mark.parametrize("name", ["gunicorn_conf", "webhook_conf"])
@pytest.mark.parametrize("header", ["X-Forwarded-Proto: https", "X-Forwarded-Ssl: on"])
def test_gunicorn_believes_no_such_header(name: str, header: str) -> None:
    """Its own default is to, from 127.0.0.1."""
    module, config = importlib.import_module(f"extender.{name}"), Config()
    for setting in ("secure_scheme_headers", "forwarded_allow_ips"):
        config.set(setting, getattr(module, setting))
    head = f"GET / HTTP/1.1\r\nHost: page.example\r\n{header}\r\n\r\n".encode()
    read = next(RequestParser(config, [head], ("127.0.0.1", 1)))
    assert read.scheme == "http"
    assert config.forwarded_allow_ips == []


def test_the_public_listener_asks_for_no_name() -> None:
    """Prometheus may find it by any."""
    stop = Event()
    client = Client(assemble(ExtenderSettings(), Embedded(), stop).public)
    stop.set()
    answer = client.get("/metrics", base_url="http://extender.example:39998")
    assert answer.status_code == 200
