"""Who gives way where the webhook has too many connections, or bytes of them."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from extender.server.workers import REQUEST_S, Heard, Pieces, WaitingWorker

MIB = 1 << 20


class Poller:
    """What is looked at for news."""

    def __init__(self) -> None:
        self.watched: list[object] = []

    def register(self, one: object, *_: object) -> None:
        self.watched.append(one)

    def unregister(self, one: object) -> None:
        self.watched.remove(one)


class Threads:
    """They begin nothing by themselves."""

    def submit(self, *_: object) -> Future[bool]:
        return Future()


class News:
    """What the threads have to tell the main loop."""

    def __init__(self) -> None:
        self.told: list[Callable[[], None]] = []

    def defer(self, call: Callable[..., None], *args: object) -> None:
        self.told.append(lambda: call(*args))

    def hear(self) -> None:
        told, self.told = self.told, []
        for call in told:
            call()


@dataclass(eq=False)
class Sock:
    """A client who has said so much, and reads his answers or not."""

    heard: Heard = Heard.WHOLE
    reads: bool = True
    pieces: Pieces = field(default_factory=lambda: Pieces(8 * MIB))

    def hear(self) -> Heard:
        return self.heard

    def takes_answers(self) -> bool:
        return self.reads


@dataclass(eq=False)
class Conn:
    """A connection of this address; ``sock`` is what the poller knows of it."""

    address: str
    closed: bool = False
    sock: Sock = field(default_factory=Sock)
    timeout: float = 0

    @property
    def client(self) -> tuple[str, int]:
        return self.address, 1

    def close(self) -> None:
        self.closed = True


def room(most: int = 900) -> Any:
    """A worker that has nobody yet, and no process around it."""
    worker: Any = WaitingWorker.__new__(WaitingWorker)
    worker._guests, worker._sizes, worker._busy = {}, {}, {}
    worker.tpool, worker.method_queue = Threads(), News()
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
    """Where there are many of them, nobody has most."""
    worker = room()
    conns = [comes(worker, f"pod-{number}", MIB) for number in range(65)]
    assert looked(worker, *conns) == [False] * 65


def asks(worker: Any, address: str, size: int = 0) -> Conn:
    """One whose request is whole: a thread answers him, or will."""
    conn = Conn(address)
    worker.nr_conns += 1
    conn.sock.pieces.kept += bytes(size)
    worker._hear(conn)
    return conn


def test_who_is_always_busy_counts_as_well() -> None:
    """Else he had everybody closed who is silent between two requests."""
    worker = room(most=12)
    server = [comes(worker, "server", silent=True) for _ in range(2)]
    flood = [asks(worker, "flood") for _ in range(3)]
    answering = worker._busy[flood[-1]]
    answering.set_running_or_notify_cancel()
    assert seen(worker, *flood) == [False, False, False]
    answering.set_result(True)
    assert seen(worker, *flood) == [False, False, True]
    flood.append(comes(worker, "flood"))
    assert seen(worker, *flood) == [False, False, True, True]
    flood.append(asks(worker, "flood"))
    assert seen(worker, *flood) == [False, False, True, True, True]
    assert seen(worker, *server) == [False, False]
    assert worker.nr_conns == 4


def seen(worker: Any, *conns: Conn) -> list[bool]:
    """Have it look around, and hear of the threads; who was closed."""
    worker.murder_pending()
    worker.method_queue.hear()
    return [one.closed for one in conns]


def test_bytes_that_wait_their_turn_count_as_well() -> None:
    """They are not answered any more, and are not kept until their turn comes."""
    worker = room()
    server = asks(worker, "server", MIB)
    flood = [asks(worker, "flood", 7 * MIB) for _ in range(10)]
    assert seen(worker, *flood) == [False] * 9 + [True]
    assert not server.closed
    assert sum(len(one.sock.pieces.kept) for one in flood) == 63 * MIB
    assert set(worker._sizes) == {server, *flood[:9]}


def test_who_reads_no_answers_gets_no_thread() -> None:
    """It would wait for him; he is closed."""
    worker = room()
    conn = Conn("slow", sock=Sock(reads=False))
    worker.nr_conns += 1
    worker._hear(conn)
    assert conn.closed
    assert (worker.nr_conns, worker._busy, worker._sizes) == (0, {}, {})


def test_who_shakes_hands_and_says_nothing() -> None:
    """He has as long as for a request, and nothing is left of him."""
    worker = room()
    conn = Conn("idle", sock=Sock(Heard.PART))
    worker.nr_conns += 1
    began = time.monotonic()
    worker._hear(conn)
    conn.sock.heard = Heard.NOTHING
    worker._hear(conn)
    assert worker._guests[conn] <= time.monotonic() + REQUEST_S
    assert worker._guests[conn] >= began
    worker._guests[conn] = 0
    assert looked(worker, conn) == [True]
    assert worker._sizes == {}


def test_who_has_been_silent_for_long() -> None:
    """Whatever was known of him goes with him."""
    worker = room()
    old, new = (comes(worker, "server", silent=True) for _ in range(2))
    new.timeout = time.monotonic() + 60
    worker._sizes[old] = 0
    worker.murder_keepalived()
    assert looked(worker, old, new) == [True, False]
    worker.murder_keepalived(force=True)
    assert looked(worker, old, new) == [True, True]
