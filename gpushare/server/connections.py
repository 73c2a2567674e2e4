"""Bound what clients can take of a server on an event loop: connections, time, memory.

uvicorn waits for a client as long as the client likes: for a TLS handshake, for the
rest of a request, until an answer is taken. ``ClientConnection`` is an asyncio protocol
around uvicorn's own. It uses only what asyncio and ASGI document.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, cast

REQUEST_S = 5.0
"""Within which a handshake and the first request, or a later one, has to arrive. The
API server itself does not wait longer for a review, as the configurations say."""
MOST_HEAD = 64 << 10
"""Bytes of a request line and its headers."""
MOST_KEPT = 64 << 20
"""Bytes of all bodies that are incomplete or being answered."""
ALWAYS_KEPT = 1 << 20
"""Bytes that every client address may use, however many others use."""
_LAST_REQUEST_S = 0.5
"""How long a client may begin one more request when the process ends."""
_LOOK_EVERY_S = 0.5
_JOINED = 64 << 10
"""Bytes of a body that are copied behind a head; more are sent by themselves."""
_HEAD_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
)


Context = Callable[[], ssl.SSLContext]
"""Gives the TLS context of a new connection; ``OSError`` if it has none."""
SAME_FOR_ALL: Mapping[int, Context] = MappingProxyType({})


class Stage(IntEnum):
    """What a connection does; the lower, the sooner it is closed for others."""

    ARRIVING = 0
    """A handshake or a request is incomplete."""
    SILENT = 1
    """Between two requests."""
    ANSWERED = 2
    """A request is complete, and its answer is not."""


class Connections:
    """The open connections of one listener, ``most`` at a time.

    If there are too many, or too many bytes of them, those of the address with the most
    are closed: a client that floods the server does not displace the API server.
    ``answer_s`` is the time within which a client has to take an answer.
    """

    def __init__(self, *, most: int, answer_s: float) -> None:
        self.answer_s = answer_s
        self._most = most
        self._open: dict[ClientConnection, None] = {}
        self._kept = 0
        self._looking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "ClientConnection") -> None:
        """Add a connection; close one if there are too many."""
        self._open[connection] = None
        if len(self._open) > self._most:
            self._close_one(lambda _: 1)
        self._look_later()

    def remove(self, connection: "ClientConnection") -> None:
        """Forget a connection and its bytes."""
        self._open.pop(connection, None)
        self.release(connection)

    def keep(self, connection: "ClientConnection", size: int) -> None:
        """Count more bytes of a connection; close some if there are too many."""
        if connection not in self._open:
            return
        connection.kept += size
        self._kept += size
        while self._kept > MOST_KEPT:
            if not self._close_one(lambda other: other.kept, ALWAYS_KEPT):
                break

    def release(self, connection: "ClientConnection") -> None:
        """Count the bytes of a connection no longer."""
        self._kept -= connection.kept
        connection.kept = 0

    def _close_one(
        self, weigh: Callable[["ClientConnection"], int], least: int = 0
    ) -> bool:
        """Close one connection of the address with the most; False if there is none.

        It is the oldest of those that send a request, else the oldest of those between
        two requests, else the latest of those that are answered.
        """
        weights: Counter[str] = Counter()
        for connection in self._open:
            weights[connection.address] += weigh(connection)
        address = max(weights, key=weights.__getitem__, default="")
        if weights[address] <= least:
            return False
        candidates = [
            connection
            for connection in self._open
            if connection.address == address and weigh(connection)
        ]
        stage = min(connection.stage for connection in candidates)
        same = [connection for connection in candidates if connection.stage is stage]
        same[-1 if stage is Stage.ANSWERED else 0].abort()
        return True

    def _look_later(self) -> None:
        if self._looking is None and self._open:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(_LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        """Close the connections that are late."""
        now = asyncio.get_running_loop().time()
        for connection in [
            connection for connection in self._open if connection.is_late(now)
        ]:
            connection.abort()
        self._looking = None
        self._look_later()


class ServerTransport:
    """What uvicorn has of a connection's transport.

    The head of an answer leaves together with its body: uvicorn writes them one after
    the other. Each write is a system call, and wakes the client. Reading does not go on
    while ``holds`` tells that requests are held back.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        holds: Callable[[], bool],
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._holds = holds
        self._head = b""
        self._paused = False

    def pause_reading(self) -> None:
        """Read no more until uvicorn wants to."""
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, as uvicorn wants after each answer, unless requests are held."""
        self._paused = False
        self.read_on()

    def read_on(self) -> None:
        """Read on if nobody wants to wait."""
        if not (self._paused or self._holds()):
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send, but keep what ends like a head until the next write or turn."""
        if self._head:
            if len(data) <= _JOINED:
                data = self._head + data
            else:
                self._transport.write(self._head)
            self._head = b""
        elif data.endswith(b"\r\n\r\n"):
            self._head = data
            self._loop.call_soon(self._send_head)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close when all is sent."""
        self._send_head()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  all else is the transport's
        return getattr(self._transport, name)

    def _send_head(self) -> None:
        """Send a head that no body followed."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""


