"""Read one HTTP page from a pod's loopback, through the API server's port-forward.

The kubernetes client's ``portforward`` is not used: it passes the stream to a thread
that may end without closing it, and it ignores Ctrl-C. TLS is done in memory, because
``ssl`` cannot wrap a forwarded port, which is not a socket.
"""

import http.client
import io
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import certifi
import websocket
from kubernetes import client
from kubernetes.stream.ws_client import (
    V4_CHANNEL_PROTOCOL,
    get_websocket_url,
    websocket_proxycare,
)

from gpushare.kube.apiserver.client import error_of_answer
from gpushare.kube.errors import ClusterError, Unavailable, Unreachable, error_for
from gpushare.kube.objects import Ref

TIMEOUT_S = 10.0
MOST_BYTES = 256 << 20
"""Of a page; the ledger of 20,000 nodes is well below it."""
_CHUNK = 1 << 16
_QUOTED = 200
"""The most characters quoted of an error page."""
_DATA = 0
"""The websocket channel of the port's data; the next one has kubelet's errors."""
_BROKEN = (OSError, http.client.HTTPException, websocket.WebSocketException)


class Link:
    """A forwarded port as the part of a socket that ``http.client`` needs."""

    def __init__(self, opened: websocket.WebSocket) -> None:
        self._opened = opened

    def sendall(self, data: bytes) -> None:
        """Send to the port."""
        self._opened.send_binary(bytes([_DATA]) + data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader of what the port sends."""
        return io.BufferedReader(_Received(self._opened))

    def close(self) -> None:
        """Do nothing: the opener closes the websocket."""


class TlsLink:
    """TLS over a forwarded port. The constructor does the handshake.

    Raises ``ssl.SSLError``, which is an ``OSError``.
    """

    def __init__(self, link: Link, context: ssl.SSLContext, name: str) -> None:
        self._link = link
        self._coming = link.makefile("rb")
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=name)
        self._until_done(self._tls.do_handshake)

    def sendall(self, data: bytes) -> None:
        """Send encrypted."""
        self._until_done(lambda: self._tls.write(data))

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader of the decrypted data."""
        return io.BufferedReader(_Decrypted(self))

    def close(self) -> None:
        """Do nothing: the opener closes the stream."""

    def read(self, size: int) -> bytes:
        """Read some bytes; empty at the end."""
        try:
            decrypted: bytes = self._until_done(lambda: self._tls.read(size))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""
        return decrypted

    def _until_done(self, step: Any) -> Any:  # noqa: ANN401
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush()
                self._feed()
            except ssl.SSLError:
                # Send the TLS alert, which tells the other side why.
                self._flush()
                raise
            else:
                self._flush()
                return result

    def _flush(self) -> None:
        if words := self._out.read():
            self._link.sendall(words)

    def _feed(self) -> None:
        if words := self._coming.read1(_CHUNK):
            self._in.write(words)
        else:
            self._in.write_eof()


class _Decrypted(io.RawIOBase):
    def __init__(self, link: TlsLink) -> None:
        self._link = link

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        received = self._link.read(len(buffer))
        buffer[: len(received)] = received
        return len(received)


def fetch_page(
    api: client.ApiClient,
    pod: Ref,
    port: int,
    path: str,
    *,
    tls: tuple[ssl.SSLContext, str] | None = None,
) -> bytes:
    """GET a page from a pod's port; ``ClusterError``s only.

    ``tls`` is the context for a port that wants TLS, and the server's name.
    """
    with _opened(api, pod, port) as opened:
        try:
            link = Link(opened)
            return read_page(TlsLink(link, *tls) if tls else link, port, path)
        except _BROKEN as error:
            raise Unavailable(
                f"no answer from port {port} of {pod} by port-forward: {_words(error)}"
            ) from error


def read_page(
    link: Any,  # noqa: ANN401
    port: int,
    path: str,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """GET a page over a connected stream; ``ClusterError`` for another status.

    Also if it has more than ``most_bytes``: what answers in a pod is the node's.
    Raises ``OSError`` and ``HTTPException`` if the answer is not HTTP.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.sock = link
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read(most_bytes + 1)
        if len(body) > most_bytes:
            raise Unavailable(f"{path} answers with more than {most_bytes} bytes")
        # Only without a limit does it raise where a part of the answer is missing.
        body += answer.read()
    finally:
        connection.close()
    if answer.status != http.client.OK:
        error_text = " ".join(body.decode(errors="replace").split())[:_QUOTED]
        raise error_for(answer.status, f"{path} answers {answer.status}: {error_text}")
    return body


class _Received(io.RawIOBase):
    """The data of a port, from frames that each begin with a channel number."""

    def __init__(self, opened: websocket.WebSocket) -> None:
        self._opened = opened
        self._begun: set[int] = set()
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        while not self._left and self._more():
            pass
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size

    def _more(self) -> bool:
        try:
            code, frame = self._opened.recv_data_frame(control_frame=True)
        except websocket.WebSocketConnectionClosedException:
            return False
        if code == websocket.ABNF.OPCODE_CLOSE:
            return False
        if code == websocket.ABNF.OPCODE_BINARY and frame.data:
            self._take(frame.data[0], frame.data[1:])
        return True

    def _take(self, channel: int, data: bytes) -> None:
        if channel not in self._begun:
            # The first frame of each channel has only the port's number.
            self._begun.add(channel)
        elif channel == _DATA:
            self._left += data
        else:
            raise ConnectionAbortedError(data.decode(errors="replace"))


@contextmanager
def _opened(api: client.ApiClient, pod: Ref, port: int) -> Iterator[Any]:
    _, url, headers, *_ = api.param_serialize(
        "GET",
        f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/portforward",
        query_params=[("ports", str(port))],
        auth_settings=["BearerToken"],
    )
    try:
        opened = _connect(
            api.configuration,
            get_websocket_url(url),  # type: ignore[no-untyped-call]
            headers.get("authorization"),
        )
    except (*_BROKEN, ValueError) as error:
        raise _not_opened(error) from error
    try:
        yield opened
    finally:
        opened.shutdown()  # type: ignore[no-untyped-call]


def _connect(
    configuration: client.Configuration, url: str, authorization: str | None
) -> websocket.WebSocket:
    """Open a websocket; each wait for the other side ends after ``TIMEOUT_S``.

    The kubernetes client's ``create_websocket`` would wait for the API server, which
    waits for kubelet, without end.
    """
    options: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if configuration.verify_ssl:
        authorities = configuration.ssl_ca_cert or certifi.where()
        options = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": authorities}
        if configuration.assert_hostname is not None:
            options["check_hostname"] = configuration.assert_hostname
    given = {
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    options |= {name: value for name, value in given.items() if value}
    how: dict[str, Any] = {"timeout": TIMEOUT_S, "subprotocols": [V4_CHANNEL_PROTOCOL]}
    if authorization:
        how["header"] = [f"authorization: {authorization}"]
    if configuration.proxy:
        # It also has the addresses that are reached without a proxy.
        websocket_proxycare(how, configuration, url, {})  # type: ignore[no-untyped-call]
    opened = websocket.WebSocket(sslopt=options)
    opened.connect(url, **how)  # type: ignore[no-untyped-call]
    return opened


def _not_opened(error: Exception) -> ClusterError:
    if isinstance(error, websocket.WebSocketBadStatusException):
        return error_of_answer(error.status_code, str(error), error.resp_body)
    never_sent = isinstance(error, ConnectionRefusedError)
    kind = Unreachable if never_sent else Unavailable
    return kind(f"no answer from the API server: {_words(error)}")


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
