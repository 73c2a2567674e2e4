"""The extender's HTTP: verbs, pages, errors, and the names it may be called by."""

import asyncio
import json
import logging
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from werkzeug.test import Client, EnvironBuilder, TestResponse, run_wsgi_app

from extender.main import assemble_extender
from extender.scheduling.bind import BindOutcome, BindResult
from extender.scheduling.wire import FilterResult
from extender.server.app import (
    ExtenderParts,
    VerbMetrics,
    VerbThreads,
    create_app,
    is_local,
)
from extender.settings import ExtenderSettings
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.reflector import Readiness, Reflector
from gpushare.server.asgi import CONNECTION, Application
from gpushare.server.public import MetricsPage
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import cards, node_json, pod_json
from tests.extender.extender_fixture import ExtenderFixture, binding
from tests.gpushare.server.asgi_client import Noted, as_wsgi, exchange, scope_of
from tests.testbed.waiting import wait_until

JSON = "application/json"
INNER = "http://127.0.0.1:39999"
PUBLIC = "http://10.0.0.1:39998"
VERBS = ("filter", "prioritize", "preempt", "bind")


class Running:
    def __init__(self, stop: Event) -> None:
        self.cluster = Embedded(bookmark_every_s=0.05)
        self.cluster.create(Kind.NODES, node_json("n", *cards(29)))
        made = assemble_extender(ExtenderSettings(ui=True), self.cluster, stop)
        self.clients = {INNER: Client(as_wsgi(made.inner)), PUBLIC: Client(made.public)}
        wait_until(
            lambda: self.get("/readyz").status_code,
            "ready extender",
            accept=lambda status: status == 200,
            every_s=0.01,
        )

    def get(self, path: str, base: str = PUBLIC) -> TestResponse:
        return self.clients[base].get(path, base_url=base)

    def post(self, verb: str, body: Any, kind: str = JSON) -> TestResponse:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.clients[INNER].post(
            f"/scheduler/{verb}", base_url=INNER, data=data, content_type=kind
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
    kept: Any = running.post("filter", args).json
    assert kept["NodeNames"] == ["n"]
    assert kept["FailedAndUnresolvableNodes"] == {"gone": "No shared cards"}
    assert running.post("prioritize", args).json == []
    victims = {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}
    plain = {"Pod": pod_json(), "NodeNameToMetaVictims": victims}
    answer = running.post("preempt", plain)
    assert answer.json == {"NodeNameToMetaVictims": victims}
    bound = running.post("bind", binding(pod))
    assert (bound.status_code, bound.json) == (200, {"Error": ""})
    assert bound.content_type == "application/json"
    found = running.cluster.get(Kind.PODS, "default", "whole-way")
    assert found["spec"]["nodeName"] == "n"
    shown: Any = running.get("/snapshot", INNER).json
    assert "whole-way" in [held["name"] for held in shown["nodes"][0]["pods"]]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("body", [b"\x00\xff" * 1000, [], {"Pod": 1, "PodName": []}])
def test_a_malformed_request_gets_a_400_that_names_the_field(
    running: Running, verb: str, body: Any
) -> None:
    answer = running.post(verb, body)
    assert answer.status_code == 400
    assert answer.json is not None
    assert answer.json.keys() == {"error", "field"}
    assert answer.json["field"]
    assert answer.json["error"].startswith(answer.json["field"] + ": ")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", ""]
)
def test_what_a_web_page_can_send_binds_nothing(running: Running, kind: str) -> None:
    """A browser sends these to any address without asking there first."""
    pod = running.pod(f"by-a-page-{kind.rpartition('/')[2]}x")
    answer = running.post("bind", binding(pod), kind)
    assert answer.status_code == 415
    assert "application/json" in answer.text
    found = running.cluster.get(Kind.PODS, "default", pod["metadata"]["name"])
    assert "nodeName" not in found["spec"]


