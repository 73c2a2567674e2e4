"""``make bench``: filter, a decision, webhook, plugin, exporter, preload, claims.

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

from bench.bindpost import bind
from bench.burst import burst
from bench.claims import claims_table
from bench.curves import curves
from bench.decision import decisions
from bench.exporter import exporter_table
from bench.filtering import ROUNDS, names_table, pods_tables
from bench.packing.command import packing
from bench.plugin import plugin_table
from bench.preload import preload_table
from bench.running import running_table
from bench.scale import scale
from bench.webhook import ROUNDS as REVIEWS
from bench.webhook import webhook_table

RESULTS = Path(__file__).with_name("results")


def facts() -> dict[str, Any]:
    """Say when and on what it was measured."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }


def bench_filter(console: Console) -> None:
    console.print(f"Filter over HTTP, {ROUNDS} calls each, in turns ...")
    found = facts() | {"filter": names_table(console)} | pods_tables(console)
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


def bench_preload(console: Console) -> None:
    console.print("An allocation and its free, with the preload library, in turns ...")
    write(console, "preload.json", facts() | preload_table(console))


def bench_claims(console: Console) -> None:
    console.print("ResourceClaims beside classic pods, in turns ...")
    write(console, "claims.json", facts() | claims_table(console))


BENCHES: dict[str, Callable[[Console], None]] = {
    "filter": bench_filter,
    "webhook": bench_webhook,
    "plugin": bench_plugin,
    "exporter": bench_exporter,
    "preload": bench_preload,
    "claims": bench_claims,
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


ALONE: dict[str, click.Command] = {
    "packing": packing,
    "curves": curves,
    "burst": burst,
    "scale": scale,
    "bind": bind,
}
"""What is asked for by its name: most take minutes, or a machine with memory."""

if __name__ == "__main__":
    if command := ALONE.get("".join(sys.argv[1:2])):
        command(sys.argv[2:], prog_name=f"python -m bench {sys.argv[1]}")
    some(prog_name="python -m bench")
