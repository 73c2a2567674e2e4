"""Filter at a steady pace, by turns alone and while /metrics is read each second.

``python -m bench.scrapes PORT SECONDS`` reads it, in a process of its own so that the
client that measures does nothing else. It says on one line that it begins, and on
another how many seconds each took.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any, Protocol

from bench.client import Line, Timing
from bench.facts import cpu_s, median
from bench.serving import Served

TURNS = 3
TURN_S = 8.0
CALLS_A_SECOND = 20
"""So few that a call which a scrape holds up by 50 ms makes no other one late.

kube-scheduler asks for one pod after another, and no call of its waits for another.
"""
_EVERY_S = 1.0


class Posts(Protocol):
    """What ``Line`` does."""

    def post(self, request: bytes) -> bytes: ...


def measure_scrapes(served: Served, request: bytes) -> dict[str, Any]:
    """Ask filter without and with scrapes, in turns; percentiles in milliseconds.

    ``cpu_s`` is what a scrape costs the worker: the turns have equally many calls.
    """
    line, took = Line(served.port), dict[str, list[float]](quiet=[], scraped=[])
    used, scrapes = {"quiet": 0.0, "scraped": 0.0}, list[float]()
    paced(line, request, 1.0)
    for _ in range(TURNS):
        for name in took:
            reading = reader(served.public) if name == "scraped" else None
            before = cpu_s(served.worker)
            took[name] += paced(line, request, TURN_S)
            if reading is not None:
                scrapes += json.loads(reading.communicate()[0])
            used[name] += cpu_s(served.worker) - before
    line.close()
    quiet, loaded = map(Timing.of, took.values())
    return {
        "calls_a_second": CALLS_A_SECOND,
        "quiet": quiet.as_ms(),
        "scraped": loaded.as_ms(),
        "p99_to_p50": round(loaded.percentile(0.99) / quiet.percentile(0.5), 3),
        "scrapes": len(scrapes),
        "scrape_s": median(scrapes),
        "cpu_s": round((used["scraped"] - used["quiet"]) / len(scrapes), 3),
    }


def paced(
    line: Posts,
    request: bytes,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[float]:
    """Post at a steady pace; the seconds of each call, from when it was due.

    Else a server that stands still would delay one call, and hide the others that
    wait behind it.
    """
    began, took = clock(), list[float]()
    for number in range(int(seconds * CALLS_A_SECOND)):
        since = began + number / CALLS_A_SECOND
        if (early := since - clock()) > 0:
            sleep(early)
            since = clock()
        line.post(request)
        took.append(clock() - since)
    return took


def reader(public: int) -> "subprocess.Popen[str]":
    """Start the program that reads /metrics; its own start is over on return."""
    started = subprocess.Popen(
        [sys.executable, "-m", "bench.scrapes", str(public), str(TURN_S)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    started.stdout.readline()
    return started


def main(port: int, seconds: float) -> None:
    """Read /metrics each second, or again at once where it took longer."""
    print(flush=True)
    began, took = time.monotonic(), list[float]()
    while (since := time.monotonic()) - began < seconds - _EVERY_S / 2:
        link = HTTPConnection("127.0.0.1", port, timeout=60)
        link.request("GET", "/metrics")
        link.getresponse().read()
        link.close()
        took.append(time.monotonic() - since)
        time.sleep(max(0.0, since + _EVERY_S - time.monotonic()))
    print(json.dumps(took))


if __name__ == "__main__":
    _, port, seconds = sys.argv
    main(int(port), float(seconds))
