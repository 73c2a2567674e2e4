"""How old the extender's books are, seen from outside.

A node of one card is full, and its pod is deleted: the books are as old as the time
from then until filter lets a pod onto it. The extender's own metric, the ledger's age,
says less: the time since the API server said anything, however late that was.
"""

import time
from dataclasses import dataclass

from bench.crowd import AT_ONCE, bind
from bench.stage import CORES, UNITS, node_body
from gpushare.domain.model import Amount
from tests.controlplane.extender import Extender
from tests.testbed.objects import CORE, MEMORY, pod, post_pod
from tests.testbed.rest import Json, Rest
from tests.testbed.waiting import wait_until

NODE = "probe"
_WHOLE = Amount(CORES, UNITS)
_POD = f"/api/v1/namespaces/default/pods/{NODE}"
_POLL_S = 0.003


@dataclass(frozen=True, slots=True)
class Lag:
    """Seconds from a deletion: until the API server answered, until filter knew."""

    answered_s: float
    known_s: float


class Probe:
    """Measures again and again, with one node and one pod of its own."""

    def __init__(self, rest: Rest, ours: Extender) -> None:
        self._rest = rest
        self._verbs = ours.rest
        rest.must("POST", "/api/v1/nodes", node_body(NODE, 1))
        wait_until(self._has_room, "room on the probe's node")

    def measure(self) -> Lag:
        """Fill the card, empty it, and see how long filter says it is full."""
        made = post_pod(self._rest, pod(NODE, units=UNITS, cores=CORES))
        bind(self._rest, made, NODE, f"GPU-{NODE}-0", _WHOLE)
        wait_until(lambda: not self._has_room(), "no room on the probe's node")
        began = time.monotonic()
        self._rest.must("DELETE", _POD, AT_ONCE)
        answered = time.monotonic()
        wait_until(self._has_room, "room on the probe's node", every_s=_POLL_S)
        return Lag(answered - began, time.monotonic() - began)

    def _has_room(self) -> bool:
        answer = self._verbs.must("POST", "/scheduler/filter", asking([NODE]))
        return bool(answer["NodeNames"])


def asking(names: list[str]) -> Json:
    """Ask which of these nodes have room for the smallest pod."""
    asked = {CORE: "1", MEMORY: "1"}
    resources = {"requests": asked, "limits": asked}
    return {
        "Pod": {
            "metadata": {"name": "asking", "namespace": "default", "uid": "asking"},
            "spec": {"containers": [{"name": "main", "resources": resources}]},
            "status": {"phase": "Pending"},
        },
        "Nodes": None,
        "NodeNames": names,
    }
