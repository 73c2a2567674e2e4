"""``python -m bench burst``: many pods at once, with the extender and without.

The same pods wait on the same nodes of the same API server each time, and a
kube-scheduler of the same configuration starts and finds them all. What is counted is
what the API server's audit log has of the Bindings, from the first to the last. The
ways take turns, so that the machine's other work hits all alike.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import click

from bench.facts import RESULTS, cpu_s, median
from bench.serving import serve_extender
from bench.stage import (
    FAST,
    go_extender,
    node_body,
    plane_facts,
    post_nodes,
    post_pods,
    stage,
)
from tests.controlplane.books import checked_books
from tests.controlplane.extender import USER, extender
from tests.testbed.audit import WRITES, Call
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import pod
from tests.testbed.rest import Json
from tests.testbed.scheduler import SchedulerSettings
from tests.testbed.waiting import wait_until

CARDS_A_NODE = 8
POD_UNITS = 20
POD_CORES = 10
_SPACE = "/api/v1/namespaces/default/pods"
_WAITING = f"{_SPACE}?limit=1&fieldSelector=spec.nodeName="
_LONGEST_S = 300.0
_STANZAS: dict[str, Json] = {
    "go": {"preemptVerb": ""},
    "echo": {
        "filterVerb": "echo",
        "prioritizeVerb": "",
        "preemptVerb": "",
        "bindVerb": "",
    },
}
"""What an extender's stanza has otherwise than ours."""


BINDINGS = "pods/binding"
BINDS = 'vcuda_extender_binds_total{outcome="'
UNBATCHED = "--feature-gates=OpportunisticBatching=false"
"""kube-scheduler turns this off by itself where a profile has an extender."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to have the pods placed."""

    name: str
    means: str
    extender: Literal["ours", "go", "echo"] | None = None
    without: tuple[str, ...] = ()
    """Verbs that are left out of the extender's stanza."""
    flags: tuple[str, ...] = ()


WAYS = (
    Way("ours", "with the extender", "ours"),
    Way("go", "an extender in Go with the same calls and nothing behind them", "go"),
    Way("bare", "without an extender"),
    Way(
        "bare, unbatched", "the same with OpportunisticBatching off", flags=(UNBATCHED,)
    ),
    Way("echo", "an extender whose filter gives all names back, no more", "echo"),
)
MORE_WAYS = (
    Way(
        "ours, no prioritize",
        "with the extender, and no prioritizeVerb",
        "ours",
        without=("prioritizeVerb",),
    ),
)
"""What decided something once (decision 0060), and is measured only by its name."""


@dataclass(frozen=True, slots=True)
class Burst:
    """What one burst showed."""

    seconds: float
    """From the first Binding to the last."""
    pods_per_s: float
    failed: int
    """Bindings that the API server refused."""
    ours: int
    """Writes of the extender's user."""
    schedulers: int
    """Writes of kube-scheduler's user."""
    outcomes: dict[str, int]
    """The extender's binds by outcome; none where there is no extender of ours."""
    verbs_ms: dict[str, float]
    """The extender's own time for one call, verb by verb."""
    cpu_ms: dict[str, float]
    """CPU time for one pod, process by process, their start included."""


def binding_rate(times: Sequence[datetime]) -> tuple[float, float]:
    """Return the seconds from the first to the last, and how many came a second."""
    seconds = (max(times) - min(times)).total_seconds()
    return seconds, (len(times) - 1) / seconds


def sum_up_burst(
    calls: Sequence[Call],
    scheduler: str,
    metrics: dict[str, float],
    used_s: dict[str, float],
    pods: int,
) -> Burst:
    """Read a burst from the audit log's calls and the extender's metrics."""
    bindings = [c for c in calls if c.resource == BINDINGS and c.verb == "create"]
    seconds, per_s = binding_rate([call.at for call in bindings if call.status == 201])
    writers = Counter(call.user for call in calls if call.verb in WRITES)
    return Burst(
        seconds=seconds,
        pods_per_s=per_s,
        failed=sum(call.status != 201 for call in bindings),
        ours=writers[USER.name],
        schedulers=writers[scheduler],
        outcomes={key: int(n) for key, n in read_labelled(metrics, BINDS).items()},
        verbs_ms=per_call_ms(metrics),
        cpu_ms={part: round(1000 * used / pods, 2) for part, used in used_s.items()},
    )


