"""``make bench``: filter, a decision, webhook, plugin, exporter, preload, claims.

Every figure that is claimed is a ratio of two things measured in turns in this one run.
Milliseconds are shown to be read, not to be compared with those of another machine.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.bindpost import bind
from bench.burst import measure_bursts
from bench.claims import claims_table
from bench.curves import curves
from bench.exporter import exporter_table
from bench.facts import RESULTS, machine_facts
from bench.filtering import ROUNDS, names_table, pods_tables, time_decisions
from bench.packing.command import packing
from bench.plugin import plugin_table
from bench.preload import preload_table
from bench.running import running_table
from bench.scale import scale
from bench.webhook import ROUNDS as REVIEWS
from bench.webhook import webhook_table


@dataclass(frozen=True, slots=True)
class Bench:
    """A part of ``make bench``: what is said first, the file, what measures."""

    title: str
    file: str
    measure: Callable[[Console], dict[str, Any]]


def measure_filter(console: Console) -> dict[str, Any]:
    """Measure filter over HTTP, and a decision without it."""
    results = {"filter": names_table(console)} | pods_tables(console)
    results["decision_us"] = time_decisions()
    table = Table("decision in memory, 8 cards and 30 pods", "µs")
    for name, took_us in results["decision_us"].items():
        table.add_row(name, f"{took_us:.1f}")
    console.print(table)
    return results


def measure_plugin(console: Console) -> dict[str, Any]:
    """Measure the device plugin's calls, and pods that run on a real kubelet."""
    calls = plugin_table(console)
    console.print("Pods on a real kubelet, in turns (a cluster comes up first) ...")
    return {"calls": calls, "running": running_table(console)}


BENCHES = {
    "filter": Bench(
        f"Filter over HTTP, {ROUNDS} calls each, in turns ...",
        "filter.json",
        measure_filter,
    ),
    "webhook": Bench(
        f"A review over TLS, {REVIEWS} calls each, in turns ...",
        "webhook.json",
        lambda console: {"reviews": webhook_table(console)},
    ),
    "plugin": Bench(
        "The device plugin's calls, 320 pods one after another ...",
        "deviceplugin.json",
        measure_plugin,
    ),
    "exporter": Bench(
        "The exporter, 8 cards and 100 containers ...", "exporter.json", exporter_table
    ),
    "preload": Bench(
        "An allocation and its free, with the preload library, in turns ...",
        "preload.json",
        preload_table,
    ),
    "claims": Bench(
        "ResourceClaims beside classic pods, in turns ...", "claims.json", claims_table
    ),
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHES)))
def measure(names: tuple[str, ...]) -> None:
    """Measure these, or all of them: show the figures and write them down."""
    console = Console(width=100)
    for bench in (BENCHES[name] for name in names or BENCHES):
        console.print(bench.title)
        results = machine_facts() | bench.measure(console)
        path = RESULTS / bench.file
        path.write_text(json.dumps(results, indent=2) + "\n")
        console.print(f"Written to {path.relative_to(Path.cwd())}")


ALONE: dict[str, click.Command] = {
    "packing": packing,
    "curves": curves,
    "burst": measure_bursts,
    "scale": scale,
    "bind": bind,
}
"""What is asked for by its name: most take minutes, or a machine with memory."""

if __name__ == "__main__":
    if command := ALONE.get("".join(sys.argv[1:2])):
        command(sys.argv[2:], prog_name=f"python -m bench {sys.argv[1]}")
    measure(prog_name="python -m bench")
