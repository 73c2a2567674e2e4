"""The extender's HTTP: verbs, pages, errors, and the names it may be called by."""

import io
import json
import logging
from collections.abc import Iterator
from threading import Event
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry
from werkzeug.test import Client, EnvironBuilder, TestResponse, run_wsgi_app

from extender.main import assemble
from extender.server.app import Parts, VerbMetrics, create_app
from extender.server.public import MetricsPage, Readiness
from extender.settings import ExtenderSettings
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.reflector import Reflector
from tests.builders import cards, node_json, pod_json
from tests.extender.extender_fixture import ExtenderFixture, binding
from tests.testbed.waiting import wait_until

if TYPE_CHECKING:
    from extender.scheduling.bind import Binder
    from extender.scheduling.service import Verbs
import http.client
import importlib
from contextlib import closing
from threading import Thread
from wsgiref.simple_server import WSGIRequestHandler, make_server

import orjson
from gunicorn.config import Config
from gunicorn.http import RequestParser

from extender.server.app import is_local

JSON = "application/json"
INNER = "http://127.0.0.1:39999"
PUBLIC = "http://10.0.0.1:39998"
VERBS = ("filter", "prioritize", "preempt", "bind")


class Running:
    """The extender's applications over an embedded cluster, called without sockets."""

    def __init__(self, stop: Event) -> None:
        self.cluster = Embedded(bookmark_every_s=0.05)
        self.cluster.create(Kind.NODES, node_json("n", *cards(29)))
        made = assemble(ExtenderSettings(), self.cluster, stop)
        self.client, self.public = Client(made.inner), Client(made.public)
        wait_until(
            lambda: self.get("/readyz").status_code,
            "ready extender",
            accept=lambda status: status == 200,
            every_s=0.01,
        )

    def get(self, path: str, base: str = PUBLIC) -> TestResponse:
        client = self.client if base == INNER else self.public
        return client.get(path, base_url=base)

    def post(self, verb: str, body: Any, base: str = INNER) -> TestResponse:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        client = self.client if base == INNER else self.public
        return client.post(
            f"/scheduler/{verb}", base_url=base, data=data, content_type=JSON
        )

    def pod(self, name: str = "pod", **how: Any) -> Json:
        return self.cluster.create(Kind.PODS, pod_json(name, **how))


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    stop = Event()
    yield Running(stop)
    stop.set()


def test_a_pod_goes_through_all_verbs(running: Running) -> None:
    """As kube-scheduler asks them, and the pod is bound at the end."""
    pod = running.pod("whole-way", units=4)
    args = {"Pod": pod, "Nodes": None, "NodeNames": ["n", "gone"]}
    kept = running.post("filter", args)
    assert kept.json is not None
    assert kept.json["NodeNames"] == ["n"]
    assert kept.json["FailedAndUnresolvableNodes"] == {"gone": "No shared cards"}
    assert running.post("prioritize", args).json == [
        {"Host": "n", "Score": 0},
        {"Host": "gone", "Score": 0},
    ]
    bound = running.post("bind", binding(pod))
    assert (bound.status_code, bound.json) == (200, {"Error": ""})
    assert bound.content_type == "application/json"
    found = running.cluster.get(Kind.PODS, "default", "whole-way")
    assert found["spec"]["nodeName"] == "n"
    shown = running.get("/snapshot", INNER).json
    assert shown is not None
    assert "whole-way" in [held["name"] for held in shown["nodes"][0]["pods"]]


