"""Many pods at once, many pods at all."""

from pathlib import Path
from typing import Any

from bench.report import plots
from bench.report.page import Found, Picture, Section, Table, number

READY_S = 20
RSS_MIB = 300
AGE_MS = 1000


def burst_section(found: Found, pictures: Path) -> Section:
    """A burst with the extender, beside the same burst without."""
    ways: dict[str, dict[str, Any]] = found["ways"]
    plots.bars(
        pictures / "burst.svg",
        list(ways),
        {"pods a second": [way["pods_per_s"] for way in ways.values()]},
        "pods a second",
    )
    words = (
        f"{number(found['pods'])} pods wait for {number(found['nodes'])} nodes of "
        f"{found['cards_a_node']} cards; then kube-scheduler starts. Counted from the "
        "first Binding to the last in the audit log of real etcd and kube-apiserver, "
        "the ways in turns, with the same configuration of kube-scheduler: its client "
        f"at {number(found['qps'], 0)} requests a second, all nodes scored. The limit "
        "is kube-scheduler without an extender. With any extender it no longer decides "
        "on like pods in one batch, so it stands there without batches, too; `echo` is "
        "what an extender in Python costs that only says all names again."
    )
    claims = Table(
        ("of the extender", "measured", "allowed"),
        (
            ("speed, x of without", number(found["ratio"]["bare"]), "≥ 0.90"),
            ("bind conflicts, percent", number(found["conflicts_percent"]), "< 0.50"),
            ("its writes a pod", number(found["writes_per_pod"]), "1.00"),
        ),
    )
    verbs = ", ".join(f"{verb} {took:.2f}" for verb, took in found["verbs_ms"].items())
    calls = f"Milliseconds of a call in the extender, mean: {verbs}."
    picture = Picture("burst.svg", "Pods placed a second, way by way")
    parts = [words, claims, _ways(found), picture, calls, _processes(ways)]
    return Section("A burst of pods", parts, found)


def _ways(found: Found) -> Table:
    ratio = found["ratio"]
    rows = tuple(
        (
            f"{name}: {way['means']}",
            number(way["pods_per_s"], 1),
            ", ".join(f"{each:.0f}" for each in way["rounds"]),
            number(ratio.get(name)),
            number(way["all_writes_per_pod"]),
        )
        for name, way in found["ways"].items()
    )
    heads = ("way", "pods a second", "rounds", "ours is x of it", "all writes a pod")
    return Table(heads, rows)


def _processes(ways: dict[str, dict[str, Any]]) -> Table:
    used = {name: way["cpu_ms_per_pod"] for name, way in ways.items()}
    parts = dict.fromkeys(part for each in used.values() for part in each)
    rows = tuple(
        (part, *(number(each.get(part)) for each in used.values())) for part in parts
    )
    return Table(("CPU, milliseconds a pod", *used), rows)


def scale_section(found: Found, _pictures: Path) -> Section:
    """A cluster of many nodes and pods; what was not measured has a dash."""
    words = (
        f"{number(found['nodes'])} nodes of 8 cards, {number(found['pods'])} running "
        "pods in real etcd and kube-apiserver: one of each was made through the API "
        "server, and copied into etcd under other names; so are the pods that come, "
        "are bound, run and go. The rest is as operators run it. The books are as old "
        "as the time from the deletion of a pod, sent to the "
        "API server, until filter lets another onto its card. A pair is kube-scheduler "
        "and its extender, of which one dies or ends while another stands by and pods "
        "go on arriving; kube-scheduler's lease is 15 s, as by default."
    )
    table = Table(("what", "measured", "allowed"), tuple(_rows(found)))
    return Section("A large cluster", [words, table], found)


def _rows(found: Found) -> list[tuple[str, str, str]]:
    start, asked = found.get("start", {}), found.get("filter", {})
    watch, gaps = found.get("watch", {}), found.get("takeover", {})
    names = number(asked.get("names"))
    rows = [
        ("ready, seconds after its start", start.get("ready_s"), f"≤ {READY_S}"),
        ("resident memory then, MiB", start.get("rss_mib"), f"≤ {RSS_MIB}"),
        ("the most until then, MiB", start.get("peak_mib"), ""),
        ("with gunicorn's master, shared once, MiB", start.get("whole_mib"), ""),
        ("resident memory after the load, MiB", found.get("rss_mib_after_load"), ""),
        (f"filter of {names} names, p50 ms", _p50(asked.get("large")), ""),
        ("the same in a cluster without pods", _p50(asked.get("small")), ""),
        ("an echo of the same names", _p50(asked.get("echo")), ""),
        ("filter, x of without pods", asked.get("ratio"), "1.00"),
        ("pod events a second", watch.get("events_per_s"), "500"),
        ("age of the books under them, p50 ms", _p50(watch.get("under_load")), ""),
        ("p99 ms", _of(watch.get("under_load"), "p99"), f"< {AGE_MS:,}"),
        ("the most, ms", _of(watch.get("under_load"), "max"), f"< {AGE_MS:,}"),
        ("without events, p50 ms", _p50(watch.get("without_load")), ""),
        ("while /metrics is read, most ms", _of(watch.get("while_scraped"), "max"), ""),
        ("/metrics, seconds to read", watch.get("scrape_s"), ""),
        ("/metrics, MiB", watch.get("scrape_mib"), ""),
    ]
    rows += [
        (f"seconds without placement, pair {how}", gap["without_placement_s"], "")
        for how, gap in gaps.items()
    ]
    return [(what, number(value), allowed) for what, value, allowed in rows]


def _p50(timed: dict[str, float] | None) -> float | None:
    return _of(timed, "p50")


def _of(timed: dict[str, float] | None, part: str) -> float | None:
    return None if timed is None else timed[part]
