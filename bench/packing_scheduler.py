"""``python -m bench.packing_scheduler``: a slice of the trace on a real kube-scheduler.

Every n-th node of the public trace is posted to a real API server, and pods of the
trace arrive one after another, as ``bench.packing.trace`` has it. A real
kube-scheduler places them with the real extender beside it; those without cards it
places alone, since no extender is asked for them. The same pods in the same order are
placed in memory by the simulator, where the policy places those without cards, too.
"""

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.curves import replay_list
from bench.facts import RESULTS, machine_facts
from bench.packing.trace import (
    FOLDER_VARIABLE,
    TRACE_FOLDER,
    WHOLE,
    Meter,
    Trace,
    TraceNode,
    TracePod,
    read_trace,
)
from gpushare.domain.model import CORES_PER_CARD, Amount, Card, CardUUID
from gpushare.domain.policies import PolicyChoice
from gpushare.kube import names
from gpushare.kube.annotations import encode_cards
from tests.controlplane.extender import USER, extender
from tests.testbed.binaries import cache_folder, ensure_binaries
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import (
    CORE,
    MEMORY,
    new_namespace,
    pod_path,
    post_node,
    post_pod,
    sweep,
)
from tests.testbed.rest import Json, Rest
from tests.testbed.scheduler import SchedulerSettings
from tests.testbed.waiting import wait_until

LOADS = (100, 130)
MOST_ALLOCATED = {
    "pluginConfig": [
        {
            "name": "NodeResourcesFit",
            "args": {
                "scoringStrategy": {
                    "type": "MostAllocated",
                    "resources": [
                        {"name": "cpu", "weight": 1},
                        {"name": "memory", "weight": 1},
                    ],
                }
            },
        }
    ]
}
"""kube-scheduler packs what it places alone, instead of spreading it."""


@dataclass(frozen=True, slots=True)
class Run:
    """One way to place the pods."""

    name: str
    policy: str
    weight: int
    profile: Json


RUNS = (
    Run("frag", "frag", 100, {}),
    Run("frag, MostAllocated", "frag", 100, MOST_ALLOCATED),
    Run("first-fit", "first-fit", 5, {}),
)


def card_amount(pod: TracePod) -> Amount:
    """Give what a pod asks of cards of 1000 units: whole ones by their cores."""
    if not pod.cards:
        return Amount()
    if pod.milli == WHOLE:
        return Amount(CORES_PER_CARD * pod.cards, WHOLE * pod.cards)
    return Amount(1, pod.milli)


def cards_of(node: TraceNode) -> list[Card]:
    """Give a node's cards."""
    return [
        Card(CardUUID(f"{node.name}-{i}"), i, WHOLE, model=node.model)
        for i in range(node.cards)
    ]


def on_kube_scheduler(
    plane: ControlPlane, trace: Trace, pods: Sequence[TracePod], run: Run
) -> Meter:
    """Place the pods by a real kube-scheduler and our extender."""
    settings = SchedulerSettings(
        qps=5000,
        burst=5000,
        profile={"schedulerName": "default-scheduler", **run.profile},
        extender={"weight": run.weight},
    )
    namespace, meter = new_namespace(plane.rest), Meter(trace.capacity)
    with (
        extender(plane, f"extender-{run.name}", POLICY=run.policy) as ours,
        plane.start_scheduler(
            f"scheduler-{run.name}", extender_url=ours.url, settings=settings
        ),
    ):
        for node in trace.nodes:
            post(plane.rest, node)

        def known() -> int:
            return len(ours.rest.must("GET", "/snapshot")["nodes"])

        wait_until(known, "nodes", accept=lambda seen: seen == len(trace.nodes))
        for number, pod in enumerate(pods):
            body = body_of(pod, f"p{number}", namespace)
            placed = decided(plane.rest, post_pod(plane.rest, body))
            meter.arrived(pod.demand, placed=placed)
    sweep(plane.rest)
    return meter


def post(rest: Rest, node: TraceNode) -> None:
    """Add a node as its device plugin would describe it."""
    post_node(
        rest,
        node.name,
        cpu=f"{node.cpu_milli}m",
        memory=f"{node.memory_mib}Mi",
        pods=1000,
        units=WHOLE * node.cards,
        cores=CORES_PER_CARD * node.cards,
        annotations={names.CARDS: encode_cards(cards_of(node))},
    )


def body_of(pod: TracePod, name: str, namespace: str) -> Json:
    """Describe a pod as its user would write it."""
    amount = card_amount(pod)
    limits = {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"}
    if amount:
        limits |= {MEMORY: str(amount.units), CORE: str(amount.cores)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": "local.test/pause:1",
                    "resources": {"limits": limits, "requests": limits},
                }
            ],
        },
    }


def decided(rest: Rest, pod: Json) -> bool:
    """Wait until the pod has a node; one that gets none is deleted, and not retried."""
    path = pod_path(pod)

    def verdict() -> str:
        found = rest.must("GET", path)
        if found["spec"].get("nodeName"):
            return "placed"
        conditions = found["status"].get("conditions") or ()
        is_refused = any(each.get("reason") == "Unschedulable" for each in conditions)
        return "refused" if is_refused else ""

    found = wait_until(verdict, f"decision on {path}", 60.0)
    if found == "refused":
        rest.must("DELETE", f"{path}?gracePeriodSeconds=0")
    return found == "placed"


@click.command()
@click.option("--every", default=24, show_default=True, help="Each so-manyth node.")
@click.option("--pod-list", default="default", show_default=True)
@click.option("--seed", default=42, show_default=True)
@click.option(
    "--trace-dir",
    type=click.Path(path_type=Path),
    envvar=FOLDER_VARIABLE,
    default=TRACE_FOLDER,
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=RESULTS / "packing_scheduler.json",
)
def main(every: int, pod_list: str, seed: int, trace_dir: Path, output: Path) -> None:
    """Replay the slice in all ways, and write what came out as JSON."""
    whole = read_trace(trace_dir, pod_list)
    trace = Trace(whole.nodes[::every], whole.pods)
    pods = trace.arrivals(seed)
    results: dict[str, Any] = {
        **machine_facts(),
        "list": pod_list,
        "seed": seed,
        "nodes": len(trace.nodes),
        "cards": trace.capacity // WHOLE,
        "pods": len(pods),
        "in_memory": {
            policy: shares(replay_list(trace, pod_list, seed, PolicyChoice(policy)))
            for policy in ("frag", "best-fit", "first-fit")
        },
    }
    click.echo(json.dumps(results))
    results["kube_scheduler"] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        binaries = ensure_binaries(cache_folder(os.environ))
        with ControlPlane(binaries, Path(folder) / "plane", users=[USER]) as plane:
            for run in RUNS:
                began = time.monotonic()
                got = shares(on_kube_scheduler(plane, trace, pods, run))
                took_s = round(time.monotonic() - began, 1)
                results["kube_scheduler"][run.name] = got | {"took_s": took_s}
                click.echo(f"{run.name}: {got}, {took_s} s")
                output.write_text(json.dumps(results, indent=2) + "\n")


def shares(meter: Meter) -> dict[str, float | None]:
    """Give the allocated share in percent at each load."""
    by_load = {str(load): meter.share(load) for load in LOADS}
    return {load: share and round(share, 2) for load, share in by_load.items()}


if __name__ == "__main__":
    main()