@pytest.mark.parametrize(
    ("method", "path", "inner", "public"),
    [
        ("POST", "/readyz", 405, 405),
        ("POST", "/", 405, 404),
        ("GET", "/scheduler/nothing", 404, 404),
        ("GET", "/snapshot", 200, 404),
        ("GET", "/ui", 200, 404),
        ("POST", "/ui", 405, 404),
        ("GET", "/ui/state", 200, 404),
        *(("GET", f"/scheduler/{verb}", 405, 404) for verb in VERBS),
        *(("POST", f"/scheduler/{verb}", 415, 404) for verb in VERBS),
    ],
)
def test_each_listener_has_its_paths_and_methods(
    running: Running, method: str, path: str, inner: int, public: int
) -> None:
    """Whoever reaches the verbs can bind pods, so the public listener has none."""
    for base, status in ((INNER, inner), (PUBLIC, public)):
        answer = running.clients[base].open(path, base_url=base, method=method)
        assert answer.status_code == status
        if status != 200:
            assert answer.json is not None
            assert answer.json.keys() == {"error"}


@pytest.mark.parametrize("base", [INNER, PUBLIC], ids=["inner", "public"])
def test_both_listeners_tell_health(running: Running, base: str) -> None:
    assert running.get("/healthz", base).text == "ok\n"
    assert running.get("/readyz", base).text == "ok\n"
    metrics = running.get("/metrics", base)
    assert metrics.status_code == 200
    assert (
        'vcuda_card_units{GPU_I_UUID="",NodeName="n",UUID="GPU-0"} 29.0' in metrics.text
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


class Surprising:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"secret of {name}")


def surprised(*, ready: bool = True) -> Client:
    extender = ExtenderFixture()
    never = Reflector(extender.cluster, Kind.PODS, extender.pods)
    readiness = Readiness(() if ready else (("pods", never),), 60)
    return Client(as_wsgi(application(Surprising(), readiness)))


def application(verbs: Any, readiness: Readiness) -> Application:
    """The inner application of these verbs, which also bind."""
    registry = CollectorRegistry()
    return create_app(
        ExtenderParts(
            verbs=verbs,
            binder=verbs,
            readiness=readiness,
            metrics=VerbMetrics(registry),
            metrics_page=MetricsPage(registry),
            snapshot=dict,
            threads=VerbThreads.of(2),
        )
    )


def good_body(verb: str) -> bytes:
    if verb == "bind":
        return json.dumps(binding(pod_json())).encode()
    args = {"Pod": pod_json(units=4), "NodeNames": ["n"], "NodeNameToVictims": {}}
    return json.dumps(args).encode()


def test_whole_nodes_are_answered_where_the_verb_has_a_field(running: Running) -> None:
    args = {"Pod": pod_json(units=4), "Nodes": {"items": []}}
    assert "nodeCacheCapable" in running.post("filter", args).json["Error"]  # type: ignore[index]
    assert running.post("prioritize", args).status_code == 400


