"""``python -m bench burst``: many pods at once, with the extender and without.

The same pods wait on the same nodes of the same API server each time, and a
kube-scheduler of the same configuration starts and finds them all. What is counted is
what the API server's audit log has of the Bindings, from the first to the last. The
ways take turns, so that the machine's other work hits all alike.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click

from bench.burstsums import WAYS, Burst, Way, report, summed_up
from bench.serving import server
from bench.stage import (
    FAST,
    RESULTS,
    cpu_s,
    facts,
    node_body,
    our_extender,
    post_nodes,
    post_pods,
    stage,
)
from tests.controlplane.books import checked_book
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
_ECHO: Json = {
    "filterVerb": "echo",
    "prioritizeVerb": "",
    "preemptVerb": "",
    "bindVerb": "",
}


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
    if way.ours:
        with our_extender(plane, f"{name}-extender") as ours:
            (worker,) = ours.workers()
            yield Beside(ours.url, parts | {"extender": worker}, ours.metrics)
    elif way.echo:
        with server(0, 0) as port:
            yield Beside(f"http://127.0.0.1:{port}", parts, dict)
    else:
        yield Beside(None, parts, dict)


def one_burst(plane: ControlPlane, way: Way, number: int, size: Size) -> Burst:
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
        if way.ours:
            checked_book(plane.rest)
        # Read when kube-scheduler has ended, and with it its last event.
        calls = plane.audit.calls(mark)
        return summed_up(calls, plane.scheduler_user.name, metrics, used, size.pods)
    finally:
        plane.rest.must("DELETE", _SPACE, {"gracePeriodSeconds": 0})


def settings_of(way: Way) -> SchedulerSettings:
    """Give what is the same for all, and what the way is about."""
    return replace(FAST, flags=way.flags, extender=_ECHO if way.echo else {})


def body(number: int) -> Json:
    """Describe a pod of the burst."""
    return pod(f"burst-{number}", units=POD_UNITS, cores=POD_CORES)


@click.command("burst")
@click.option("--nodes", default=500, show_default=True)
@click.option("--pods", default=2000, show_default=True)
@click.option("--rounds", default=2, show_default=True)
@click.option(
    "--output", type=click.Path(path_type=Path), default=RESULTS / "burst.json"
)
def burst(nodes: int, pods: int, rounds: int, output: Path) -> None:
    """Place a burst each way in turns, and write what came out as JSON."""
    size = Size(nodes=nodes, pods=pods)
    found: dict[str, list[Burst]] = {way.name: [] for way in WAYS}
    with stage() as plane:
        written = facts(plane) | {"nodes": nodes, "cards_a_node": CARDS_A_NODE}
        written |= {"pods": pods, "qps": FAST.qps}
        bodies = [node_body(f"node-{n:05d}", CARDS_A_NODE) for n in range(nodes)]
        post_nodes(plane.rest, bodies)
        for number in range(rounds):
            for way in WAYS:
                one = one_burst(plane, way, number, size)
                found[way.name].append(one)
                click.echo(f"{way.name}: {one.pods_per_s:.0f} pods a second")
            told = written | report(found, pods)
            output.write_text(json.dumps(told, indent=2) + "\n")
            click.echo(f"ours to each: {json.dumps(told['ratio'])}")
