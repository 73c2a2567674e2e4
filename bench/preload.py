"""What the preload library costs: pairs of an allocation and its free, in turns."""

import subprocess
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.isolation.build import (
    LIBRARY,
    build_driver,
    build_library,
    compile_program,
    places_in,
)
from tests.isolation.container import Container

ROUNDS = 15
PAIRS = 20_000
"""Of each round; one process makes them all, as a program does."""
_WAYS = {"cuMemAlloc": "pairs", "cuMemAllocAsync": "async-pairs"}


def preload_table(console: Console) -> dict[str, Any]:
    """Measure a pair over the bare stand-in and with the library, and show it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        container = built(Path(name))
        took: dict[str, dict[str, list[float]]] = {
            way: {"bare": [], "library": []} for way in _WAYS
        }
        for _ in range(ROUNDS):
            for way, command in _WAYS.items():
                took[way]["bare"].append(pair_us(container, command, {}))
                preload = {"LD_PRELOAD": str(container.folder / LIBRARY)}
                took[way]["library"].append(pair_us(container, command, preload))
    table = Table("one pair", "bare µs", "with the library µs", "more µs")
    pairs_us: dict[str, Any] = {}
    for way, sides in took.items():
        row = {side: median(values) for side, values in sides.items()}
        row["more"] = row["library"] - row["bare"]
        table.add_row(way, *(f"{value:.2f}" for value in row.values()))
        pairs_us[way] = row
    console.print(table)
    return {"pairs_us": pairs_us, "rounds": ROUNDS, "pairs": PAIRS}


def built(folder: Path) -> Container:
    """Compile the library as it ships, but for its two paths, and what calls it."""
    build_library(folder / LIBRARY, *places_in(folder))
    build_driver(folder)
    compile_program(folder / "probe", "probe.c")
    return Container(folder)


def pair_us(container: Container, command: str, variables: dict[str, str]) -> float:
    """Return what one pair takes, in microseconds."""
    folder = container.folder
    # Anew, because the stand-in remembers each process that was there.
    container.begin()
    done = subprocess.run(
        [folder / "probe", "dlsym", command, str(PAIRS)],
        cwd=folder,
        env={"LD_LIBRARY_PATH": str(folder), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[1]) / 1000
