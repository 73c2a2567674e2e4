"""The real webhook over a pool in memory, with an echo webhook beside it.

gunicorn runs ``bench.webhook_server:build()`` with the webhook's own configuration. The
echo parses the same body and lets the pod through: what any webhook must at least do.
"""

import os
from collections.abc import Iterable
from threading import Event
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import orjson
from flask import Flask, Response, request

from bench.server import ECHO, node_json
from extender.main import assemble_webhook
from extender.server.public import create_public_app
from extender.server.webhook_app import create_webhook_app
from extender.settings import WebhookSettings
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube.cluster import Kind

READY = "/readyz"


def build() -> WSGIApplication:
    """Serve a webhook that knows of one node, and the echo."""
    cluster = Embedded()
    cluster.create(Kind.NODES, node_json("node-1"))
    settings, _ = WebhookSettings.read(os.environ)
    parts = assemble_webhook(settings, cluster, Event())
    webhook = create_webhook_app(parts)
    public = create_public_app(parts.readiness, parts.metrics_page)
    others = {ECHO: echo_app(), READY: public}

    def application(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        app = others.get(environ["PATH_INFO"], webhook)
        return app(environ, start)

    return application


def echo_app() -> Flask:
    """Parse the body as a webhook must, and let every pod through."""
    app = Flask("echo")

    @app.post(ECHO)
    def echo() -> Response:
        review = orjson.loads(request.get_data(cache=False))
        response = {"uid": review["request"]["uid"], "allowed": True}
        answer = {
            "apiVersion": review["apiVersion"],
            "kind": review["kind"],
            "response": response,
        }
        return Response(orjson.dumps(answer), content_type="application/json")

    return app
