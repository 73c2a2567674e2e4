"""The threads of one process, which ends as a whole."""

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import Event, Thread

logger = logging.getLogger(__name__)

Loop = Callable[[Event], None]
_LOOK_S = 1.0


def start(loops: Iterable[tuple[str, Loop]], stop: Event) -> list[Thread]:
    """Start a daemon thread of each name; its loop returns once ``stop`` is set."""
    threads = [
        Thread(target=loop, args=(stop,), name=name, daemon=True)
        for name, loop in loops
    ]
    for thread in threads:
        thread.start()
    return threads


def wait(threads: Sequence[Thread], stop: Event) -> bool:
    """Wait for ``stop``, or for a thread that ended before it; then return True.

    Half a process would look alive to probes; a new one is complete.
    """
    while not stop.wait(_LOOK_S):
        dead = [thread.name for thread in threads if not thread.is_alive()]
        # A thread may end because ``stop`` was set since.
        if dead and not stop.is_set():
            logger.error("a thread ended", extra={"threads": ", ".join(dead)})
            return True
    return False
