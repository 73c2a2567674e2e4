"""The real extender over a cluster in memory, with an echo beside it.

gunicorn runs ``bench.server:build()`` with the extender's own configuration. The echo
parses the same body and answers its names: what any extender must at least do.
"""

import os
from collections.abc import Callable
from threading import Event
from typing import Any

import orjson

from extender.main import assemble_extender
from extender.settings import ExtenderSettings
from gpushare.domain.model import (
    Amount,
    Card,
    CardUUID,
    ContainerAmount,
    NodeName,
    Placement,
    PodRef,
    PodUID,
    Share,
)
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards, encode_placement
from gpushare.kube.cluster import Kind
from gpushare.server.asgi import CONNECTION, Application, Receive, Scope, Send
from gpushare.server.listener import Listener
from gpusharectl.demo.fakeapi.cluster import Embedded

CARDS = 8
UNITS = 94
POD_UNITS = 4
ECHO = "/echo"


def build() -> Application:
    """Fill a cluster with BENCH_NODES and BENCH_PODS, and serve it."""
    nodes = [f"node-{i:05d}" for i in range(int(os.environ["BENCH_NODES"]))]
    pods = int(os.environ["BENCH_PODS"])
    uids = iter([*nodes, *(pod_name(number) for number in range(pods))])
    cluster = Embedded(new_uid=lambda: next(uids))
    for node in nodes:
        cluster.create(Kind.NODES, node_json(node))
    for number in range(pods):
        cluster.create(Kind.PODS, pod_json(number, nodes[number % len(nodes)], nodes))
    settings, _ = ExtenderSettings.read(os.environ)
    extender = assemble_extender(settings, cluster, Event())
    Listener({settings.public_listen: extender.public}).start()
    return beside_echo(extender.inner, all_names)


def beside_echo(application: Application, echo: Callable[[Any], object]) -> Application:
    """Serve ``echo``, of a parsed body, beside an application: plain ASGI."""

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
        answered = orjson.dumps(echo(orjson.loads(body)))
        size = b"%d" % len(answered)
        headers = [(b"content-type", b"application/json"), (b"content-length", size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answered})
        client.answer_sent()

    return answer


def all_names(args: Any) -> object:  # noqa: ANN401
    """Answer filter with all the names it was asked about."""
    return {
        "Nodes": None,
        "NodeNames": args["NodeNames"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def node_json(name: str) -> dict[str, object]:
    """Describe a node of eight cards."""
    cards = [
        Card(CardUUID(f"GPU-{name}-{index}"), index, UNITS) for index in range(CARDS)
    ]
    metadata = {"name": name, "annotations": {names.CARDS: encode_cards(cards)}}
    return {"metadata": metadata, "spec": {}, "status": {}}


def pod_name(number: int) -> str:
    """Name a pod, and give its UID: the cluster is told to give these."""
    return f"pod-{number}"


def pod_json(number: int, node: str, nodes: list[str]) -> dict[str, object]:
    """Describe a bound pod of a few units; pods fill a node's cards in turn."""
    index = number // len(nodes) % CARDS
    name = pod_name(number)
    amount = Amount(1, POD_UNITS)
    share = Share(
        CardUUID(f"GPU-{node}-{index}"), amount, (ContainerAmount("main", amount),)
    )
    ref = PodRef(PodUID(name), "default", name)
    placement = Placement(ref, NodeName(node), (share,))
    text = encode_placement(placement, "2026-01-01T00:00:00.000Z")
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {names.PLACEMENT: text},
        },
        "spec": {"nodeName": node, "containers": [container(POD_UNITS)]},
        "status": {"phase": "Running"},
    }


def container(units: int) -> dict[str, object]:
    """Describe a container that asks for this many units and one core."""
    asked = {names.CORE: "1", names.MEMORY: str(units)}
    return {"name": "main", "resources": {"requests": asked, "limits": asked}}
