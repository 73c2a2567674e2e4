"""``python -m bench burst``: many pods at once, with the extender and without.

The same pods wait on the same nodes of the same API server each time, and a
kube-scheduler of the same configuration starts and finds them all. What is counted is
what the API server's audit log has of the Bindings, from the first to the last. The
ways take turns, so that the machine's other work hits all alike.
"""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from bench.serving import server
from bench.stage import (
    FAST,
    RESULTS,
    facts,
    middle,
    node_body,
    post_nodes,
    post_pods,
    stage,
)
from tests.controlplane.extender import USER, extender
from tests.testbed.audit import Call
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import pod
from tests.testbed.rest import Json
from tests.testbed.scheduler import SchedulerSettings
from tests.testbed.waiting import wait_until

BINDINGS = "pods/binding"
CARDS_A_NODE = 8
POD_UNITS = 20
POD_CORES = 10
_SPACE = "/api/v1/namespaces/default/pods"
_WAITING = f"{_SPACE}?limit=1&fieldSelector=spec.nodeName="
_ECHO: Json = {
    "filterVerb": "echo",
    "prioritizeVerb": "",
    "preemptVerb": "",
    "bindVerb": "",
}
UNBATCHED = "--feature-gates=OpportunisticBatching=false"
"""kube-scheduler turns this off by itself where a profile has an extender."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to have the pods placed."""

    name: str
    means: str
    ours: bool = False
    echo: bool = False
    flags: tuple[str, ...] = ()


WAYS = (
    Way("ours", "with the extender", ours=True),
    Way("bare", "without an extender"),
    Way(
        "bare, unbatched", "the same with OpportunisticBatching off", flags=(UNBATCHED,)
    ),
    Way("echo", "an extender whose filter gives all names back, no more", echo=True),
)


@dataclass(frozen=True, slots=True)
class Size:
    """How large it is."""

    nodes: int
    pods: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Burst:
    """What one burst showed."""

    seconds: float
    """From the first Binding to the last."""
    pods_per_s: float
    failed: int
    """Bindings that the API server refused."""
    outcomes: dict[str, int]
    """The extender's binds by outcome; none where there is no extender of ours."""
    ours: int
    """Writes of the extender's user."""
    schedulers: int
    """Writes of kube-scheduler's user."""


def rate(times: Sequence[datetime]) -> tuple[float, float]:
    """Give the seconds from the first to the last, and how many came a second."""
    seconds = (max(times) - min(times)).total_seconds()
    return seconds, (len(times) - 1) / seconds


def summed_up(calls: Sequence[Call], outcomes: dict[str, int], scheduler: str) -> Burst:
    """Read a burst from the audit log's calls."""
    bindings = [c for c in calls if c.resource == BINDINGS and c.verb == "create"]
    seconds, per_s = rate([call.at for call in bindings if call.status == 201])
    writers = Counter(c.user for c in calls if c.verb not in {"get", "list", "watch"})
    return Burst(
        seconds=seconds,
        pods_per_s=per_s,
        failed=sum(call.status != 201 for call in bindings),
        outcomes=outcomes,
        ours=writers[USER.name],
        schedulers=writers[scheduler],
    )


def one_burst(plane: ControlPlane, way: Way, number: int, size: Size) -> Burst:
    """Let the pods wait, start kube-scheduler, and sum up when all are placed."""
    name = f"{way.name.replace(', ', '-')}-{number}"
    try:
        with ExitStack() as stack:
            ours = extender(plane, f"{name}-extender") if way.ours else None
            url = stack.enter_context(ours).url if ours else None
            if way.echo:
                url = f"http://127.0.0.1:{stack.enter_context(server(0, 0))}"
            post_pods(plane.rest, [body(n) for n in range(size.pods)])
            mark = plane.audit.mark()
            settings = settings_of(way)
            stack.enter_context(
                plane.start_scheduler(name, extender_url=url, settings=settings)
            )
            wait_until(
                lambda: not plane.rest.must("GET", _WAITING)["items"],
                f"end of the burst {name}",
                300.0,
                every_s=0.5,
            )
            outcomes = binds(ours.metrics()) if ours else {}
        # Read when kube-scheduler has ended, and with it its last event.
        return summed_up(plane.audit.calls(mark), outcomes, plane.scheduler_user.name)
    finally:
        plane.rest.must("DELETE", _SPACE, {"gracePeriodSeconds": 0})


