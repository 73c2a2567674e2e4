"""The exporter at 8 cards and 100 containers: a scrape, its memory, its idle cost."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.client import Timing
from bench.exporter_server import CONTAINERS, FIRST_PID, PAGE
from gpushare.addresses import find_free_address
from tests.nvml.build import STATE_VARIABLE, Stub, the_stub
from tests.nvml.driver import StubDriver, stub_card

CARDS = 8
SCRAPES = 30
_APART_S = 2.1
"""Longer than the shortest pace of a group, so that every page is a new one."""
_IDLE_S = 30.0
_START_WITHIN_S = 60.0


def exporter_table(console: Console) -> dict[str, Any]:
    """Measure, and show."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as running:
        folder = Path(name)
        stub = the_stub()
        driver = driver_at_work(folder)

        def child(what: str) -> tuple[subprocess.Popen[bytes], int]:
            return running.enter_context(started(what, folder, stub, driver))

        exporter, port = child("exporter")
        page = settled(port)
        (folder / PAGE).write_text(page)
        _, bare = child("registry")
        settled(bare)
        took = in_turns({"exporter": port, "bare registry": bare})
        imports, _ = child("imports")
        time.sleep(2)
        memory = resident_mib(exporter.pid) - resident_mib(imports.pid)
        before = cpu_s(exporter.pid)
        time.sleep(_IDLE_S)
        busy = 100 * (cpu_s(exporter.pid) - before) / _IDLE_S
    samples = sum(not line.startswith("#") for line in page.splitlines())
    table = Table(f"a scrape of {samples} samples", "p50 / p95 / p99 / max ms")
    for what, timing in took.items():
        shown = "{p50:.1f} / {p95:.1f} / {p99:.1f} / {max:.1f}".format(**timing.as_ms())
        table.add_row(what, shown)
    console.print(table)
    ratio = took["exporter"].percentile(0.5) / took["bare registry"].percentile(0.5)
    console.print(
        f"A scrape takes {ratio:.2f} times the bare registry's; {memory:.1f} MiB above "
        f"the imports; {busy:.2f} % of a core between scrapes."
    )
    return {
        "samples": samples,
        **{what: timing.as_ms() for what, timing in took.items()},
        "ratio": round(ratio, 3),
        "memory_mib_above_imports": round(memory, 1),
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
def started(
    what: str, folder: Path, stub: Stub, driver: StubDriver
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run one of ``bench.exporter_server``; gives it and its port."""
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


def settled(port: int) -> str:
    """Wait until the page has every container, and give it."""
    deadline = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < deadline:
        try:
            page = scrape(port).decode()
        except OSError:
            page = ""
        if page.count("\nDCGM_CUSTOM_PROCESS_MEM_USED{") == CONTAINERS:
            return page
        time.sleep(0.2)
    raise RuntimeError("the exporter's page did not get whole")


def scrape(port: int) -> bytes:
    """Read the page once, over a connection of its own."""
    link = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        link.request("GET", "/metrics")
        return link.getresponse().read()
    finally:
        link.close()


def in_turns(ports: dict[str, int]) -> dict[str, Timing]:
    """Scrape each in turns, every page a new one."""
    taken: dict[str, list[float]] = {name: [] for name in ports}
    for _ in range(SCRAPES):
        time.sleep(_APART_S)
        for name, port in ports.items():
            began = time.perf_counter()
            scrape(port)
            taken[name].append(time.perf_counter() - began)
    return {name: Timing(tuple(sorted(seconds))) for name, seconds in taken.items()}


def resident_mib(pid: int) -> float:
    """Give the memory that a process has resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(kib) / 1024


def cpu_s(pid: int) -> float:
    """Give the processor time that a process has had."""
    fields: Sequence[str] = Path(f"/proc/{pid}/stat").read_text().split(") ")[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
