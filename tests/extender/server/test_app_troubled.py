"""The extender's HTTP when it is not ready, or meets a bug of its own."""

import io
import json
import logging
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry
from werkzeug.test import Client, EnvironBuilder, run_wsgi_app

from extender.server.app import Parts, VerbMetrics, create_app
from extender.server.public import MetricsPage, Readiness
from gpushare.kube.cluster import Kind
from gpushare.kube.reflector import Reflector
from tests.builders import pod_json
from tests.extender.stand_ins import House, binding

if TYPE_CHECKING:
    from extender.scheduling.bind import Binder
    from extender.scheduling.service import Verbs


class Surprising:
    """Verbs and a binder that meet a bug of their own."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"secret of {name}")


def client_of(verbs: object, binder: object, *, ready: bool = True) -> Client:
    house = House()
    never = Reflector(house.cluster, Kind.PODS, house.pods)
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
