"""How old the extender's books are, seen from outside, and when it first has any.

A node of one card is full, and its pod is deleted: the books are as old as the time
from then until filter lets a pod onto it. The extender's own metric, the ledger's age,
says less: the time since the API server said anything, however late that was.

After a start, an answer is right only when the extender has read the nodes and the
pods, because half of the nodes are full.
"""

import time
from typing import Any

from bench.client import filter_args
from bench.crowd import AT_ONCE, bind
from bench.facts import median
from bench.stage import CORES, UNITS, node_body, post_nodes
from gpushare.domain.model import Amount
from tests.controlplane.extender import Extender, extender
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import pod, post_pod
from tests.testbed.rest import Rest
from tests.testbed.waiting import wait_until

NODE = "probe"
NODES = 20
STARTS = 5
FILTER = "/scheduler/filter"
_PODS = "/api/v1/namespaces/default/pods"
_POLL_S = 0.003


def fill_node(rest: Rest, node: str) -> None:
    """Give a node's only card to a pod of the node's name."""
    whole = post_pod(rest, pod(node, units=UNITS, cores=CORES))
    bind(rest, whole, node, f"GPU-{node}-0", Amount(CORES, UNITS))


class Probe:
    """Measures again and again, with one node and one pod of its own."""

    def __init__(self, rest: Rest, ours: Extender) -> None:
        self._rest = rest
        self._verbs = ours.rest
        rest.must("POST", "/api/v1/nodes", node_body(NODE, 1))
        wait_until(self._has_room, "room on the probe's node")

    def measure_lag(self) -> float:
        """Fill the card, empty it; return the seconds for which filter says it is full.

        From the begin of the deletion.
        """
        fill_node(self._rest, NODE)
        wait_until(lambda: not self._has_room(), "no room on the probe's node")
        began = time.monotonic()
        self._rest.must("DELETE", f"{_PODS}/{NODE}", AT_ONCE)
        wait_until(self._has_room, "room on the probe's node", every_s=_POLL_S)
        return time.monotonic() - began

    def _has_room(self) -> bool:
        answer = self._verbs.must("POST", FILTER, filter_args([NODE], 1))
        return bool(answer["NodeNames"])


def time_first_answers(plane: ControlPlane) -> dict[str, Any]:
    """Start it several times; seconds until filter names exactly the free nodes.

    The cluster is new and small, on a real API server.
    """
    names = [f"small-{number:02d}" for number in range(NODES)]
    full, free = names[: NODES // 2], names[NODES // 2 :]
    post_nodes(plane.rest, [node_body(name, 1) for name in names])
    for name in full:
        fill_node(plane.rest, name)
    took_s = [_start_once(plane, number, names, free) for number in range(STARTS)]
    plane.rest.must("DELETE", _PODS, AT_ONCE)
    for name in names:
        plane.rest.must("DELETE", f"/api/v1/nodes/{name}")
    return {"nodes": NODES, "first_answer_s": median(took_s), "each_s": took_s}


def _start_once(
    plane: ControlPlane, number: int, names: list[str], free: list[str]
) -> float:
    """Start it, ask until the answer is right, and end it."""
    ours = extender(plane, f"small-{number}")

    def is_right() -> bool:
        status, answer = ours.rest.post(FILTER, filter_args(names, 1))
        return status == 200 and sorted(answer.get("NodeNames") or ()) == free

    began = time.monotonic()
    process = ours.start(wait=False)
    process.wait_ready(is_right)
    took_s = time.monotonic() - began
    ours.__exit__(None, None, None)
    return round(took_s, 2)
