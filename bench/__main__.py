"""``make bench``: filter, one decision, the webhook, the device plugin, the exporter.

Every figure that is claimed is a ratio of two things measured in turns in this one run.
Milliseconds are shown to be read, not to be compared with those of another machine.
"""

import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.burst import burst
from bench.client import Line, Timing, in_turns, prepared
from bench.decision import decisions
from bench.exporter import exporter_table
from bench.packing.command import packing
from bench.plugin import plugin_table
from bench.running import running_table
from bench.scale import scale
from bench.server import ECHO, POD_UNITS, UNITS
from bench.serving import server
from bench.webhook import ROUNDS as REVIEWS
from bench.webhook import webhook_table

RESULTS = Path(__file__).with_name("results")
FILTER = "/scheduler/filter"
NAMES = (0, 1_000, 5_000, 10_000)
ROUNDS = 400
MANY_PODS = 100_000


def facts() -> dict[str, Any]:
    """Say when and on what it was measured."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }


def bench_filter(console: Console) -> None:
    console.print(f"Filter over HTTP, {ROUNDS} calls each, in turns ...")
    found = facts() | {"filter": names_table(console), "pods": pods_table(console)}
    found["decision_us"] = decisions()
    table = Table("decision in memory, 8 cards and 30 pods", "µs")
    for name, took in found["decision_us"].items():
        table.add_row(name, f"{took:.1f}")
    console.print(table)
    write(console, "filter.json", found)


def bench_webhook(console: Console) -> None:
    console.print(f"A review over TLS, {REVIEWS} calls each, in turns ...")
    write(console, "webhook.json", facts() | {"reviews": webhook_table(console)})


def bench_plugin(console: Console) -> None:
    console.print("The device plugin's calls, 320 pods one after another ...")
    found = facts() | {"calls": plugin_table(console)}
    console.print("Pods on a real kubelet, in turns (a cluster comes up first) ...")
    found["running"] = running_table(console)
    write(console, "deviceplugin.json", found)


def bench_exporter(console: Console) -> None:
    console.print("The exporter, 8 cards and 100 containers ...")
    write(console, "exporter.json", facts() | exporter_table(console))


BENCHES: dict[str, Callable[[Console], None]] = {
    "filter": bench_filter,
    "webhook": bench_webhook,
    "plugin": bench_plugin,
    "exporter": bench_exporter,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHES)))
def some(names: tuple[str, ...]) -> None:
    """Measure these, or all of them: show the figures and write them down."""
    console = Console(width=100)
    for name in names or BENCHES:
        BENCHES[name](console)


def write(console: Console, name: str, found: dict[str, Any]) -> None:
    """Keep what was measured."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / name
    path.write_text(json.dumps(found, indent=2) + "\n")
    console.print(f"Written to {path.relative_to(Path.cwd())}")


def names_table(console: Console) -> list[dict[str, Any]]:
    """Filter at several numbers of names: all fit, and none fits."""
    table = Table(
        "names", "echo p50", "fits p50/p95/p99 ms", "x echo", "none", "x echo"
    )
    rows = []
    for count in NAMES:
        row = filter_row(count)
        rows.append(row)
        table.add_row(
            f"{count:,}",
            f"{row['echo']['p50']:.2f}",
            "{p50:.2f} / {p95:.2f} / {p99:.2f}".format(**row["fits"]),
            f"{row['fits_ratio']:.2f}",
            f"{row['none']['p50']:.2f}",
            f"{row['none_ratio']:.2f}",
        )
    console.print(table)
    return rows


def filter_row(count: int) -> dict[str, Any]:
    """Filter all names of a cluster of so many nodes, each in turns with the echo."""
    names = [f"node-{i:05d}" for i in range(count)]
    row: dict[str, Any] = {"names": count}
    with server(count, 0) as port:
        line = Line(port)
        echo = (line, prepared(ECHO, names, POD_UNITS))
        for what, units in (("none", UNITS + 1), ("fits", POD_UNITS)):
            asking = (line, prepared(FILTER, names, units))
            timed = in_turns({"echo": echo, what: asking}, ROUNDS)
            row |= {name: timing.as_ms() for name, timing in timed.items()}
            row[f"{what}_ratio"] = ratio(timed[what], timed["echo"])
        line.close()
    return row


def pods_table(console: Console) -> dict[str, Any]:
    """Filter 5,000 names with an empty ledger and with 100,000 pods, in turns."""
    names = [f"node-{i:05d}" for i in range(5_000)]
    request = prepared(FILTER, names, POD_UNITS)
    with server(5_000, 0) as empty, server(5_000, MANY_PODS) as full:
        lines = {"0": Line(empty), f"{MANY_PODS}": Line(full)}
        timed = in_turns({k: (line, request) for k, line in lines.items()}, ROUNDS)
        for line in lines.values():
            line.close()
    found: dict[str, Any] = {pods: timing.as_ms() for pods, timing in timed.items()}
    found["ratio"] = ratio(timed[f"{MANY_PODS}"], timed["0"])
    table = Table(
        "pods in the ledger, 5,000 names", "p50 / p95 / p99 / max ms", "ratio"
    )
    for pods, timing in timed.items():
        shown = "{p50:.2f} / {p95:.2f} / {p99:.2f} / {max:.2f}".format(**timing.as_ms())
        mark = "" if pods == "0" else f"{found['ratio']:.2f}"
        table.add_row(f"{int(pods):,}", shown, mark)
    console.print(table)
    return found


def ratio(one: Timing, other: Timing) -> float:
    """Compare two medians."""
    return round(one.percentile(0.5) / other.percentile(0.5), 3)


ALONE: dict[str, click.Command] = {"packing": packing, "burst": burst, "scale": scale}
"""What is asked for by its name: each takes minutes, or a machine with memory."""

if __name__ == "__main__":
    if command := ALONE.get("".join(sys.argv[1:2])):
        command(sys.argv[2:], prog_name=f"python -m bench {sys.argv[1]}")
    some(prog_name="python -m bench")
