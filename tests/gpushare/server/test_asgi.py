"""Pages beside Kubernetes' POSTs: what becomes of those that nobody waits for."""

import asyncio
import threading
from collections.abc import Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from gpushare.server.asgi import CONNECTION, PostsAndPages
from tests.gpushare.server.asgi_client import Noted, exchange, scope_of

THREADS = 4


class SlowPages:
    """Pages that are made when they may be."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.begun: list[str] = []

    def __call__(
        self, environ: WSGIEnvironment, start: StartResponse
    ) -> Iterable[bytes]:
        self.begun.append(environ["PATH_INFO"])
        assert self.may.wait(30)
        start("200 OK", [])
        return [b"page"]


def test_a_page_is_not_made_for_a_client_that_has_left() -> None:
    """Those who ask and leave would have others wait behind pages that nobody reads."""
    pages = SlowPages()
    application = PostsAndPages(pages, {})

    async def ask(path: str, connection: Noted) -> list[dict[str, Any]]:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": ""}
        scope = scope_of(environ | {"wsgi.url_scheme": "http"})
        return await exchange(
            application, scope | {"state": {CONNECTION: connection}}, ()
        )

    async def run() -> None:
        served = [asyncio.create_task(ask("/stays", Noted())) for _ in range(THREADS)]
        connections = [Noted() for _ in range(9)]
        left = [asyncio.create_task(ask("/leaves", each)) for each in connections]
        await asyncio.sleep(0.1)
        for connection in connections:
            connection.lost.set_result(None)
        assert await asyncio.gather(*left) == [[]] * 9
        last = asyncio.create_task(ask("/last", Noted()))
        pages.may.set()
        for task in (*served, last):
            assert [message.get("body") for message in await task] == [None, b"page"]

    asyncio.run(run())
    assert pages.begun == ["/stays"] * THREADS + ["/last"]
