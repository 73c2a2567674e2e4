"""The body of a request, read within limits."""

from email.message import Message
from http import HTTPStatus
from typing import Protocol

import orjson

from gpushare.kube.cluster import Json
from gpusharectl.demo.requests import Refused

LARGEST_BODY = 3 * 1024 * 1024
"""Bytes of a request, as on the real one."""
UNREAD = (HTTPStatus.LENGTH_REQUIRED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
"""Refusals after which the rest of the connection means nothing."""
_DRAINED = 16 * LARGEST_BODY
_CHUNK = 1 << 16


class Stream(Protocol):
    """Where bytes come from."""

    def read(self, size: int, /) -> bytes:
        """Read so many bytes, fewer at the end."""
        ...


def content_type(headers: Message) -> str:
    """Give the body's type without its parameters, empty where none is said."""
    text: str = headers.get("Content-Type", "")
    return text.partition(";")[0].strip().lower()


def read_body(headers: Message, stream: Stream) -> Json:
    """Read a JSON object, empty where there is no body; ``Refused`` says why not."""
    raw = _read_bytes(headers, stream)
    if not raw:
        return {}
    if not (kind := content_type(headers)).endswith("json"):
        message = f"the body is {kind or 'of no type'}; send JSON"
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        message = f"the body is no JSON: {error}"
        raise Refused(HTTPStatus.BAD_REQUEST, message) from error
    if not isinstance(body, dict):
        raise Refused(HTTPStatus.BAD_REQUEST, "the body must be an object")
    return body


def _read_bytes(headers: Message, stream: Stream) -> bytes:
    text = headers.get("Content-Length", "0")
    if "Transfer-Encoding" in headers or not text.isdecimal():
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "send a Content-Length")
    if (length := int(text)) <= LARGEST_BODY:
        return stream.read(length)
    _drain(stream, min(length, _DRAINED))
    message = f"the body has {length} bytes; the limit is {LARGEST_BODY}"
    raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)


def _drain(stream: Stream, left: int) -> None:
    # Closing on a client that still sends would reset it before it reads why.
    while left > 0 and (read := stream.read(min(left, _CHUNK))):
        left -= len(read)
