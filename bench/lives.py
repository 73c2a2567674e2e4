"""``python -m bench.lives``: pods come, are bound, run and go, so many events a second.

A program of its own, so that its work is not in the process that looks on. It writes to
etcd itself, copies of one pod in its states (``bench.crowd``): a life through the API
server takes that and etcd 15 ms, so that 500 events a second would be more than two
cores. The API server's watches tell of them all the same. It says on one line what it
came to: ``{"events": …, "seconds": …}``.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from bench.crowd import PODS, Template, base64_of, names, put_body, swapped
from tests.testbed.rest import Rest

EVENTS = 4
"""Of one life: added, bound, running, deleted."""
_WRITERS = 8
_LAST_CARD = 7


def live(etcd: Rest, of: Template, number: int, nodes: int) -> None:
    """Lead one pod through its life."""
    name = f"life-{number}"
    key, swaps = f"{PODS}/{name}", names(of, name, 3, number, nodes, _LAST_CARD)
    for state in (of.pending, of.bound, of.running):
        etcd.must("POST", "/v3/kv/put", put_body(key, swapped(state, swaps)))
    etcd.must("POST", "/v3/kv/deleterange", {"key": base64_of(key)})


class Pace:
    """Deals out the numbers of lives, each at its time, or later where all are busy."""

    def __init__(
        self,
        per_s: float,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_s = per_s
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._numbers = count()

    def take(self) -> int | None:
        """Wait for the next number's time and give it; None when the time is over."""
        number = next(self._numbers)
        passed, due = self._clock() - self._began, number / self._per_s
        if max(passed, due) >= self._seconds:
            return None
        self._sleep(max(0.0, due - passed))
        return number


def main(
    port: int, template: Path, events_a_second: float, seconds: float, nodes: int
) -> None:
    """Make the events, and say how many there were in which time."""
    etcd, of = Rest(port, tls=False), Template(**json.loads(template.read_text()))
    pace, done = Pace(events_a_second / EVENTS, seconds), list[int]()

    def work() -> None:
        while (number := pace.take()) is not None:
            live(etcd, of, number, nodes)
            done.append(number)

    began = time.monotonic()
    workers = [threading.Thread(target=work) for _ in range(_WRITERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.monotonic() - began
    print(json.dumps({"events": EVENTS * len(done), "seconds": round(took, 2)}))


if __name__ == "__main__":
    _, port, template, *rest = sys.argv
    main(int(port), Path(template), float(rest[0]), float(rest[1]), int(rest[2]))