class ClientConnection(asyncio.Protocol):
    """One client: TLS if wanted, then the server's own protocol, with deadlines.

    ``serve`` makes that protocol. ``context`` gives the TLS context of a new
    connection, so renewed certificates are used at once; None for plain HTTP.
    ``by_port`` replaces it for what was accepted on some of this server's ports.
    """

    def __init__(
        self,
        connections: Connections,
        serve: Callable[["ClientConnection"], asyncio.Protocol],
        context: Context | None,
        by_port: Mapping[int, Context] = SAME_FOR_ALL,
    ) -> None:
        self.address = ""
        self.stage = Stage.ARRIVING
        self.kept = 0
        """Bytes of the request's body, and of what is held back."""
        self.is_last = False
        """Whether the next answer is the last, and has to say so."""
        self._connections = connections
        self._serve = serve
        self._context = context
        self._by_port = by_port
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done when the client has left."""
        self._since = self._loop.time()
        """When the stage began."""
        self._stalled: tuple[bool, float] | None = None
        """Since when the client has not taken all that was sent (True), or closed."""
        self._head: int | None = 0
        """Bytes that may be the head of a request; None while a body arrives."""
        self._socket: asyncio.Transport | None = None
        self._transport: asyncio.Transport | None = None
        """Of HTTP: the socket's, or TLS over it."""
        self._server: asyncio.Protocol | None = None
        self._seen: ServerTransport | None = None
        """What the server has of the transport."""
        self._handshake: asyncio.Task[None] | None = None
        self._ahead = b""
        """What arrived before the server may have it."""
        self._requests = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, or HTTP."""
        self._socket = accepted = cast("asyncio.Transport", transport)
        peer = accepted.get_extra_info("peername")
        if not peer:
            # The client has left already.
            accepted.abort()
            return
        self.address = str(peer[0])
        self._connections.add(self)
        if accepted.is_closing():
            return
        context = self._context
        if self._by_port:
            own_port = accepted.get_extra_info("sockname")[1]
            context = self._by_port.get(own_port, context)
        if context is None:
            self._begin(accepted)
        else:
            # What arrives now belongs to the handshake.
            accepted.pause_reading()
            shaking = self._shake_hands(accepted, context)
            self._handshake = self._loop.create_task(shaking)

    async def _shake_hands(self, accepted: asyncio.Transport, context: Context) -> None:
        try:
            secure = await self._loop.start_tls(
                accepted,
                self,
                context(),
                server_side=True,
                ssl_handshake_timeout=REQUEST_S,
                # It includes what is left of the last answer.
                ssl_shutdown_timeout=self._connections.answer_s,
            )
        except OSError:
            # The client has left or shows no certificate, or ours cannot be read.
            self.abort()
            return
        if secure is None or secure.is_closing():
            self.abort()
            return
        self._begin(secure)
        self._pass_on()

    def _begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._server = self._serve(self)
        self._seen = ServerTransport(transport, self._loop, lambda: bool(self._ahead))
        self._server.connection_made(cast("asyncio.Transport", self._seen))

    def data_received(self, data: bytes) -> None:
        """Pass on what arrived; refuse a head that is too long."""
        if self._server is None or self.stage is Stage.ANSWERED:
            # asyncio may decrypt the first request before ``start_tls`` returns. And
            # uvicorn would keep as many requests as arrive while one is answered.
            self._ahead += data
            if self._transport:
                self._transport.pause_reading()
            self._connections.keep(self, len(data))
            return
        if self.stage is Stage.SILENT:
            self._enter(Stage.ARRIVING)
        if self._head is not None:
            if self._head > MOST_HEAD:
                self._refuse_head()
                return
            self._head += len(data)
        self._server.data_received(data)

    def _refuse_head(self) -> None:
        assert self._transport is not None  # noqa: S101  data came from it
        self._transport.write(_HEAD_TOO_LONG)
        self._transport.close()

    def eof_received(self) -> bool | None:
        """Pass it on."""
        return self._server.eof_received() if self._server else None

    def pause_writing(self) -> None:
        """Pass it on."""
        if self._server:
            self._server.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        if self._server:
            self._server.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._connections.remove(self)
        if not self.lost.done():
            self.lost.set_result(None)
        if self._server:
            self._server.connection_lost(exc)

    def head_arrived(self) -> None:
        """Note that a request's head is complete; its body may not be."""
        self._requests += 1
        if self.stage is not Stage.ARRIVING:
            # It arrived together with the request before it.
            self._enter(Stage.ARRIVING)
        self._head = None

    def body_arrived(self, size: int) -> None:
        """Note more bytes of the request's body."""
        self._connections.keep(self, size)

    def request_arrived(self) -> None:
        """Note that the whole request has arrived."""
        self._enter(Stage.ANSWERED)

    def answer_sent(self) -> None:
        """Note that the answer was handed over to be sent."""
        self._connections.release(self)
        # If uvicorn has another request already, that begins before this is called.
        self._loop.call_soon(self._rest, self._requests)

    def _rest(self, after: int) -> None:
        """Be silent if no request has begun since; then read what was held back."""
        if after == self._requests:
            self._enter(Stage.SILENT)
            self._pass_on()
            if self.is_last:
                self.end()

    def _pass_on(self) -> None:
        ahead, seen = self._ahead, self._seen
        if not ahead or seen is None or seen.is_closing():
            return
        self._ahead = b""
        self.data_received(ahead)
        seen.read_on()

    def is_late(self, now: float) -> bool:
        """Tell whether the client is late with a request, or to take an answer."""
        if self.stage is Stage.ARRIVING and now - self._since > REQUEST_S:
            return True
        if self._socket is None:
            return False
        # TLS does not pause the writing of an answer that the socket's transport holds.
        unsent = self._socket.get_write_buffer_size() > 0
        if not unsent and not (self._transport or self._socket).is_closing():
            self._stalled = None
            return False
        if self._stalled is None or self._stalled[0] is not unsent:
            self._stalled = unsent, now
        # With nothing unsent, TLS waits for the client to close, too.
        limit = self._connections.answer_s if unsent else REQUEST_S
        return now - self._stalled[1] > limit

    def end(self) -> None:
        """Let the next answer be the last, as the process ends.

        A request may be on its way. Its client would see the connection closed without
        an answer, and may not send it again: the API server then denies the pod.
        """
        self.is_last = True
        self._loop.call_later(_LAST_REQUEST_S, self._close_unused)

    def _close_unused(self) -> None:
        """Close if nothing of a request has come."""
        if self._transport and self.stage is not Stage.ANSWERED and self._head == 0:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._connections.remove(self)
        if self._handshake:
            self._handshake.cancel()
        if self._socket:
            self._socket.abort()

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self._since = self._loop.time()
        self._head = 0
