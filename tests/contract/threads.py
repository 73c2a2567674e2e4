"""Threads that ask one thing at once, and one that waits for it to be closed."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

THREADS, TIMES = 4, 5


def asked_at_once(ask: Callable[[], object]) -> list[object]:
    """All that several threads are answered, each of which asks several times."""
    together = Barrier(THREADS)

    def each() -> list[object]:
        together.wait()
        return [ask() for _ in range(TIMES)]

    with ThreadPoolExecutor(THREADS) as pool:
        asked = [pool.submit(each) for _ in range(THREADS)]
        return [answer for one in asked for answer in one.result()]


def woken(wait: Callable[[], object], wake: Callable[[], object]) -> object:
    """What a thread that waits comes back with when it is woken."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        wake()
        return waiting.result()
