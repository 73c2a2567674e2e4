"""The webhook's HTTP: what is no review, or comes otherwise than an API server's."""

from typing import Any

import orjson
import pytest

from extender.server.public import MOST_BYTES
from extender.server.webhook_app import PATHS
from extender.webhook.review import API_VERSION
from gpushare.domain.request import MOST_APART
from gpushare.kube import names
from tests.builders import container_json, pod_json
from tests.extender.patching import patched
from tests.extender.webhooks import answered, asked, count, steps_of, webhook

JSON = "application/json"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"nonsense", "body"),
        (b'{"kind": ', "body"),
        (b"[]", "body"),
        (b"{}", "apiVersion"),
        (orjson.dumps({"apiVersion": "admission.k8s.io/v1beta1"}), "apiVersion"),
        (orjson.dumps({"apiVersion": API_VERSION, "kind": "Pod"}), "kind"),
        (orjson.dumps(asked(None) | {"request": None}), "request"),
        (orjson.dumps(asked({}, uid="")), "request.uid"),
        (orjson.dumps(asked({}, kind=None)), "request.kind"),
        (orjson.dumps(asked(None)), "request.object"),
        (orjson.dumps(asked([])), "request.object"),
        (orjson.dumps(asked({}, namespace=7)), "request.namespace"),
    ],
)
def test_what_is_no_review_is_400(body: bytes, field: str) -> None:
    """With the field; nothing of it is a 500."""
    client, registry = webhook()
    got = client.post("/mutate", data=body, content_type=JSON)
    assert got.status_code == 400
    assert orjson.loads(got.data)["field"] == field
    assert count(registry, "/mutate", "malformed") == 1


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/yaml"])
def test_another_content_type_is_415(content_type: str) -> None:
    """It is named which one is wanted."""
    client, _ = webhook()
    body = orjson.dumps(asked(pod_json()))
    got = client.post("/mutate", data=body, content_type=content_type)
    assert got.status_code == 415
    assert b"application/json" in got.data
    with_charset = "application/json; charset=utf-8"
    assert client.post("/mutate", data=body, content_type=with_charset).status_code == (
        200
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [asked(pod_json(units=4)), {"kind": "no review"}])
def test_the_long_way_round_comes_to_the_same(path: str, body: Any) -> None:
    """What an API server writes is answered before Flask looks at it."""
    client, _ = webhook()
    data = orjson.dumps(body)
    short, long = (
        client.post(path, data=data, content_type=kind)
        for kind in (JSON, f"{JSON}; charset=utf-8")
    )
    assert short.status_code == long.status_code
    assert short.data == long.data
    assert short.headers["Content-Type"] == long.headers["Content-Type"] == JSON
    assert short.content_length == len(short.data)


def test_a_body_too_large_is_413() -> None:
    """Twice what the largest pod has, and not read to its end; it is counted."""
    client, registry = webhook()
    got = client.post("/mutate", data=b" " * (MOST_BYTES + 1), content_type=JSON)
    assert got.status_code == 413
    assert count(registry, "/mutate", "malformed") == 1


@pytest.mark.parametrize(
    ("header", "status", "words"),
    [
        ({"Transfer-Encoding": "chunked"}, 411, b"send a Content-Length"),
        ({"Expect": "100-continue"}, 417, b"without Expect"),
    ],
)
def test_bodies_that_come_otherwise_than_whole(
    header: dict[str, str], status: int, words: bytes
) -> None:
    """No API server sends one: it is said what to send, and counted."""
    client, registry = webhook()
    body = orjson.dumps(asked(pod_json()))
    got = client.post("/mutate", data=body, content_type=JSON, headers=header)
    assert got.status_code == status
    assert words in got.data
    assert count(registry, "/mutate", "malformed") == 1


def test_three_megabytes_are_a_pod() -> None:
    """And a thousand containers, as many of them changed as may be apart."""
    client, _ = webhook()
    pod = pod_json(
        containers=[
            container_json(f"c{i}", int(i < MOST_APART)) | {"args": ["x" * 3000]}
            for i in range(1000)
        ],
        annotations={names.CONTAINERS: names.APART},
    )
    response = answered(client, asked(pod))
    after = patched(pod, steps_of(response))
    given = [
        one["resources"]["limits"].get(names.CORE)
        for one in after["spec"]["containers"]
    ]
    assert given == ["1"] * MOST_APART + [None] * (1000 - MOST_APART)


def test_only_post() -> None:
    """And only where there is something."""
    client, _ = webhook()
    assert client.get("/mutate").status_code == 405
    body = orjson.dumps(asked({}))
    assert client.post("/other", data=body, content_type=JSON).status_code == 404