def test_preempt_answers_with_uids(running: Running) -> None:
    """A pod that asks zero keeps kube-scheduler's own victims."""
    victims = {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}
    args = {"Pod": pod_json(), "NodeNameToMetaVictims": victims}
    answer = running.post("preempt", args)
    assert answer.json == {"NodeNameToMetaVictims": victims}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param(b"{", "body", id="not-json"),
        pytest.param(b"", "body", id="empty"),
        pytest.param(b"\x00\xff" * 1000, "body", id="junk"),
        pytest.param([], "body", id="a-list"),
        pytest.param({}, None, id="nothing-in-it"),
        pytest.param({"Pod": 1, "PodName": [], "PodNamespace": 1}, None, id="types"),
        pytest.param({"Pod": pod_json(units=-1)}, None, id="a-negative-quantity"),
        pytest.param({"Pod": pod_json(units="9" * 90)}, None, id="an-absurd-quantity"),
    ],
)
def test_a_malformed_request_gets_a_400_that_names_the_field(
    running: Running, verb: str, body: Any, field: str | None
) -> None:
    """As JSON, without a traceback."""
    answer = running.post(verb, body)
    assert answer.status_code == 400
    assert answer.json is not None
    assert answer.json.keys() == {"error", "field"}
    assert answer.json["field"]
    assert answer.json["error"].startswith(answer.json["field"] + ": ")
    assert field in (None, answer.json["field"])
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", ""]
)
def test_what_a_web_page_can_send_binds_nothing(running: Running, kind: str) -> None:
    """A browser sends these to any address without asking there first."""
    pod = running.pod(f"by-a-page-{kind.rpartition('/')[2]}x")
    data = json.dumps(binding(pod)).encode()
    answer = running.client.post(
        "/scheduler/bind", base_url=INNER, data=data, content_type=kind
    )
    assert answer.status_code == 415
    assert "application/json" in answer.text
    found = running.cluster.get(Kind.PODS, "default", pod["metadata"]["name"])
    assert "nodeName" not in found["spec"]


@pytest.mark.parametrize("verb", VERBS)
def test_ten_megabytes_of_junk_are_not_read(running: Running, verb: str) -> None:
    """413, as JSON."""
    answer = running.post(verb, b"x" * 10_000_000)
    assert answer.status_code == 413
    assert answer.json is not None
    assert answer.json["error"].startswith("Request Entity Too Large")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/scheduler/filter", 405),
        ("POST", "/readyz", 405),
        ("GET", "/scheduler/nothing", 404),
        ("POST", "/", 404),
    ],
)
@pytest.mark.parametrize("base", [INNER, PUBLIC], ids=["inner", "public"])
def test_wrong_paths_and_methods_are_answered_in_json(
    running: Running, method: str, path: str, status: int, base: str
) -> None:
    """Werkzeug's pages are HTML."""
    answer = (running.client if base == INNER else running.public).open(
        path, base_url=base, method=method
    )
    hidden = base == PUBLIC and path.startswith("/scheduler")
    assert answer.status_code == (404 if hidden else status)
    assert answer.json is not None
    assert answer.json.keys() == {"error"}


