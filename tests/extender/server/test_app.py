"""The extender's HTTP."""

import json
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from werkzeug.test import Client, TestResponse

from extender.main import assemble
from extender.settings import ExtenderSettings
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from tests.builders import cards, node_json, pod_json
from tests.extender.stand_ins import binding
from tests.testbed.waiting import wait_until

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
