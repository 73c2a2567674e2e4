"""What the preload library costs: pairs of allocation and free, launches; in turns."""

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
    build_launcher,
    build_library,
    compile_program,
    places_in,
)
from tests.isolation.container import Container

ROUNDS = 15
PAIRS = 20_000
"""Of each round; one process makes them all, as a program does."""
LAUNCHES = 1_000_000
_WAYS = {"cuMemAlloc": "pairs", "cuMemAllocAsync": "async-pairs"}
_PACES = {"bare": None, "no file": None, "delay 0": "1 0 5"}


def preload_table(console: Console) -> dict[str, Any]:
    """Measure a pair over the bare stand-in and with the library, and show it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        container = built(Path(folder))
        took: dict[str, dict[str, list[float]]] = {
            way: {"bare": [], "library": []} for way in _WAYS
        }
        launch: dict[str, list[float]] = {name: [] for name in _PACES}
        for _ in range(ROUNDS):
            for name, values in launch.items():
                values.append(launch_ns(container, name))
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
    launch_took = {name: median(values) for name, values in launch.items()}
    launch_took["more"] = launch_took["delay 0"] - launch_took["bare"]
    table = Table("one launch", "ns")
    for name, took_ns in launch_took.items():
        table.add_row(name, f"{took_ns:.1f}")
    console.print(table)
    measured = {"pairs_us": pairs_us, "launch_ns": launch_took}
    return {**measured, "rounds": ROUNDS, "pairs": PAIRS, "launches": LAUNCHES}


def built(folder: Path) -> Container:
    """Compile the library as it ships, but for its two paths, and what calls it."""
    build_library(folder / LIBRARY, *places_in(folder))
    build_driver(folder)
    build_launcher(folder)
    compile_program(folder / "probe", "probe.c")
    return Container(folder)


def pair_us(container: Container, command: str, variables: dict[str, str]) -> float:
    """Return what one pair takes, in microseconds."""
    # Anew, because the stand-in remembers each process that was there.
    container.begin()
    words = ["probe", "dlsym", command, str(PAIRS)]
    return _second_word(container, words, variables) / 1000


def launch_ns(container: Container, name: str) -> float:
    """Return what one launch takes, in nanoseconds: of this name in ``_PACES``."""
    container.begin()
    says, variables = _PACES[name], {}
    if name != "bare":
        variables["LD_PRELOAD"] = str(container.folder / LIBRARY)
    words = ["launcher", "dlsym", *(("say", says) if says else ())]
    words += ["door", "cuLaunchKernel", "speed", str(LAUNCHES)]
    return _second_word(container, words, variables)


def _second_word(
    container: Container, words: list[str], variables: dict[str, str]
) -> float:
    folder = container.folder
    done = subprocess.run(
        [folder / words[0], *words[1:]],
        cwd=folder,
        env={"LD_LIBRARY_PATH": str(folder), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[1])