@pytest.mark.parametrize(
    "path", ["/snapshot", *(f"/scheduler/{verb}" for verb in VERBS)]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_public_listener_has_neither_verbs_nor_snapshot(
    running: Running, path: str, method: str
) -> None:
    """Whoever reaches the verbs can bind pods."""
    answer = running.public.open(path, base_url=PUBLIC, method=method, data=b"{}")
    assert answer.status_code == 404


@pytest.mark.parametrize("base", [INNER, PUBLIC], ids=["inner", "public"])
def test_both_listeners_tell_health(running: Running, base: str) -> None:
    """Alive, ready, and what Prometheus wants."""
    assert running.get("/healthz", base).text == "ok\n"
    assert running.get("/readyz", base).text == "ok\n"
    metrics = running.get("/metrics", base)
    assert metrics.status_code == 200
    assert 'vcuda_card_units{NodeName="n",UUID="GPU-0"} 29.0' in metrics.text


def test_both_listeners_give_the_same_page_of_metrics(running: Running) -> None:
    """Rendered once a second for both; the books' age differs each time."""
    wait_until(
        lambda: [running.get("/metrics", base).data for base in (INNER, PUBLIC)],
        "the same page twice",
        accept=lambda pages: pages[0] == pages[1],
    )


def test_no_percent_sign_reaches_kube_scheduler(running: Running) -> None:
    """It takes the text for a format (contracts 1.6)."""
    ghost = pod_json("100%d", uid="u%s")
    assert running.post("bind", binding(ghost)).json == {
        "Error": "pod default/100 percentd is gone"
    }
    wishes = {names.POLICY: "100%s"}
    odd = pod_json(units=4, annotations=wishes)
    answer = running.post("filter", {"Pod": odd, "NodeNames": ["n"]})
    assert "no policy" in answer.text
    assert "%" not in answer.text


def test_whole_nodes_are_answered_where_the_verb_has_a_field(running: Running) -> None:
    """Filter says it in Error; prioritize has none, so 400."""
    args = {"Pod": pod_json(units=4), "Nodes": {"items": []}}
    answer = running.post("filter", args)
    assert answer.status_code == 200
    assert answer.json is not None
    assert "nodeCacheCapable" in answer.json["Error"]
    assert running.post("prioritize", args).status_code == 400


class Surprising:
    """Verbs and a binder that meet a bug of their own."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"secret of {name}")


def client_of(verbs: object, binder: object, *, ready: bool = True) -> Client:
    extender = ExtenderFixture()
    never = Reflector(extender.cluster, Kind.PODS, extender.pods)
    registry = CollectorRegistry()
    parts = Parts(
        verbs=cast("Verbs", verbs),
        binder=cast("Binder", binder),
        readiness=Readiness(() if ready else (("pods", never),), 60),
        metrics=VerbMetrics(registry),
        metrics_page=MetricsPage(registry),
        snapshot=dict,
    )
    return Client(create_app(parts))


def good_body(verb: str) -> bytes:
    if verb == "bind":
        return json.dumps(binding(pod_json())).encode()
    victims = {"n": {"Pods": [{"UID": "u"}]}}
    args = {
        "Pod": pod_json(units=4),
        "NodeNames": ["n"],
        "NodeNameToMetaVictims": victims,
    }
    return json.dumps(args).encode()


@pytest.mark.parametrize(
    ("verb", "status"),
    [("filter", 200), ("bind", 200), ("prioritize", 500), ("preempt", 500)],
)
def test_a_bug_of_ours_is_an_error_without_its_secrets(
    verb: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In Error where the verb has one; the traceback goes to the log alone."""
    client = client_of(Surprising(), Surprising())
    with caplog.at_level(logging.ERROR):
        answer = client.post(
            f"/scheduler/{verb}", data=good_body(verb), content_type="application/json"
        )
    assert answer.status_code == status
    assert answer.json is not None
    words = answer.json["Error" if status == 200 else "error"]
    assert words == "internal error in the vcuda extender; its log has the details"
    assert "secret" not in answer.text
    (record,) = caplog.records
    assert record.exc_info is not None
    assert f"secret of {verb}" in caplog.text


@pytest.mark.parametrize("verb", ["filter", "bind"])
def test_an_extender_that_is_not_ready_says_why(verb: str) -> None:
    """In Error, asking neither ledger nor API server."""
    client = client_of(Surprising(), Surprising(), ready=False)
    answer = client.post(
        f"/scheduler/{verb}", data=good_body(verb), content_type="application/json"
    )
    assert answer.status_code == 200
    assert answer.json is not None
    why = "vcuda extender is not ready: pods have not been listed yet"
    assert answer.json["Error"] == why
    ready = client.get("/readyz")
    assert ready.status_code == 503
    assert ready.text == "pods have not been listed yet\n"
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", None])
@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
def test_the_short_way_says_the_same(verb: str, body: bytes | None, host: str) -> None:
    """What kube-scheduler writes goes round Flask, another Content-Type does not."""
    client = client_of(Surprising(), Surprising())
    data = good_body(verb) if body is None else body
    short, long = (
        client.post(
            f"/scheduler/{verb}",
            data=data,
            content_type=kind,
            base_url=f"http://{host}",
        )
        for kind in ("application/json", "application/json; charset=utf-8")
    )
    assert (short.status_code, short.data) == (long.status_code, long.data)
    assert short.content_type == long.content_type
    assert (short.status_code == 421) == (host != "localhost")


class Reset(io.RawIOBase):
    """The body of a client that hangs up in the middle."""

    def read(self, _size: int = -1) -> bytes:
        raise ConnectionResetError


def test_who_hangs_up_is_no_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """gunicorn knows what to do; nothing is logged, and the books are not asked."""
    client = client_of(Surprising(), Surprising())
    environ = EnvironBuilder(
        "/scheduler/filter",
        method="POST",
        content_type="application/json",
        headers={"Content-Length": "10"},
    ).get_environ()
    environ |= {"wsgi.input": Reset(), "CONTENT_LENGTH": "10"}
    with pytest.raises(ConnectionResetError):
        run_wsgi_app(client.application, environ)
    assert not caplog.records


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
