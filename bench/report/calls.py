"""One call each: filter, decision, webhook, plugin, exporter, preload library."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.report import plots
from bench.report.page import (
    BenchResult,
    Goal,
    PageSection,
    Picture,
    Table,
    at,
    number,
    times,
)

_PERCENTILES = ("p50", "p99")


def _five_thousand(one: str, other: str) -> Callable[[BenchResult], float | None]:
    """Return what reads how many times the other one takes at 5,000 names."""

    def read(result: BenchResult) -> float | None:
        rows = {row["names"]: row for row in result["filter"]}
        return times(rows[5_000][one], rows[5_000].get(other))

    return read


FILTER_GOALS = (
    Goal(
        "5,000 names that fit, x the echo in Go", "≤ 0.35", _five_thousand("fits", "go")
    ),
    Goal("the same, x the echo", "≤ 1.30", _five_thousand("fits", "echo")),
    Goal("none of them fits, x all fit", "≤ 2.00", _five_thousand("none", "fits")),
    Goal("100,000 pods, x no pods", "≤ 1.10", at("pods", "ratio")),
    Goal(
        "p99 with a scrape each second, x p50 without",
        "≤ 3.00",
        at("scrapes", "p99_to_p50"),
    ),
)


def filter_section(result: BenchResult, pictures: Path) -> PageSection:
    """Return the section on filter with several numbers of names, beside echoes."""
    rows = result["filter"]
    table = Table(
        (
            "names",
            "all fit: p50 / p99",
            "x echo",
            "x Go",
            "none fits: p50 / p99",
            "x all fit",
        ),
        tuple(
            (
                number(row["names"]),
                percentiles(row["fits"]),
                number(times(row["fits"], row["echo"])),
                number(times(row["fits"], row.get("go"))),
                percentiles(row["none"]),
                number(times(row["none"], row["fits"])),
            )
            for row in rows
        ),
    )
    what = {"echo": "echo", "echo in Go": "go", "all fit": "fits", "none fits": "none"}
    curves = {
        name: [(row["names"], row[key]["p50"]) for row in rows]
        for name, key in what.items()
        if key in rows[0]
    }
    across, up = "node names in the request", "milliseconds, p50"
    plots.lines(pictures / "filter.svg", curves, across, up)
    words = (
        "Milliseconds of one `filter` with kube-scheduler's JSON over a kept "
        "connection. The limits, measured alternately, only parse the same body and "
        "return its names: an echo in the same server, and one in Go (net/http). The "
        "effects of pods and scrapes are measured with 5,000 names."
    )
    picture = Picture("filter.svg", "Milliseconds of a filter by the number of names")
    parts: list[str | Table | Picture] = [words, table, picture]
    return PageSection("Filter over HTTP", parts, result)


def decision_section(result: BenchResult, _pictures: Path) -> PageSection:
    """Return the section on one decision in memory."""
    rows = tuple(
        (what, number(took, 1)) for what, took in result["decision_us"].items()
    )
    words = "Without HTTP and JSON, on a node of 8 cards with 30 pods."
    return PageSection("One decision", [words, Table(("decision", "µs"), rows)], result)


WEBHOOK_GOALS = (
    Goal(
        "slowest review, x its echo",
        "≤ 1.50",
        lambda result: max(row["ratio"] for row in result["reviews"]),
    ),
)


def webhook_section(result: BenchResult, pictures: Path) -> PageSection:
    """Return the section on a review over TLS, beside an echo webhook."""
    rows = result["reviews"]
    table = Table(
        ("review", "echo p50", "webhook: p50 / p99", "x echo"),
        tuple(
            (
                row["review"],
                number(row["echo"]["p50"]),
                percentiles(row["webhook"]),
                number(row["ratio"]),
            )
            for row in rows
        ),
    )
    series = {
        "echo": [row["echo"]["p50"] for row in rows],
        "webhook": [row["webhook"]["p50"] for row in rows],
    }
    names = [row["review"] for row in rows]
    plots.bars(pictures / "webhook.svg", names, series, "milliseconds, p50")
    words = (
        "Milliseconds of one review over TLS on a kept connection. The limit, measured "
        "alternately, is an echo that parses the same body and allows every pod."
    )
    picture = Picture("webhook.svg", "Milliseconds of each review beside the echo")
    return PageSection("A review by the webhook", [words, table, picture], result)


def plugin_section(result: BenchResult, _pictures: Path) -> PageSection:
    """Return the section on the device plugin's calls and a pod's time to Running."""
    calls = tuple(
        (name, percentiles(each), number(each["ratio"]))
        for name, each in result["calls"].items()
    )
    words = "kubelet's gRPC calls. The limit is measured alternately: an empty call."
    parts: list[str | Table] = [
        words,
        Table(("call", "p50 / p99 ms", "x empty"), calls),
    ]
    if running := result.get("running"):
        parts.append(
            "From `create` to Running on a real kubelet: at the median "
            f"**{number(running['more_ms'], 1)} ms** more than a pod without a card, "
            f"which takes {number(running['without']['p50'], 0)} ms."
        )
    return PageSection("The device plugin", parts, result)


def exporter_section(result: BenchResult, _pictures: Path) -> PageSection:
    """Return the section on a scrape, beside a bare registry of as many samples."""
    words = (
        f"A scrape of {number(result['samples'])} samples. The limit is measured "
        "alternately: a registry of prometheus_client with as many gauges. The "
        f"exporter takes **{number(result['ratio'])} x** its time "
        f"(p50 {number(result['exporter']['p50'])} ms, "
        f"p99 {number(result['exporter']['p99'])} ms), "
        f"{number(result['memory_mib_above_imports'], 1)} MiB of memory beyond the "
        f"imports, and {number(result['idle_percent_of_a_core'])} percent of a core "
        "when idle."
    )
    return PageSection("The exporter", [words], result)


PRELOAD_GOALS = (
    Goal(
        "cuMemAlloc and its free, µs more with the library",
        "≤ 5.00",
        at("pairs_us", "cuMemAlloc", "more"),
    ),
    Goal(
        "the same of a pool (cuMemAllocAsync)",
        "≤ 5.00",
        at("pairs_us", "cuMemAllocAsync", "more"),
    ),
    Goal(
        "a launch, ns more with the library and a delay of 0",
        "≤ 50.00",
        at("launch_ns", "more"),
    ),
)


def preload_section(result: BenchResult, _pictures: Path) -> PageSection:
    """Return the section on allocations and launches, beside the bare stand-in."""
    words = (
        "An allocation and its free over a stand-in for the driver: medians of "
        f"{result['rounds']} rounds of {number(result['pairs'])} pairs, and of "
        f"{number(result['launches'])} launches, in turns."
    )
    return PageSection("The preload library", [words], result)


CLAIMS_GOALS = (
    Goal("a claim's pod to bound, x a classic pod", "", at("ratio", "bound")),
    Goal("the extender's CPU for it, x a classic pod", "≤ 1.00", at("ratio", "cpu")),
    Goal("the arbiter's part of its time, ms", "", at("arbiter", "more_ms")),
    Goal("the arbiter's part of its CPU, ms", "", at("arbiter", "more_cpu_ms")),
    Goal("a review, x its echo", "≤ 2.00", at("reviews", "reserved", "ratio")),
    Goal("a claim's pod to Running, x a classic pod", "", at("running", "ratio")),
)


def claims_section(result: BenchResult, _pictures: Path) -> PageSection:
    """Return the section on pods with claims, and on the arbiter's reviews."""
    words = (
        "Pods by a ResourceClaim beside classic pods of the same amount, in turns. To "
        "bound: by a real kube-scheduler and API server; each claim exists before its "
        "pod. To Running: on a real kubelet, each claim made from its template, "
        "without the arbiter. A review: over TLS on a kept connection, beside an echo "
        "on the same listener. CPU is the extender's, from bursts of pods."
    )
    if result.get("load", 0) > 1:
        words += (
            " Other work ran on the machine: its load average was "
            f"{number(result['load'], 1)} at the beginning."
        )
    bound = tuple(
        (way, percentiles(row, 1), number(row["cpu_ms"]))
        for way, row in result["bound"].items()
    )
    table = Table(("from create to bound", "p50 / p99 ms", "CPU ms"), bound)
    return PageSection("ResourceClaims", [words, table], result)


def percentiles(timing: Mapping[str, Any], digits: int = 2) -> str:
    """Format median and 99th percentile."""
    return " / ".join(number(float(timing[part]), digits) for part in _PERCENTILES)
