"""Answer Kubernetes' POSTs on the event loop, and all else by Flask in a thread.

Matching a route, making request and response objects and passing them to a thread cost
more than most answers. So the verbs and reviews do without; pages of an operator do
not matter. Whatever waits hands itself to a thread, by ``in_thread``.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar
from wsgiref.types import WSGIApplication

from werkzeug.exceptions import (
    ExpectationFailed,
    HTTPException,
    LengthRequired,
    MethodNotAllowed,
    RequestEntityTooLarge,
    UnsupportedMediaType,
)

from gpushare.server.public import JSON, answer_error
from gpushare.server.wsgi import make_environ, make_page

MOST_BYTES = 8 << 20
"""Of one request; 10,000 names and the largest pod are under 3 MiB."""
CONNECTION = "connection"
"""Where the state of an ASGI scope has the request's ``Client``."""
_PAGES = 4
"""Pages answered at a time. Not in the threads of what waits: a bind must not queue
behind a page of metrics."""
_MOST_DIGITS = 9
_JSON = JSON.encode()
_CLOSE = (b"connection", b"close")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
PostHandler = Callable[[bytes], Awaitable[bytes]]
_T = TypeVar("_T")


class Client(Protocol):
    """What the server wants to know of a request as it goes on."""

    is_last: bool
    """Whether the server ends, so that the answer has to be the connection's last."""
    lost: asyncio.Future[None]
    """Done when the client has left."""

    def head_arrived(self) -> None:
        """Note that a request's head is complete."""

    def body_arrived(self, size: int) -> None:
        """Note more bytes of its body."""

    def request_arrived(self) -> None:
        """Note that the whole request has arrived."""

    def answer_sent(self) -> None:
        """Note that the answer was handed over to be sent."""


async def in_thread(threads: Executor, call: Callable[[], _T]) -> _T:
    """Call what waits without holding the event loop; the log keeps its facts."""
    call = partial(contextvars.copy_context().run, call)
    return await asyncio.get_running_loop().run_in_executor(threads, call)


class PostsAndPages:
    """An ASGI application: POSTs of JSON to some paths, and Flask's pages.

    An answer may raise; ``answer_error`` says what becomes of that, as for pages.
    ``insist`` raises an ``HTTPException`` for a ``Host`` that may not ask. ``refused``
    is called with the path of a request that is not passed on.
    ``internal_errors`` are bodies for status 200, by path, where the caller expects an
    unexpected exception inside an ordinary answer.
    """

    def __init__(
        self,
        pages: WSGIApplication,
        answers: Mapping[str, PostHandler],
        *,
        insist: Callable[[str], None] = lambda _host: None,
        refused: Callable[[str], None] = lambda _path: None,
        internal_errors: Mapping[str, bytes] | None = None,
    ) -> None:
        self._pages = pages
        self._answers = answers
        self._insist = insist
        self._refused = refused
        self._internal_errors = internal_errors or {}
        self._threads = ThreadPoolExecutor(_PAGES, "page")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        client: Client = scope["state"][CONNECTION]
        client.head_arrived()
        if (answer := self._answers.get(scope["path"])) is not None:
            reply = await self._post(scope, receive, answer)
        else:
            client.request_arrived()
            reply = await self._page(scope, client)
        if reply is None:
            return
        if client.is_last and _CLOSE not in reply.headers:
            reply.headers.append(_CLOSE)
        start = {"status": reply.status, "headers": reply.headers}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": reply.body})
        client.answer_sent()

    async def _page(self, scope: Scope, client: Client) -> "_Reply | None":
        """Have Flask answer in a thread; None if the client has left meanwhile.

        Then the page is not made if it still waits for a thread. Otherwise those who
        ask and leave would have others wait behind pages that nobody reads.
        """
        page = in_thread(self._threads, partial(_page, self._pages, scope))
        answering = asyncio.ensure_future(page)
        either: set[asyncio.Future[Any]] = {answering, client.lost}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        answering.cancel()
        return None

    async def _post(
        self, scope: Scope, receive: Receive, answer: PostHandler
    ) -> "_Reply | None":
        """Answer what may be a POST of JSON; None if the client has left."""
        path, client = scope["path"], scope["state"][CONNECTION]
        headers = dict(scope["headers"])
        try:
            self._insist(headers.get(b"host", b"").decode("latin-1"))
            body = await _body(scope["method"], headers, receive, client)
        except HTTPException as error:
            self._refused(path)
            reply = self._problem(path, error)
            # What follows may be the rest of the body.
            reply.headers.append(_CLOSE)
            return reply
        finally:
            client.request_arrived()
        if body is None:
            return None
        try:
            return _json(200, await answer(body))
        except Exception as error:  # noqa: BLE001
            return self._problem(path, error)

    def _problem(self, path: str, error: Exception) -> "_Reply":
        return _json(*answer_error(error, path, self._internal_errors.get(path)))


class _Reply(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def _json(status: int, body: bytes) -> _Reply:
    size = b"%d" % len(body)
    return _Reply(status, [(b"content-type", _JSON), (b"content-length", size)], body)


async def _body(
    method: str, headers: Mapping[bytes, bytes], receive: Receive, client: Client
) -> bytes | None:
    """Read a body of JSON that comes with its length before it; None if it is cut off.

    A web page in a browser on this host can make one send a POST here, but not of this
    type: the browser would first ask this server whether it may.
    """
    if b"transfer-encoding" in headers:
        raise LengthRequired("send a Content-Length; bodies in chunks are not read")
    if b"expect" in headers:
        raise ExpectationFailed("send the body at once, without Expect")
    length = headers.get(b"content-length", b"0")
    too_long = len(length) > _MOST_DIGITS or int(length) > MOST_BYTES
    # A client that is cut off before the end of its body would not see the answer.
    heard_out = len(length) <= _MOST_DIGITS
    pieces, more = [], heard_out
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        more = message.get("more_body", False)
        if not too_long and (piece := message["body"]):
            client.body_arrived(len(piece))
            pieces.append(piece)
    if too_long:
        raise RequestEntityTooLarge
    if method != "POST":
        raise MethodNotAllowed(["POST"])
    kind = headers.get(b"content-type", b"")
    if kind != _JSON and kind.partition(b";")[0].strip().lower() != _JSON:
        raise UnsupportedMediaType(f"Content-Type must be {JSON}")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _page(pages: WSGIApplication, scope: Scope) -> _Reply:
    """Have Flask answer; a request with a body is the last of its connection."""
    headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]]
    query = scope["query_string"].decode("latin-1")
    environ = make_environ(scope["method"], scope["raw_path"], query, headers)
    environ["wsgi.url_scheme"] = scope["scheme"]
    status, answered, body = make_page(pages, environ)
    encoded = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in answered
    ]
    has_body = environ.get("HTTP_CONTENT_LENGTH", "0") != "0"
    if has_body or "HTTP_TRANSFER_ENCODING" in environ:
        encoded.append(_CLOSE)
    return _Reply(status, encoded, b"".join(body))
