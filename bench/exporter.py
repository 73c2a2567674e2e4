"""The exporter at 8 cards and 100 containers: a scrape, its memory, its idle cost."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.client import time_call, time_in_turns, times_table
from bench.exporter_server import CONTAINERS, FIRST_PID, PAGE
from bench.facts import cpu_s, memory_mib
from gpushare.addresses import find_free_address
from tests.nvml.build import STATE_VARIABLE, Stub, the_stub
from tests.nvml.driver import StubDriver, stub_card
from tests.testbed.waiting import wait_until

CARDS = 8
SCRAPES = 30
_APART_S = 2.1
"""Longer than the shortest pace of a group, so that every page is a new one."""
_IDLE_S = 30.0
_START_WITHIN_S = 60.0
_A_PROCESS = "\nDCGM_CUSTOM_PROCESS_MEM_USED{"


def exporter_table(console: Console) -> dict[str, Any]:
    """Measure, and show."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as running:
        folder = Path(name)
        stub = the_stub()
        driver = driver_at_work(folder)

        def child(what: str) -> tuple[subprocess.Popen[bytes], int]:
            return running.enter_context(start_server(what, folder, stub, driver))

        imports, _ = child("imports")
        exporter, port = child("exporter")
        page = wait_for_page(port)
        (folder / PAGE).write_text(page)
        _, bare = child("registry")
        wait_for_page(bare)

        def scrape_new_page() -> float:
            time.sleep(_APART_S)
            return time_call(partial(scrape, port))

        timings = time_in_turns(
            {
                "exporter": scrape_new_page,
                "bare registry": partial(time_call, partial(scrape, bare)),
            },
            SCRAPES,
            warm_up=0,
        )
        more_mib = memory_mib(exporter.pid) - memory_mib(imports.pid)
        before = cpu_s(exporter.pid)
        time.sleep(_IDLE_S)
        busy = 100 * (cpu_s(exporter.pid) - before) / _IDLE_S
    samples = sum(not line.startswith("#") for line in page.splitlines())
    console.print(times_table(f"a scrape of {samples} samples", timings, 1))
    exporter_s, bare_s = (took.percentile(0.5) for took in timings.values())
    ratio = exporter_s / bare_s
    console.print(
        f"A scrape takes {ratio:.2f} times the bare registry's; {more_mib:.1f} MiB "
        f"above the imports; {busy:.2f} % of a core between scrapes."
    )
    return {
        "samples": samples,
        **{what: took.as_ms() for what, took in timings.items()},
        "ratio": round(ratio, 3),
        "memory_mib_above_imports": round(more_mib, 1),
        "idle_percent_of_a_core": round(busy, 2),
    }


def driver_at_work(folder: Path) -> StubDriver:
    """Make the stub's cards, each with its share of the containers' processes."""
    made = folder / "driver"
    made.mkdir()
    cards = [stub_card(number, memory_mib=143_771) for number in range(CARDS)]
    driver = StubDriver(made, cards)
    for number in range(CONTAINERS):
        uuid = cards[number % CARDS].uuid
        driver.process(uuid, FIRST_PID + number, mib=512)
        driver.busy(uuid, FIRST_PID + number, sm=number % 7)
    return driver


@contextmanager
def start_server(
    what: str, folder: Path, stub: Stub, driver: StubDriver
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run one of ``bench.exporter_server``; yields it and its port."""
    port = find_free_address().port
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(stub.library.parent),
        STATE_VARIABLE: str(driver.path),
    }
    command = [sys.executable, "-m", "bench.exporter_server", what, folder, str(port)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    try:
        yield child, port
    finally:
        child.communicate()


def wait_for_page(port: int) -> str:
    """Return the page once it has every container."""

    def read() -> str:
        with suppress(OSError):
            return scrape(port).decode()
        return ""

    return wait_until(
        read,
        "page with every container",
        _START_WITHIN_S,
        accept=lambda page: page.count(_A_PROCESS) == CONTAINERS,
    )


def scrape(port: int) -> bytes:
    """Read the page once, over a connection of its own."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as link:
        link.request("GET", "/metrics")
        return link.getresponse().read()
