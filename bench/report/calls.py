"""One call each: filter, decision, webhook, device plugin, exporter."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import plots
from bench.report.page import Found, Picture, Section, Table, number

_THREE = ("p50", "p95", "p99")


def filter_section(found: Found, pictures: Path) -> Section:
    """Filter at several numbers of node names, beside an echo of the same body."""
    rows = found["filter"]
    table = Table(
        (
            "names",
            "echo p50",
            "all fit: p50 / p95 / p99",
            "x echo",
            "none fits: p50 / p95 / p99",
            "x echo",
        ),
        tuple(
            (
                number(row["names"]),
                number(row["echo"]["p50"]),
                three(row["fits"]),
                number(row["fits_ratio"]),
                three(row["none"]),
                number(row["none_ratio"]),
            )
            for row in rows
        ),
    )
    what = {"echo": "echo", "all fit": "fits", "none fits": "none"}
    curves = {
        name: [(row["names"], row[key]["p50"]) for row in rows]
        for name, key in what.items()
    }
    across, up = "node names in the request", "milliseconds, p50"
    plots.lines(pictures / "filter.svg", curves, across, up)
    words = (
        "Milliseconds of one `filter` by kube-scheduler's JSON over a kept connection, "
        "in turns with its limit: an echo in the same server that parses the same body "
        "and answers its names."
    )
    picture = Picture("filter.svg", "Milliseconds of a filter over the number of names")
    parts = [words, table, picture, *_pods(found)]
    return Section("Filter over HTTP", parts, found)


def _pods(found: Found) -> list[str | Table]:
    if "pods" not in found:
        return []
    timed = {key: each for key, each in found["pods"].items() if key != "ratio"}
    rows = tuple((number(int(pods)), three(each)) for pods, each in timed.items())
    words = (
        "The same at 5,000 names over the number of pods in the books, in turns: "
        f"**{number(found['pods']['ratio'])} x** the time with none."
    )
    return [words, Table(("pods", "p50 / p95 / p99 ms"), rows)]


def decision_section(found: Found, _pictures: Path) -> Section:
    """One decision in memory."""
    rows = tuple((what, number(took, 1)) for what, took in found["decision_us"].items())
    words = "Without HTTP and JSON, on a node of 8 cards with 30 pods."
    return Section("One decision", [words, Table(("decision", "µs"), rows)], found)


def webhook_section(found: Found, pictures: Path) -> Section:
    """A review over TLS, beside an echo webhook."""
    rows = found["reviews"]
    table = Table(
        ("review", "bytes", "echo p50", "webhook: p50 / p95 / p99", "x echo"),
        tuple(
            (
                row["review"],
                number(row["bytes"]),
                number(row["echo"]["p50"]),
                three(row["webhook"]),
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
        "Milliseconds of one review over TLS on a kept connection, in turns with its "
        "limit: an echo webhook that parses the same body and lets every pod through."
    )
    picture = Picture("webhook.svg", "Milliseconds of each review beside the echo")
    return Section("A review by the webhook", [words, table, picture], found)


def plugin_section(found: Found, _pictures: Path) -> Section:
    """The device plugin's calls, and a pod's way to Running."""
    calls = tuple(
        (name, three(each), number(each["ratio"]))
        for name, each in found["calls"].items()
    )
    words = "kubelet's gRPC calls, in turns with their limit: an empty one."
    parts: list[str | Table] = [
        words,
        Table(("call", "p50 / p95 / p99 ms", "x empty"), calls),
    ]
    if running := found.get("running"):
        rows = tuple(
            (what, three(each, 0))
            for what, each in running.items()
            if what != "more_ms"
        )
        words = (
            "From `create` to Running on a real kubelet, in turns with a pod without "
            f"a card: **{number(running['more_ms'], 1)} ms** more at the median."
        )
        parts += [words, Table(("pod", "p50 / p95 / p99 ms"), rows)]
    return Section("The device plugin", parts, found)


def exporter_section(found: Found, _pictures: Path) -> Section:
    """A scrape of the exporter, beside a bare registry of as many samples."""
    names = ("bare registry", "exporter")
    rows = tuple((name, three(found[name])) for name in names)
    words = (
        f"A scrape of {number(found['samples'])} samples, in turns with its limit: "
        "prometheus_client's registry of as many gauges: "
        f"**{number(found['ratio'])} x** its time. "
        f"{number(found['memory_mib_above_imports'], 1)} MiB above what the imports "
        f"take, {number(found['idle_percent_of_a_core'])} percent of a core when idle."
    )
    table = Table(("scrape", "p50 / p95 / p99 ms"), rows)
    return Section("The exporter", [words, table], found)


def three(timing: Mapping[str, Any], digits: int = 2) -> str:
    """Write the three percentiles."""
    return " / ".join(number(float(timing[part]), digits) for part in _THREE)
