"""A client that costs as little as it can, so that the server is what is measured."""

import random
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import orjson
from rich.table import Table

from bench.placed import container


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of many equal calls, sorted."""

    seconds: tuple[float, ...]

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Self:
        """Sort the seconds of calls."""
        return cls(tuple(sorted(seconds)))

    def percentile(self, part: float) -> float:
        """Return a percentile in seconds, 0 < part < 1."""
        return self.seconds[min(len(self.seconds) - 1, int(part * len(self.seconds)))]

    def as_ms(self) -> dict[str, float]:
        """Return p50, p95, p99 and the longest, in milliseconds."""
        parts = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        times_s = {name: self.percentile(part) for name, part in parts.items()}
        times_s["max"] = self.seconds[-1]
        return {name: round(seconds * 1000, 3) for name, seconds in times_s.items()}


def format_ms(times: Mapping[str, float], digits: int = 2, most: str = "p99") -> str:
    """Write milliseconds from p50 up to a percentile, or to ``max``."""
    names = ("p50", "p95", "p99", "max")
    shown = names[: names.index(most) + 1]
    return " / ".join(f"{times[name]:.{digits}f}" for name in shown)


def times_table(title: str, rows: Mapping[str, Timing], digits: int = 2) -> Table:
    """Return a table of calls with their percentiles and the longest."""
    table = Table(title, "p50 / p95 / p99 / max ms")
    for name, timing in rows.items():
        table.add_row(name, format_ms(timing.as_ms(), digits, "max"))
    return table


class Line:
    """One kept-alive connection, as kube-scheduler keeps one.

    With a context it is over TLS, as the API server keeps some.
    """

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            plain = self._socket
            self._socket = context.wrap_socket(plain, server_hostname="localhost")

    def post(self, request: bytes) -> bytes:
        """Send a prepared request and return the answer's body; only 200 will do."""
        self._socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, body = data.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        chunks, have = [body], len(body)
        while have < length:
            chunks.append(self._receive())
            have += len(chunks[-1])
        return b"".join(chunks)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the server hung up")
        return data


def prepare_post(path: str, body: object) -> bytes:
    """Write the bytes of one POST of JSON."""
    content = orjson.dumps(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def filter_args(names: list[str], units: int) -> dict[str, object]:
    """Ask which of these nodes have room for a pod of so many units."""
    pod = {
        "metadata": {"name": "asking", "namespace": "default", "uid": "asking"},
        "spec": {"containers": [container(units)]},
        "status": {"phase": "Pending"},
    }
    return {"Pod": pod, "Nodes": None, "NodeNames": names}


def time_call(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def time_in_turns(
    ways: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1
) -> dict[str, Timing]:
    """Take each way's time in turns, so that the machine's other work hits all alike.

    Each round has another order, because a call pays for what the one before it left
    in the processor's caches, and for the sleep of its server meanwhile. The rounds of
    the warm-up come first and do not count.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    order, draw = list(ways.items()), random.Random(rounds)
    for number in range(warm_up + rounds):
        draw.shuffle(order)
        for name, take in order:
            seconds = take()
            if number >= warm_up:
                taken[name].append(seconds)
    return {name: Timing.of(seconds) for name, seconds in taken.items()}


def post_in_turns(
    calls: Mapping[str, tuple[Line, bytes]], rounds: int
) -> dict[str, Timing]:
    """Time the posts of prepared requests in turns."""
    ways = {
        name: partial(time_call, partial(line.post, request))
        for name, (line, request) in calls.items()
    }
    return time_in_turns(ways, rounds, warm_up=rounds // 10)
