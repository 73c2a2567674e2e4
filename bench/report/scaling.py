"""A burst of pods, and a cluster of many pods."""

from pathlib import Path
from typing import Any

from bench.report import plots
from bench.report.page import BenchResult, Goal, PageSection, Picture, Table, at, number

READY_S = 15
RSS_MIB = 250
AGE_MS = 1000
FIRST_S = 2
OF_GO = 0.85
OF_BARE = 0.60
_ABOUT_ONE = 1.1
"""Medians of one extender differ by this much from run to run."""

BURST_GOALS = (
    Goal("speed, x of the extender in Go", f"≥ {OF_GO:.2f}", at("ratio", "go")),
    Goal("speed, x of without extender", f"≥ {OF_BARE:.2f}", at("ratio", "bare")),
    Goal(
        "its CPU per pod, milliseconds",
        "≤ 2.00",
        at("ways", "ours", "cpu_ms_per_pod", "extender"),
    ),
    Goal("bind conflicts, percent", "0.00", at("conflicts_percent")),
    Goal("its writes per pod", "1.00", at("writes_per_pod")),
)

SCALE_GOALS = (
    Goal("ready, seconds after the start", f"≤ {READY_S}", at("start", "ready_s")),
    Goal("resident memory then, MiB", f"≤ {RSS_MIB}", at("start", "rss_mib")),
    Goal(
        "with gunicorn's master, shared memory counted once, MiB",
        "",
        at("start", "whole_mib"),
    ),
    Goal("resident memory after the load, MiB", "", at("rss_mib_after_load")),
    Goal(
        "first right answer in a new cluster of 20 nodes, seconds after the start",
        f"≤ {FIRST_S}",
        at("small", "first_answer_s"),
    ),
    Goal("filter, p50 ms", "", at("filter", "large", "p50")),
    Goal(
        "filter, x of the time without pods",
        f"≤ {_ABOUT_ONE:.2f}",
        at("filter", "ratio"),
    ),
    Goal(
        "filter while /metrics is read each second, maximum ms",
        "≤ 50",
        at("scrapes", "scraped", "max"),
    ),
    Goal("its p99, x of p50 without reads", "≤ 3.00", at("scrapes", "p99_to_p50")),
    Goal("/metrics, seconds of CPU", "≤ 1.00", at("scrapes", "cpu_s")),
    Goal("pod events per second", "500", at("watch", "events_per_s")),
    Goal(
        "delay of the ledger under these events, p99 ms",
        f"< {AGE_MS:,}",
        at("watch", "under_load", "p99"),
    ),
    Goal("maximum, ms", f"< {AGE_MS:,}", at("watch", "under_load", "max")),
    Goal("/metrics, MiB", "", at("watch", "scrape_mib")),
    *(
        Goal(
            f"seconds without placement, pair {how}",
            "",
            at("takeover", how, "without_placement_s"),
        )
        for how in ("killed", "ended in order")
    ),
)


def burst_section(result: BenchResult, pictures: Path) -> PageSection:
    """Return the section on a burst with the extender, beside one without."""
    ways: dict[str, dict[str, Any]] = result["ways"]
    plots.bars(
        pictures / "burst.svg",
        list(ways),
        {"pods a second": [way["pods_per_s"] for way in ways.values()]},
        "pods a second",
    )
    words = (
        f"{number(result['pods'])} pods wait for {number(result['nodes'])} nodes of "
        f"{result['cards_a_node']} cards; then kube-scheduler starts (its client at "
        f"{number(result['qps'], 0)} requests per second, all nodes scored). The time "
        "runs from the first Binding to the last in the audit log of a real "
        "kube-apiserver. The variants alternate. With any extender kube-scheduler does "
        "not decide similar pods in one batch."
    )
    verbs = ", ".join(f"{verb} {took:.2f}" for verb, took in result["verbs_ms"].items())
    calls = f"Mean milliseconds of a call in the extender: {verbs}."
    picture = Picture("burst.svg", "Pods placed per second, by variant")
    parts: list[str | Table | Picture] = [words]
    if _is_slow(result):
        parts.append(_why_slower(result))
    parts += [_ways(result), picture, calls]
    return PageSection("A burst of pods", parts, result)


def _is_slow(result: BenchResult) -> bool:
    ratio = result["ratio"]
    return bool(ratio["bare"] < OF_BARE or ratio.get("go", OF_GO) < OF_GO)


def _why_slower(result: BenchResult) -> str:
    """Say what any extender costs here; one that decides nothing shows it."""
    ways = result["ways"]
    name = "go" if "go" in ways else "echo"
    best = ways[name]["pods_per_s"] / ways["bare"]["pods_per_s"]
    own, least, alone = (
        number(ways[each]["cpu_ms_per_pod"]["kube-scheduler"])
        for each in ("ours", name, "bare")
    )
    return (
        f"The speed misses its goal. `{name}`, which decides nothing, is at {best:.2f} "
        "of without extender: kube-scheduler sends every pod with all names over HTTP "
        f"and waits. It needs {alone} ms of CPU per pod without an extender, {least} "
        f"with `{name}` and {own} with gpushare's. See decisions 0059 and 0060."
    )


def _ways(result: BenchResult) -> Table:
    ratio = result["ratio"]
    rows = tuple(
        (
            f"{name}: {way['means']}",
            number(way["pods_per_s"], 1),
            number(ratio.get(name)),
        )
        for name, way in result["ways"].items()
    )
    return Table(("variant", "pods per second", "x of this variant"), rows)


def scale_section(result: BenchResult, _pictures: Path) -> PageSection:
    """Return the section on a large cluster; a dash is a missing measurement."""
    words = (
        f"{number(result['nodes'])} nodes of 8 cards, {number(result['pods'])} running "
        "pods in real etcd and kube-apiserver. The "
        "delay of the ledger is the time from the deletion of a pod until filter "
        "allows another pod onto its card. A pair is kube-scheduler and its extender: "
        "one is killed or ends, another stands by, and pods continue to arrive "
        "(lease 15 s, the default). A filter has "
        f"{number(at('filter', 'names')(result))} names."
    )
    return PageSection("A large cluster", [words, *_misses(result)], result)


def _misses(result: BenchResult) -> list[str]:
    """Say of each figure that misses its goal why, or that it is not known."""
    start, asked = result.get("start", {}), result.get("filter", {})
    told = []
    if start.get("ready_s", 0) > READY_S:
        runs = ", ".join(number(each) for each in start.get("each_ready_s", ()))
        told.append(
            f"The start misses its goal; the runs took {runs} s. etcd and "
            "kube-apiserver, which send all nodes and pods meanwhile, share the cores "
            "with the extender. How much of the time is theirs was not measured."
        )
    if asked.get("ratio", 0) > _ABOUT_ONE:
        told.append(
            "Filter misses its goal here. Without etcd and kube-apiserver on the same "
            'machine it is met more closely ("Filter over HTTP"). The reason for the '
            "rest is not known."
        )
    return told
