"""What every measurement writes: on what it ran, what processes used, medians."""

import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")


def machine_facts() -> dict[str, Any]:
    """Say when and on what it was measured; memory in GiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{memory / 2**30:.0f} GiB",
        "python": platform.python_version(),
    }


def median(values: Sequence[float], digits: int = 2) -> float:
    """Return the median, rounded."""
    return round(statistics.median(values), digits)


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used: fields 14 and 15 of its stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int, key: str = "VmRSS", file: str = "status") -> float:
    """Return a figure of a process's memory; without a key what is resident."""
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{key}:"))
    return round(int(line.split()[1]) / 1024, 1)