@pytest.mark.parametrize(
    ("verb", "status"),
    [("filter", 200), ("bind", 200), ("prioritize", 500), ("preempt", 500)],
)
def test_a_bug_of_ours_is_an_error_without_its_secrets(
    verb: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In Error where the verb has one; the traceback goes to the log alone."""
    client = surprised()
    with caplog.at_level(logging.ERROR):
        answer = client.post(
            f"/scheduler/{verb}", data=good_body(verb), content_type=JSON
        )
    assert answer.status_code == status
    assert answer.json is not None
    words = answer.json["Error" if status == 200 else "error"]
    assert words == "internal error in the vcuda extender; its log has the details"
    (record,) = caplog.records
    assert record.exc_info is not None
    assert f"secret of {verb}" in caplog.text


@pytest.mark.parametrize("verb", VERBS)
def test_an_extender_that_is_not_ready_says_why(verb: str) -> None:
    client = surprised(ready=False)
    answer = client.post(f"/scheduler/{verb}", data=good_body(verb), content_type=JSON)
    assert answer.json is not None
    has_field = verb in ("filter", "bind")
    assert answer.status_code == (200 if has_field else 400)
    why = "vcuda extender is not ready: pods have not been listed yet"
    assert why in answer.json["Error" if has_field else "error"]
    ready = client.get("/readyz")
    assert ready.status_code == 503
    assert ready.text == "pods have not been listed yet\n"
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
@pytest.mark.parametrize("body", [b"{", b"{}", None])
@pytest.mark.parametrize("verb", VERBS)
def test_a_charset_changes_nothing(verb: str, body: bytes | None, host: str) -> None:
    """kube-scheduler names none."""
    client = surprised()
    data = good_body(verb) if body is None else body
    where, base = f"/scheduler/{verb}", f"http://{host}"
    short, long = (
        client.post(where, data=data, content_type=kind, base_url=base)
        for kind in (JSON, f"{JSON}; charset=utf-8")
    )
    assert (short.status_code, short.data) == (long.status_code, long.data)
    assert short.content_type == long.content_type
    assert (short.status_code == 421) == (host != "localhost")


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
    "127.0.0.1.page.example:39999",
    "localhost.page.example",
    "notlocalhost",
    "[page.example]:1",
    "[::1",
    "127.0.0.1,page.example",
    "me@127.0.0.1",
    "[::1]page.example:39999",
    "[::1]:page.example",
    ":39999",
    "127.0.0.1:39999:page.example",
)


@pytest.mark.parametrize("host", [*OURS, *STRANGERS])
def test_a_host_is_local_by_its_name(host: str) -> None:
    """Local are kube-scheduler's, a port-forward's, and kubelet's for a probe."""
    assert is_local(host) is (host in OURS)


@pytest.mark.parametrize(
    "path", ["/snapshot", "/ui", "/ui/state", "/metrics", "/nowhere", "/scheduler/bind"]
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_page_from_elsewhere_reads_nothing(
    running: Running, path: str, scheme: str
) -> None:
    """It is told why. A page could say that there is TLS, and is not believed."""
    client, page = running.clients[INNER], f"{scheme}://page.example:39999"
    body = json.loads(good_body("bind"))
    for answer in (
        client.get(path, base_url=page),
        client.post("/scheduler/bind", base_url=page, json=body),
    ):
        assert answer.status_code == 421
        (told,) = (answer.json or {}).values()
        assert 'not as "page.example:39999"; call it by 127.0.0.1' in told


def test_a_request_may_have_no_host(running: Running) -> None:
    """As in HTTP/1.0."""
    environ = EnvironBuilder("/snapshot").get_environ()
    del environ["HTTP_HOST"]
    assert run_wsgi_app(running.clients[INNER].application, environ)[1] == "200 OK"


def test_any_name_will_do_with_tls_and_in_public(running: Running) -> None:
    """urlPrefix may have any name of the certificate; Prometheus may use any."""
    stop = Event()
    tls = ExtenderSettings(tls_cert="a", tls_key="b", tls_client_ca="c")
    safe = Client(as_wsgi(assemble_extender(tls, Embedded(), stop).inner))
    stop.set()
    for client in (safe, running.clients[PUBLIC]):
        answer = client.get("/metrics", base_url="https://control-plane-1:39999")
        assert answer.status_code == 200


class Waiting:
    """Verbs and binds that wait until they are let."""

    def __init__(self) -> None:
        self.may = Event()
        self.waits: list[bool] = []
        """Whether each wait ended because it was let."""

    def wait(self) -> None:
        self.waits.append(self.may.wait(30))

    def filter_at_once(self, _args: Any) -> None:
        return None

    def filter(self, _args: Any) -> FilterResult:
        self.wait()
        return FilterResult()

    def preempt(self, _args: Any) -> dict[str, Any]:
        self.wait()
        return {}

    def bind(self, _args: Any) -> BindResult:
        self.wait()
        return BindResult(BindOutcome.BOUND)

    def prioritize(self, _args: Any) -> list[Any]:
        self.may.set()
        return []


@pytest.mark.parametrize("verb", ["filter", "preempt", "bind"])
def test_a_call_that_waits_does_not_hold_the_event_loop(verb: str) -> None:
    """The next call is answered meanwhile; here it is what the first one waits for."""
    waiting = Waiting()
    app = application(waiting, Readiness((), 60))

    async def post(called: str) -> Any:
        data = good_body(called)
        builder = EnvironBuilder(
            f"/scheduler/{called}", method="POST", data=data, content_type=JSON
        )
        scope = scope_of(builder.get_environ()) | {"state": {CONNECTION: Noted()}}
        body = {"type": "http.request", "body": data, "more_body": False}
        sent = await exchange(app, scope, [body])
        return sent[0]["status"]

    async def both() -> Any:
        return await asyncio.gather(post(verb), post("prioritize"))

    assert asyncio.run(both()) == [200, 200]
    assert waiting.waits == [True]
