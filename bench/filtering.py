"""Filter over HTTP, beside an echo in the same server and an echo in Go, in turns."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.client import Line, in_turns, prepared
from bench.report.page import number, times
from bench.scrapes import scraped
from bench.server import ECHO, POD_UNITS, UNITS
from bench.serving import server
from tests.testbed.binaries import cache_folder
from tests.testbed.goextender import GoExtender, ensure_go_extender
from tests.testbed.process import Launcher
from tests.testbed.toolchain import BinariesUnavailableError

FILTER = "/scheduler/filter"
NAMES = (0, 1_000, 5_000, 10_000)
ROUNDS = 400
MANY_PODS = 100_000


@contextmanager
def go_echo(console: Console) -> Iterator[GoExtender | None]:
    """Run the extender in Go; its filter gives all names back. None where no Go is."""
    try:
        program = ensure_go_extender(cache_folder(os.environ))
    except BinariesUnavailableError as error:
        console.print(f"No echo in Go: {error}")
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        launcher = Launcher(Path(folder))
        try:
            with GoExtender(program, launcher) as found:
                yield found
        finally:
            launcher.end_all()


def names_table(console: Console) -> list[dict[str, Any]]:
    """Filter at several numbers of names: all fit, and none fits."""
    table = Table(
        *("names", "echo p50", "Go echo p50", "fits p50/p95/p99 ms", "x echo"),
        *("x Go echo", "none", "x fits"),
    )
    rows = []
    with go_echo(console) as go:
        for count in NAMES:
            row = filter_row(count, go)
            rows.append(row)
            table.add_row(
                f"{count:,}",
                number(row["echo"]["p50"]),
                number(row["go"]["p50"] if go else None),
                "{p50:.2f} / {p95:.2f} / {p99:.2f}".format(**row["fits"]),
                number(times(row["fits"], row["echo"])),
                number(times(row["fits"], row.get("go"))),
                number(row["none"]["p50"]),
                number(times(row["none"], row["fits"])),
            )
    console.print(table)
    return rows


def filter_row(count: int, go: GoExtender | None) -> dict[str, Any]:
    """Filter all names of a cluster of so many nodes, in turns with the echoes."""
    names = [f"node-{i:05d}" for i in range(count)]
    with server(count, 0) as served:
        line = Line(served.port)
        asked = prepared(FILTER, names, POD_UNITS)
        calls = {
            "echo": (line, prepared(ECHO, names, POD_UNITS)),
            "fits": (line, asked),
            "none": (line, prepared(FILTER, names, UNITS + 1)),
        }
        if go is not None:
            calls["go"] = (Line(go.port), asked)
        timed = in_turns(calls, ROUNDS)
        for used in {used for used, _ in calls.values()}:
            used.close()
    shown = {name: timing.as_ms() for name, timing in timed.items()}
    return {"names": count} | shown


def pods_tables(console: Console) -> dict[str, Any]:
    """Filter 5,000 names with an empty ledger and with 100,000 pods, in turns.

    And with these pods while /metrics is read each second.
    """
    names = [f"node-{i:05d}" for i in range(5_000)]
    request = prepared(FILTER, names, POD_UNITS)
    with server(5_000, 0) as empty, server(5_000, MANY_PODS) as full:
        lines = {"0": Line(empty.port), f"{MANY_PODS}": Line(full.port)}
        timed = in_turns({k: (line, request) for k, line in lines.items()}, ROUNDS)
        for line in lines.values():
            line.close()
        scrapes = scraped(full, request)
    pods: dict[str, Any] = {count: timing.as_ms() for count, timing in timed.items()}
    pods["ratio"] = times(pods[f"{MANY_PODS}"], pods["0"])
    shown = {
        "0 pods": pods["0"],
        f"{MANY_PODS:,} pods": pods[f"{MANY_PODS}"],
        "the same, at a steady pace": scrapes["quiet"],
        "with a scrape each second": scrapes["scraped"],
    }
    table = Table("5,000 names", "p50 / p95 / p99 / max ms")
    for what, took in shown.items():
        table.add_row(
            what, "{p50:.2f} / {p95:.2f} / {p99:.2f} / {max:.2f}".format(**took)
        )
    console.print(table)
    console.print(
        f"Pods cost x {pods['ratio']:.2f}. With scrapes p99 is x "
        f"{scrapes['p99_to_p50']:.2f} of p50 without."
    )
    return {"pods": pods, "scrapes": scrapes}
