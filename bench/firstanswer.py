"""From the start of the extender's process to its first right answer.

The cluster is new and small, on a real API server. A half of its nodes is full: so an
answer is right only when the extender has read the nodes and the pods.
"""

import time
from typing import Any

from bench.crowd import AT_ONCE, bind
from bench.lag import asking
from bench.stage import CORES, UNITS, middle, node_body, our_extender, post_nodes
from gpushare.domain.model import Amount
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import pod, post_pod

NODES = 20
STARTS = 5
_WHOLE = Amount(CORES, UNITS)
_PODS = "/api/v1/namespaces/default/pods"


def first_answers(plane: ControlPlane) -> dict[str, Any]:
    """Start it several times; seconds until filter names exactly the free nodes."""
    names = [f"small-{number:02d}" for number in range(NODES)]
    full, free = names[: NODES // 2], names[NODES // 2 :]
    post_nodes(plane.rest, [node_body(name, 1) for name in names])
    for name in full:
        made = post_pod(plane.rest, pod(name, units=UNITS, cores=CORES))
        bind(plane.rest, made, name, f"GPU-{name}-0", _WHOLE)
    took = [one_start(plane, number, names, free) for number in range(STARTS)]
    plane.rest.must("DELETE", _PODS, AT_ONCE)
    for name in names:
        plane.rest.must("DELETE", f"/api/v1/nodes/{name}")
    return {"nodes": NODES, "first_answer_s": middle(took), "each_s": took}


def one_start(
    plane: ControlPlane, number: int, names: list[str], free: list[str]
) -> float:
    """Start it, ask until the answer is right, and end it."""
    ours = our_extender(plane, f"small-{number}")

    def right() -> bool:
        status, answer = ours.rest.post("/scheduler/filter", asking(names))
        return status == 200 and sorted(answer.get("NodeNames") or ()) == free

    began = time.monotonic()
    process = ours.start(wait=False)
    process.wait_ready(right)
    took = time.monotonic() - began
    ours.__exit__(None, None, None)
    return round(took, 2)