def read_labelled(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    """Return the samples of a metric with one label, by its value."""
    return {
        key.removeprefix(prefix).removesuffix('"}'): value
        for key, value in metrics.items()
        if key.startswith(prefix)
    }


def per_call_ms(metrics: dict[str, float]) -> dict[str, float]:
    """Return the mean time of each verb's calls."""
    counts = read_labelled(metrics, 'vcuda_extender_request_seconds_count{verb="')
    sums = read_labelled(metrics, 'vcuda_extender_request_seconds_sum{verb="')
    return {
        verb: round(1000 * sums[verb] / calls, 3)
        for verb, calls in counts.items()
        if calls
    }


def conflicts_percent(bursts: Sequence[Burst]) -> float:
    """Return the share of our binds that came too late, in percent."""
    late = sum(burst.outcomes.get("conflict", 0) for burst in bursts)
    return round(100 * late / sum(sum(burst.outcomes.values()) for burst in bursts), 3)


def report_bursts(bursts: dict[str, list[Burst]], pods: int) -> dict[str, Any]:
    """Return what the file has: each way's medians, and what is claimed of ours."""
    ways = {
        way.name: sum_up_way(way, bursts[way.name], pods)
        for way in (*WAYS, *MORE_WAYS)
        if way.name in bursts
    }
    ours = bursts["ours"]
    speed = ways["ours"]["pods_per_s"]
    return {
        "ways": ways,
        "ratio": {
            name: round(speed / way["pods_per_s"], 3)
            for name, way in ways.items()
            if name != "ours"
        },
        "conflicts_percent": conflicts_percent(ours),
        "writes_per_pod": median([burst.ours / pods for burst in ours], 3),
        "binds": dict(sum((Counter(burst.outcomes) for burst in ours), Counter())),
        "verbs_ms": median_figures([burst.verbs_ms for burst in ours]),
    }


def sum_up_way(way: Way, bursts: Sequence[Burst], pods: int) -> dict[str, Any]:
    """Return what one way came to, over its rounds."""
    return {
        "means": way.means,
        "pods_per_s": median([burst.pods_per_s for burst in bursts], 1),
        "seconds": median([burst.seconds for burst in bursts]),
        "rounds": [round(burst.pods_per_s, 1) for burst in bursts],
        "refused_bindings": sum(burst.failed for burst in bursts),
        "all_writes_per_pod": median(
            [(burst.ours + burst.schedulers) / pods for burst in bursts], 3
        ),
        "cpu_ms_per_pod": median_figures([burst.cpu_ms for burst in bursts]),
    }


def median_figures(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure over the rounds."""
    return {key: median([figures[key] for figures in rounds]) for key in rounds[0]}


@dataclass(frozen=True, slots=True)
class Size:
    """How large it is."""

    nodes: int
    pods: int


@dataclass(frozen=True, slots=True)
class Beside:
    """What runs beside kube-scheduler."""

    url: str | None
    """Of its extender, if it has one."""
    parts: dict[str, int]
    """Names and process ids."""
    metrics: Callable[[], dict[str, float]]
    """Of our extender; nothing where it is not."""


@contextmanager
def beside(plane: ControlPlane, way: Way, name: str) -> Iterator[Beside]:
    """Run what kube-scheduler is to ask, and nothing that it is not to ask."""
    parts = {part.name: part.pid for part in plane.launcher.started[:2]}
    match way.extender:
        case "ours":
            with extender(plane, f"{name}-extender") as ours:
                (worker,) = ours.workers()
                yield Beside(ours.url, parts | {"extender": worker}, ours.metrics)
        case "go":
            with go_extender(plane, f"{name}-extender") as go:
                yield Beside(go.url, parts | {"extender": go.pid}, dict)
        case "echo":
            with serve_extender(0) as served:
                url, worker = f"http://127.0.0.1:{served.port}", served.worker
                yield Beside(url, parts | {"extender": worker}, dict)
        case None:
            yield Beside(None, parts, dict)


def play_burst(plane: ControlPlane, way: Way, number: int, size: Size) -> Burst:
    """Let the pods wait, start kube-scheduler, and sum up when all are placed."""
    name = f"{way.name.replace(', ', '-')}-{number}"
    try:
        with beside(plane, way, name) as there:
            post_pods(plane.rest, [body(n) for n in range(size.pods)])
            mark = plane.audit.mark()
            before = {part: cpu_s(pid) for part, pid in there.parts.items()}
            with plane.start_scheduler(
                name, extender_url=there.url, settings=settings_of(way)
            ) as scheduler:
                wait_until(
                    lambda: not plane.rest.must("GET", _WAITING)["items"],
                    f"end of the burst {name}",
                    _LONGEST_S,
                    every_s=0.5,
                )
                used = {p: cpu_s(pid) - before[p] for p, pid in there.parts.items()}
                used["kube-scheduler"] = cpu_s(scheduler.pid)
            metrics = there.metrics()
        if way.extender == "ours":
            checked_books(plane.rest)
        # Read when kube-scheduler has ended, and with it its last event.
        calls = plane.audit.calls(mark)
        return sum_up_burst(calls, plane.scheduler_user.name, metrics, used, size.pods)
    finally:
        plane.rest.must("DELETE", _SPACE, {"gracePeriodSeconds": 0})


def settings_of(way: Way) -> SchedulerSettings:
    """Give what is the same for all, and what the way is about."""
    stanza = _STANZAS.get(way.extender or "", {}) | dict.fromkeys(way.without, "")
    return replace(FAST, flags=way.flags, extender=stanza)


def body(number: int) -> Json:
    """Describe a pod of the burst."""
    return pod(f"burst-{number}", units=POD_UNITS, cores=POD_CORES)


@click.command("burst")
@click.option("--nodes", default=500, show_default=True)
@click.option("--pods", default=2000, show_default=True)
@click.option("--rounds", default=2, show_default=True)
@click.option(
    "--beside",
    "names",
    multiple=True,
    type=click.Choice([way.name for way in (*WAYS, *MORE_WAYS)]),
    help="Measure only these beside ours, and write nothing; may be repeated.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), default=RESULTS / "burst.json"
)
def measure_bursts(
    nodes: int, pods: int, rounds: int, names: tuple[str, ...], output: Path
) -> None:
    """Place a burst each way in turns, and write what came out as JSON."""
    size = Size(nodes=nodes, pods=pods)
    ways = [way for way in (*WAYS, *MORE_WAYS) if way.name in ("ours", *names)]
    ways = ways if names else [*WAYS]
    bursts: dict[str, list[Burst]] = {way.name: [] for way in ways}
    with stage() as plane:
        facts = plane_facts(plane) | {"nodes": nodes, "cards_a_node": CARDS_A_NODE}
        facts |= {"pods": pods, "qps": FAST.qps}
        bodies = [node_body(f"node-{n:05d}", CARDS_A_NODE) for n in range(nodes)]
        post_nodes(plane.rest, bodies)
        for number in range(rounds):
            # There and back: the first burst of all meets an API server that is new.
            for way in ways[:: -1 if number % 2 else 1]:
                burst = play_burst(plane, way, number, size)
                bursts[way.name].append(burst)
                click.echo(
                    f"{way.name}: {burst.pods_per_s:.0f} pods a second, CPU of a pod "
                    f"in ms: {json.dumps(burst.cpu_ms)}"
                )
            report = facts | report_bursts(bursts, pods)
            if not names:
                output.write_text(json.dumps(report, indent=2) + "\n")
            click.echo(f"ours to each: {json.dumps(report['ratio'])}")
