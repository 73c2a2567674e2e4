"""Many clients of one webhook, all of them at once, over TLS."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from gpushare.kube.cluster import Json

_HANDSHAKES = 8
"""At a time: it is the requests that are to come all at once."""


@dataclass(frozen=True)
class Call:
    """One review to ask for."""

    path: str
    body: Json


def all_at_once(
    port: int, context: ssl.SSLContext, calls: Sequence[Call]
) -> list[Json]:
    """Connect for every call, then send all of them, and give the answers in order."""
    return asyncio.run(_crowd(port, context, calls))


async def _crowd(
    port: int, context: ssl.SSLContext, calls: Sequence[Call]
) -> list[Json]:
    few = asyncio.Semaphore(_HANDSHAKES)
    links = await asyncio.gather(*(_link(port, context, few) for _ in calls))
    try:
        return await asyncio.gather(
            *(_ask(link, call) for link, call in zip(links, calls, strict=True))
        )
    finally:
        for _, writer in links:
            writer.transport.abort()
        # So that the loop closes each before it ends itself.
        await asyncio.sleep(0)


Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _link(port: int, context: ssl.SSLContext, few: asyncio.Semaphore) -> Link:
    async with few:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        # Who shakes hands and says nothing is soon hung up on.
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await _answer(reader, status=404)
        return reader, writer


async def _ask(link: Link, call: Call) -> Json:
    reader, writer = link
    body = orjson.dumps(call.body)
    head = (
        f"POST {call.path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    found: Json = orjson.loads(await _answer(reader))
    return found


async def _answer(reader: asyncio.StreamReader, status: int = 200) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert head.startswith(f"http/1.1 {status}"), head
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    return await reader.readexactly(length)
