"""Who gives way where the webhook has too many connections, or bytes of them."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from extender.waitingroom import WaitingWorker

MIB = 1 << 20


class Poller:
    """What is looked at for news."""

    def __init__(self) -> None:
        self.watched: list[object] = []

    def unregister(self, one: object) -> None:
        self.watched.remove(one)


@dataclass(eq=False)
class Conn:
    """A connection of this address; ``sock`` is what the poller knows of it."""

    address: str
    closed: bool = False
    sock: object = field(default_factory=object)

    @property
    def client(self) -> tuple[str, int]:
        return self.address, 1

    def close(self) -> None:
        self.closed = True


def room(most: int = 900) -> Any:
    """A worker that has nobody yet, and no process around it."""
    worker: Any = WaitingWorker.__new__(WaitingWorker)
    worker._guests, worker._sizes = {}, {}
    worker.keepalived_conns = deque()
    worker.poller, worker.nr_conns = Poller(), 0
    worker.worker_connections = most
    return worker


def comes(
    worker: Any, address: str, size: int = 0, *, silent: bool = False, late: float = -60
) -> Conn:
    """One more half request of so many bytes, or one who is between two."""
    conn = Conn(address)
    worker.nr_conns += 1
    worker.poller.watched.append(conn.sock)
    if silent:
        worker.keepalived_conns.append(conn)
    else:
        worker._guests[conn] = time.monotonic() - late
        worker._sizes[conn] = size
    return conn


def looked(worker: Any, *conns: Conn) -> list[bool]:
    """Have the worker look around; who was closed, of whom it knows nothing more."""
    worker.murder_pending()
    waiting = (*worker._guests, *worker.keepalived_conns)
    assert not [one for one in waiting if one.closed]
    assert worker.nr_conns == len(waiting)
    assert worker.poller.watched == [one.sock for one in conns if not one.closed]
    assert set(worker._sizes) <= set(waiting)
    return [one.closed for one in conns]


def test_who_is_late() -> None:
    worker = room()
    late = comes(worker, "a", late=1)
    assert looked(worker, late, comes(worker, "a")) == [True, False]


def test_the_address_that_has_most_gives_way() -> None:
    """Its oldest half request first, and then who of it is silent."""
    worker = room(most=12)
    conns = [
        comes(worker, "server"),
        comes(worker, "server", silent=True),
        comes(worker, "flood", silent=True),
        comes(worker, "flood"),
        comes(worker, "flood"),
        comes(worker, "flood", silent=True),
    ]
    assert looked(worker, *conns) == [False, False, False, True, True, False]
    conns += [comes(worker, "flood", silent=True)]
    assert looked(worker, *conns)[2] is True


def test_the_bytes_of_half_requests_have_a_limit() -> None:
    """They are in memory. Of two addresses the one with more of them gives way."""
    worker = room()
    conns = [comes(worker, "server", 3 * MIB)]
    conns += [comes(worker, "flood", 7 * MIB) for _ in range(10)]
    assert looked(worker, *conns) == [False, True, True] + [False] * 8


def test_a_little_everybody_may_have() -> None:
    """Else those in the threads could have all others sent away."""
    worker = room()
    worker._sizes[Conn("in a thread")] = 65 * MIB
    conn = comes(worker, "server", MIB)
    worker.murder_pending()
    assert not conn.closed
