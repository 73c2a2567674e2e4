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

from bench.burstsums import MORE_WAYS, WAYS, Burst, Way, report, summed_up
from bench.serving import server
from bench.stage import (
    FAST,
    RESULTS,
    cpu_s,
    facts,
    go_extender,
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
            with our_extender(plane, f"{name}-extender") as ours:
                (worker,) = ours.workers()
                yield Beside(ours.url, parts | {"extender": worker}, ours.metrics)
        case "go":
            with go_extender(plane, f"{name}-extender") as go:
                yield Beside(go.url, parts | {"extender": go.pid}, dict)
        case "echo":
            with server(0, 0) as served:
                url, worker = f"http://127.0.0.1:{served.port}", served.worker
                yield Beside(url, parts | {"extender": worker}, dict)
        case None:
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
        if way.extender == "ours":
            checked_book(plane.rest)
        # Read when kube-scheduler has ended, and with it its last event.
        calls = plane.audit.calls(mark)
        return summed_up(calls, plane.scheduler_user.name, metrics, used, size.pods)
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
def burst(
    nodes: int, pods: int, rounds: int, names: tuple[str, ...], output: Path
) -> None:
    """Place a burst each way in turns, and write what came out as JSON."""
    size = Size(nodes=nodes, pods=pods)
    chosen = [way for way in (*WAYS, *MORE_WAYS) if way.name in ("ours", *names)]
    ways = chosen if names else [*WAYS]
    found: dict[str, list[Burst]] = {way.name: [] for way in ways}
    with stage() as plane:
        written = facts(plane) | {"nodes": nodes, "cards_a_node": CARDS_A_NODE}
        written |= {"pods": pods, "qps": FAST.qps}
        bodies = [node_body(f"node-{n:05d}", CARDS_A_NODE) for n in range(nodes)]
        post_nodes(plane.rest, bodies)
        for number in range(rounds):
            # There and back: the first burst of all meets an API server that is new.
            for way in ways[:: -1 if number % 2 else 1]:
                one = one_burst(plane, way, number, size)
                found[way.name].append(one)
                click.echo(
                    f"{way.name}: {one.pods_per_s:.0f} pods a second, CPU of a pod in "
                    f"ms: {json.dumps(one.cpu_ms)}"
                )
            told = written | report(found, pods)
            if not names:
                output.write_text(json.dumps(told, indent=2) + "\n")
            click.echo(f"ours to each: {json.dumps(told['ratio'])}")
