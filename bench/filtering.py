"""Filter over HTTP, beside an echo in the same server and an echo in Go, in turns.

And the cost of one decision in memory, without HTTP.
"""

import os
import tempfile
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.client import (
    Line,
    filter_args,
    format_ms,
    post_in_turns,
    prepare_post,
)
from bench.report.page import number, times
from bench.scrapes import measure_scrapes
from bench.server import CARDS, ECHO, POD_UNITS, UNITS, node_name
from bench.serving import serve_extender
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    NodeName,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.placement import find_refusal, place
from gpushare.domain.policies import Policy, PolicyChoice
from tests.testbed.binaries import cache_folder
from tests.testbed.goextender import GoExtender, ensure_go_extender
from tests.testbed.process import Launcher
from tests.testbed.toolchain import BinariesUnavailableError

FILTER = "/scheduler/filter"
NAMES = (0, 1_000, 5_000, 10_000)
ROUNDS = 400
MANY_PODS = 100_000


@contextmanager
def go_echo(console: Console) -> Iterator[GoExtender | None]:
    """Run the extender in Go; its filter gives all names back. None where no Go is."""
    try:
        program = ensure_go_extender(cache_folder(os.environ))
    except BinariesUnavailableError as error:
        console.print(f"No echo in Go: {error}")
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        launcher = Launcher(Path(folder))
        try:
            with GoExtender(program, launcher) as extender:
                yield extender
        finally:
            launcher.end_all()


def names_table(console: Console) -> list[dict[str, Any]]:
    """Filter at several numbers of names: all fit, and none fits."""
    table = Table(
        *("names", "echo p50", "Go echo p50", "fits p50/p95/p99 ms", "x echo"),
        *("x Go echo", "none", "x fits"),
    )
    rows = []
    with go_echo(console) as go:
        for count in NAMES:
            row = filter_row(count, go)
            rows.append(row)
            table.add_row(
                f"{count:,}",
                number(row["echo"]["p50"]),
                number(row["go"]["p50"] if go else None),
                format_ms(row["fits"]),
                number(times(row["fits"], row["echo"])),
                number(times(row["fits"], row.get("go"))),
                number(row["none"]["p50"]),
                number(times(row["none"], row["fits"])),
            )
    console.print(table)
    return rows


def filter_row(count: int, go: GoExtender | None) -> dict[str, Any]:
    """Filter all names of a cluster of so many nodes, in turns with the echoes."""
    names = [node_name(number) for number in range(count)]
    asking = filter_args(names, POD_UNITS)
    with serve_extender(count) as served:
        line = Line(served.port)
        calls = {
            "echo": (line, prepare_post(ECHO, asking)),
            "fits": (line, prepare_post(FILTER, asking)),
            "none": (line, prepare_post(FILTER, filter_args(names, UNITS + 1))),
        }
        if go is not None:
            calls["go"] = (Line(go.port), prepare_post(FILTER, asking))
        timings = post_in_turns(calls, ROUNDS)
        for used in {used for used, _ in calls.values()}:
            used.close()
    return {"names": count} | {name: took.as_ms() for name, took in timings.items()}


def pods_tables(console: Console) -> dict[str, Any]:
    """Filter 5,000 names with an empty ledger and with 100,000 pods, in turns.

    And with these pods while /metrics is read each second.
    """
    names = [node_name(number) for number in range(5_000)]
    request = prepare_post(FILTER, filter_args(names, POD_UNITS))
    with serve_extender(5_000) as empty, serve_extender(5_000, MANY_PODS) as full:
        lines = {"0": Line(empty.port), f"{MANY_PODS}": Line(full.port)}
        calls = {pods: (line, request) for pods, line in lines.items()}
        timings = post_in_turns(calls, ROUNDS)
        for line in lines.values():
            line.close()
        scrapes = measure_scrapes(full, request)
    pods: dict[str, Any] = {count: took.as_ms() for count, took in timings.items()}
    pods["ratio"] = times(pods[f"{MANY_PODS}"], pods["0"])
    shown = {
        "0 pods": pods["0"],
        f"{MANY_PODS:,} pods": pods[f"{MANY_PODS}"],
        "the same, at a steady pace": scrapes["quiet"],
        "with a scrape each second": scrapes["scraped"],
    }
    table = Table("5,000 names", "p50 / p95 / p99 / max ms")
    for what, took in shown.items():
        table.add_row(what, format_ms(took, most="max"))
    console.print(table)
    console.print(
        f"Pods cost x {pods['ratio']:.2f}. With scrapes p99 is x "
        f"{scrapes['p99_to_p50']:.2f} of p50 without."
    )
    return {"pods": pods, "scrapes": scrapes}


NODE = NodeName("node")
_DECISIONS = 2000


def request_units(uid: str, units: int = POD_UNITS) -> PodRequest:
    """Describe a pod of one container."""
    amount = Amount(1, units)
    claim = Claim(amount, (ContainerAmount("main", amount),))
    return PodRequest(PodRef(PodUID(uid), "default", uid), (claim,))


def time_decisions(pods: int = 30) -> dict[str, float]:
    """Return microseconds for a node of eight cards that holds so many pods."""
    ledger = Ledger()
    cards = [Card(CardUUID(f"GPU-{i}"), i, UNITS) for i in range(CARDS)]
    ledger.set_cards(NODE, cards)
    policy = PolicyChoice().policy(None)
    assert isinstance(policy, Policy)
    for index in range(pods):
        ledger.reserve(request_units(f"pod-{index}", UNITS // 5), NODE, policy)
    asking = request_units("asking")
    node = ledger.node(NODE)
    assert node is not None

    def judge() -> None:
        find_refusal(asking, replace(node), policy)

    def decide() -> None:
        place(asking, node, policy)

    def bind() -> None:
        ledger.reserve(asking, NODE, policy)
        ledger.release(asking.pod.uid)

    return {
        "filter one changed node": _microseconds(judge),
        "choose the card on a node": _microseconds(decide),
        "reserve and release": _microseconds(bind),
    }


def _microseconds(call: Callable[[], None]) -> float:
    best = min(timeit.repeat(call, number=_DECISIONS, repeat=5))
    return round(best / _DECISIONS * 1e6, 2)
