"""``python -m bench.lives``: pods come, are bound, run and go, so many events a second.

A program of its own, so that its work is not in the process that looks on. The port is
its argument, the token its environment's ``BENCH_TOKEN``. It says on one line what it
came to: ``{"events": …, "seconds": …}``.
"""

import json
import os
import sys
import threading
import time
from itertools import count

from bench.crowd import AT_ONCE, bind, node_name
from gpushare.domain.model import Amount
from tests.testbed.objects import pod, post_pod, set_running
from tests.testbed.rest import Rest

EVENTS = 4
"""Of one life: added, bound, running, deleted."""
_WRITERS = 6
_SMALL = Amount(1, 1)


def live(rest: Rest, number: int, nodes: int) -> None:
    """Lead one pod through its life."""
    made = post_pod(rest, pod(f"life-{number}", units=1, cores=1))
    node = node_name(number % nodes)
    bind(rest, made, node, f"GPU-{node}-7", _SMALL)
    set_running(rest, made)
    rest.must("DELETE", f"/api/v1/namespaces/default/pods/life-{number}", AT_ONCE)


class Pace:
    """Deals out the numbers of lives, each at its time."""

    def __init__(self, per_s: float, seconds: float) -> None:
        self._per_s = per_s
        self._began = time.monotonic()
        self._last = int(per_s * seconds)
        self._numbers = count()

    def take(self) -> int | None:
        """Wait for the next number's time and give it; None when all were given."""
        number = next(self._numbers)
        if number >= self._last:
            return None
        time.sleep(max(0.0, self._began + number / self._per_s - time.monotonic()))
        return number


def main(port: int, events_a_second: float, seconds: float, nodes: int) -> None:
    """Make the events, and say how many there were in which time."""
    rest = Rest(port, os.environ["BENCH_TOKEN"])
    pace = Pace(events_a_second / EVENTS, seconds)
    done: list[int] = []

    def work() -> None:
        while (number := pace.take()) is not None:
            live(rest, number, nodes)
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
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
