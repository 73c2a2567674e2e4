"""The real webhook over a pool in memory, with an echo webhook beside it.

gunicorn runs ``bench.webhook_server:build()`` with the webhook's own configuration. The
echo parses the same body and lets the pod through: what any webhook must at least do.
"""

import os
from threading import Event
from typing import Any

from bench.server import beside_echo, node_json
from gpushare.kube.cluster import Kind
from gpushare.server.asgi import Application, Receive, Scope, Send
from gpusharectl.demo.fakeapi.cluster import Embedded
from webhook.app import create_webhook_app
from webhook.main import assemble_webhook
from webhook.settings import WebhookSettings

READY = "/readyz"


def build() -> Application:
    """Serve a webhook that knows of one node, and the echo."""
    cluster = Embedded()
    cluster.create(Kind.NODES, node_json("node-1"))
    settings, _ = WebhookSettings.read(os.environ)
    parts = assemble_webhook(settings, cluster, Event())
    webhook = create_webhook_app(parts)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != READY:
            await webhook(scope, receive, send)
            return
        status = 503 if parts.readiness.why_not() else 200
        headers = [(b"content-length", b"0")]
        start = {"type": "http.response.start", "status": status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": b""})

    return beside_echo(application, let_through)


def let_through(review: Any) -> object:  # noqa: ANN401
    """Allow every pod."""
    return {
        "apiVersion": review["apiVersion"],
        "kind": review["kind"],
        "response": {"uid": review["request"]["uid"], "allowed": True},
    }
