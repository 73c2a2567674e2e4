"""The worker of the verbs: its threads await a client's next request themselves.

gunicorn's own gives a connection back to the main loop after each request: the loop
wakes, waits for it, and wakes a thread anew, and all of them want the interpreter's one
lock. While kube-scheduler works on a queue of pods its next call comes within
milliseconds, and that was a third of all that the extender did.
"""

import select
import time
from threading import Semaphore
from typing import Any

from gunicorn.workers.gthread import TConn

from extender.waitingroom import WaitingWorker
from extender.wholerequest import Heard

LINGER_S = 0.05
"""How long a thread awaits the next request before the main loop does."""


class LingeringWorker(WaitingWorker):
    """Half of its threads may stay with a client; the others answer whoever comes.

    So as many clients as there are threads, each busy all the time, keep nobody else
    waiting for longer than a request takes.
    """

    answer_s = 30.0
    """/snapshot of a large cluster goes through a port-forward."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._seats = Semaphore(self.cfg.threads // 2)

    def is_parent_alive(self) -> bool:
        """Tell it to those who linger, too: a new master starts a worker of its own."""
        alive = bool(super().is_parent_alive())
        self.alive &= alive
        return alive

    def handle(self, conn: TConn) -> Any:  # noqa: ANN401
        """Answer a request, and those that follow closely; say whether to keep it."""
        kept = super().handle(conn)
        if not self._seats.acquire(blocking=False):
            return kept
        try:
            while kept is True and self.alive and _asks_again(conn):
                kept = super().handle(conn)
            return kept
        finally:
            self._seats.release()


def _asks_again(conn: TConn) -> bool:
    """Wait a moment for the whole next request; what came of a half one is kept."""
    sock, until = conn.sock, time.monotonic() + LINGER_S
    sock.begin_anew(conn.parser.unreader.take_buffered())
    sock.setblocking(False)  # noqa: FBT003
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    try:
        # Before the poll, which does not see what TLS has decrypted already.
        while sock.hear() is not Heard.WHOLE:
            left_s = until - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                return False
    except OSError:
        # The main loop will see it too.
        return False
    return bool(sock.takes_answers())
