"""The real extender and webhook over a cluster in memory, with an echo beside each.

gunicorn runs ``bench.server:build_extender()`` and ``bench.server:build_webhook()``
with the process's own configuration, and ``bench.serving`` starts it. The echo is on
the same port and over the same TLS. It parses the same body and answers what any
extender or webhook must at least answer.
"""

import os
from threading import Event
from typing import Any

import orjson

from bench.placed import container, placement_text
from extender.main import assemble_extender
from extender.settings import ExtenderSettings
from gpushare.domain.model import Amount, Card, CardUUID
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards
from gpushare.kube.cluster import Json, Kind
from gpushare.server.asgi import CONNECTION, Application, Receive, Scope, Send
from gpushare.server.listener import Listener
from gpushare.server.public import create_public_app
from gpusharectl.demo.fakeapi.cluster import Embedded
from webhook.app import create_webhook_app
from webhook.main import assemble_webhook
from webhook.settings import WebhookSettings

CARDS = 8
UNITS = 94
POD_UNITS = 4
ECHO = "/echo"


def node_name(number: int) -> str:
    """Name a node."""
    return f"node-{number:05d}"


def build_extender() -> Application:
    """Fill a cluster with BENCH_NODES and BENCH_PODS, and serve it."""
    nodes = [node_name(number) for number in range(int(os.environ["BENCH_NODES"]))]
    pods = [f"pod-{number}" for number in range(int(os.environ["BENCH_PODS"]))]
    uids = iter([*nodes, *pods])
    cluster = Embedded(new_uid=lambda: next(uids))
    for node in nodes:
        cluster.create(Kind.NODES, node_json(node))
    for number, pod in enumerate(pods):
        card = number // len(nodes) % CARDS
        cluster.create(Kind.PODS, pod_json(pod, nodes[number % len(nodes)], card))
    settings, _ = ExtenderSettings.read(os.environ)
    extender = assemble_extender(settings, cluster, Event())
    Listener({settings.public_listen: extender.public}).start()
    return beside_echo(extender.inner)


def build_webhook() -> Application:
    """Serve a webhook that knows of one node."""
    cluster = Embedded()
    cluster.create(Kind.NODES, node_json("node-1"))
    settings, _ = WebhookSettings.read(os.environ)
    parts = assemble_webhook(settings, cluster, Event())
    public = create_public_app(parts.readiness, parts.metrics_page)
    Listener({settings.public_listen: public}).start()
    return beside_echo(create_webhook_app(parts))


def beside_echo(application: Application) -> Application:
    """Serve the echo of a parsed body beside an application: plain ASGI."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != ECHO:
            await application(scope, receive, send)
            return
        client = scope["state"][CONNECTION]
        client.head_arrived()
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        client.request_arrived()
        content = orjson.dumps(echo(orjson.loads(body)))
        size = b"%d" % len(content)
        headers = [(b"content-type", b"application/json"), (b"content-length", size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})
        client.answer_sent()

    return answer


def echo(body: Any) -> object:  # noqa: ANN401
    """Allow what a review is about; answer filter with all the names in it."""
    if "request" in body:
        allowed = {"uid": body["request"]["uid"], "allowed": True}
        kept = {key: body[key] for key in ("apiVersion", "kind")}
        return kept | {"response": allowed}
    return {
        "Nodes": None,
        "NodeNames": body["NodeNames"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def node_json(name: str) -> Json:
    """Describe a node of eight cards."""
    cards = [
        Card(CardUUID(f"GPU-{name}-{index}"), index, UNITS) for index in range(CARDS)
    ]
    metadata = {"name": name, "annotations": {names.CARDS: encode_cards(cards)}}
    return {"metadata": metadata, "spec": {}, "status": {}}


def pod_json(name: str, node: str, card: int) -> Json:
    """Describe a bound pod of a few units; its UID is its name."""
    metadata: Json = {"name": name, "namespace": "default", "uid": name}
    amount = Amount(1, POD_UNITS)
    text = placement_text({"metadata": metadata}, node, f"GPU-{node}-{card}", amount)
    return {
        "metadata": metadata | {"annotations": {names.PLACEMENT: text}},
        "spec": {"nodeName": node, "containers": [container(POD_UNITS)]},
        "status": {"phase": "Running"},
    }