def settings_of(way: Way) -> SchedulerSettings:
    """Give what is the same for all, and what the way is about."""
    return replace(FAST, flags=way.flags, extender=_ECHO if way.echo else {})


def body(number: int) -> Json:
    """Describe a pod of the burst."""
    return pod(f"burst-{number}", units=POD_UNITS, cores=POD_CORES)


def binds(metrics: dict[str, float]) -> dict[str, int]:
    """Read the extender's binds by outcome."""
    prefix = 'vcuda_extender_binds_total{outcome="'
    return {
        key.removeprefix(prefix).removesuffix('"}'): int(value)
        for key, value in metrics.items()
        if key.startswith(prefix)
    }


def conflicts_percent(found: Sequence[Burst]) -> float:
    """Give the share of our binds that came too late, in percent."""
    late = sum(one.outcomes.get("conflict", 0) for one in found)
    return round(100 * late / sum(sum(one.outcomes.values()) for one in found), 3)


def report(found: dict[str, list[Burst]], pods: int) -> dict[str, Any]:
    """Give what the file has: each way's rounds, and the claims."""
    ways: dict[str, dict[str, Any]] = {
        way.name: {
            "means": way.means,
            "pods_per_s": middle([one.pods_per_s for one in found[way.name]], 1),
            "seconds": middle([one.seconds for one in found[way.name]]),
            "rounds": [round(one.pods_per_s, 1) for one in found[way.name]],
            "refused_bindings": sum(one.failed for one in found[way.name]),
            "writes_per_pod": writes(found[way.name], pods),
        }
        for way in WAYS
        if found.get(way.name)
    }
    ours = found["ours"]
    return {
        "ways": ways,
        "ratio": {
            name: round(ways["ours"]["pods_per_s"] / way["pods_per_s"], 3)
            for name, way in ways.items()
            if name != "ours"
        },
        "conflicts_percent": conflicts_percent(ours),
        "binds": dict(sum((Counter(one.outcomes) for one in ours), Counter())),
        "writes_per_pod": round(middle([one.ours for one in ours]) / pods, 3),
    }


def writes(found: Sequence[Burst], pods: int) -> float:
    """Give all writes of a way for one pod, kube-scheduler's and ours."""
    return middle([(one.ours + one.schedulers) / pods for one in found], 3)


@click.command("burst")
@click.option("--nodes", default=500, show_default=True)
@click.option("--pods", default=2000, show_default=True)
@click.option("--rounds", default=2, show_default=True)
@click.option("--ways", default=",".join(way.name for way in WAYS).replace(", ", "-"))
@click.option(
    "--output", type=click.Path(path_type=Path), default=RESULTS / "burst.json"
)
def burst(nodes: int, pods: int, rounds: int, ways: str, output: Path) -> None:
    """Place a burst each way in turns, and write what came out as JSON."""
    size = Size(nodes=nodes, pods=pods, rounds=rounds)
    chosen = [w for w in WAYS if w.name.replace(", ", "-") in ways.split(",")]
    found: dict[str, list[Burst]] = {way.name: [] for way in chosen}
    with stage() as plane:
        written = facts(plane) | {"nodes": nodes, "cards_a_node": CARDS_A_NODE}
        bodies = [node_body(f"node-{n:05d}", CARDS_A_NODE) for n in range(nodes)]
        post_nodes(plane.rest, bodies)
        for number in range(rounds):
            for way in chosen:
                one = one_burst(plane, way, number, size)
                found[way.name].append(one)
                click.echo(f"{way.name}: {one.pods_per_s:.0f} pods a second")
    written |= {"pods": pods, "qps": FAST.qps, **report(found, pods)}
    output.write_text(json.dumps(written, indent=2) + "\n")
    click.echo(json.dumps(written["ratio"]))
