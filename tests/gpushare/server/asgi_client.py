"""Call an ASGI application as a WSGI one, so that werkzeug's test client can."""

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from gpushare.server.asgi import CONNECTION, Application


class Noted:
    """A connection that notes what the application tells it."""

    lost: asyncio.Future[None]

    def __init__(self) -> None:
        self.is_last = False
        self.told: list[str] = []
        self.kept = 0

    def head_arrived(self) -> None:
        self.told.append("head_arrived")

    def body_arrived(self, size: int) -> None:
        self.kept += size

    def request_arrived(self) -> None:
        self.told.append("request_arrived")

    def answer_sent(self) -> None:
        self.told.append("answer_sent")


async def exchange(
    application: Application,
    scope: dict[str, Any],
    received: Iterable[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Let it answer one request; gives the messages that it sends."""
    arriving, sent = iter(received), []
    if "state" in scope:
        scope["state"][CONNECTION].lost = asyncio.get_running_loop().create_future()

    async def receive() -> Any:
        return next(arriving)

    async def send(message: Any) -> None:
        sent.append(message)

    await application(scope, receive, send)
    return sent


def as_wsgi(application: Application) -> WSGIApplication:
    """Wrap an application; its connection is told what a server's would be."""

    def call(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        connection = Noted()
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(size)
        message = {"type": "http.request", "body": body, "more_body": False}
        scope = scope_of(environ) | {"state": {CONNECTION: connection}}
        begun, content = asyncio.run(exchange(application, scope, [message]))
        assert connection.told == ["head_arrived", "request_arrived", "answer_sent"]
        status = HTTPStatus(begun["status"])
        headers = [
            (n.decode("latin-1"), v.decode("latin-1")) for n, v in begun["headers"]
        ]
        start(f"{status.value} {status.phrase}", headers)
        return [content["body"]]

    return call


def scope_of(environ: WSGIEnvironment) -> dict[str, Any]:
    """Describe the request as uvicorn does."""
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
        or (name in {"CONTENT_TYPE", "CONTENT_LENGTH"} and value)
    }
    path = environ["PATH_INFO"].encode("latin-1")
    return {
        "type": "http",
        "http_version": "1.1",
        "method": environ["REQUEST_METHOD"],
        "scheme": environ["wsgi.url_scheme"],
        "path": path.decode(),
        "raw_path": path,
        "query_string": environ["QUERY_STRING"].encode("latin-1"),
        "headers": [
            (n.encode("latin-1"), v.encode("latin-1")) for n, v in headers.items()
        ],
    }
