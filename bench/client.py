"""A client that costs as little as it can, so that the server is what is measured."""

import random
import socket
import time
from dataclasses import dataclass

import orjson

from bench.server import container


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of many equal calls, sorted."""

    seconds: tuple[float, ...]

    def percentile(self, part: float) -> float:
        """Give a percentile in seconds, 0 < part < 1."""
        return self.seconds[min(len(self.seconds) - 1, int(part * len(self.seconds)))]

    def as_ms(self) -> dict[str, float]:
        """Give p50, p95, p99 and the longest, in milliseconds."""
        parts = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        found = {name: self.percentile(part) for name, part in parts.items()}
        found["max"] = self.seconds[-1]
        return {name: round(seconds * 1000, 3) for name, seconds in found.items()}


class Line:
    """One kept-alive connection, as kube-scheduler keeps one."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, request: bytes) -> bytes:
        """Send a prepared request and give the answer's body; only 200 will do."""
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


def prepared(path: str, names: list[str], units: int) -> bytes:
    """Write the bytes of a filter request for a pod of so many units."""
    pod = {
        "metadata": {"name": "asking", "namespace": "default", "uid": "asking"},
        "spec": {"containers": [container(units)]},
        "status": {"phase": "Pending"},
    }
    body = orjson.dumps({"Pod": pod, "Nodes": None, "NodeNames": names})
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def in_turns(calls: dict[str, tuple[Line, bytes]], rounds: int) -> dict[str, Timing]:
    """Time several calls in turns, so that the machine's other work hits all alike.

    Each round has another order, because a call pays for what the one before it left
    in the processor's caches, and for the sleep of its server meanwhile.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    order, draw = list(calls.items()), random.Random(rounds)
    for number in range(rounds + rounds // 10):
        draw.shuffle(order)
        for name, (line, request) in order:
            began = time.perf_counter()
            line.post(request)
            took = time.perf_counter() - began
            if number >= rounds // 10:
                taken[name].append(took)
    return {name: Timing(tuple(sorted(seconds))) for name, seconds in taken.items()}
