"""A crowd of nodes and running pods, put into etcd as the API server would have.

A hundred thousand pods through the API server take three writes each. Here one node and
one pod are made through it, the pod bound as the extender binds and reported running as
kubelet does. What the API server then shows is copied under other names, and written to
etcd while the API server is down: in JSON, which it reads as well as its own protobuf.

``python -m bench.crowd`` makes pods come, be bound, run and go at a steady pace. It is
a program of its own, so that its work is not in the process that looks on. It writes to
etcd, too: a life through the API server takes that and etcd 15 ms, so that 500 events a
second would be more than two cores. The API server's watches tell of them all the same.
It says on one line what it came to: ``{"events": …, "seconds": …}``.
"""

import base64
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.placed import placement_text
from bench.server import node_name
from bench.stage import node_body
from gpushare.domain.model import Amount
from gpushare.kube.names import PLACEMENT
from tests.testbed.controlplane import ControlPlane
from tests.testbed.objects import pod, pod_path, post_pod, set_running
from tests.testbed.rest import Json, Rest
from tests.testbed.waiting import wait_until

CARDS = 8
PODS = "/registry/pods/default"
NODE = "template-node"
POD = "template-pod"
AT_ONCE: Json = {"gracePeriodSeconds": 0}
_SMALL = Amount(1, 4)
_CACHED = "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName=node-00000"
_FULL_S = 180.0
_BATCH = 100
"""etcd takes 128 in one transaction."""


@dataclass(frozen=True, slots=True)
class Template:
    """One node, and one pod in its three states, as the API server stores them."""

    node: str
    node_uid: str
    pending: str
    bound: str
    running: str
    pod_uid: str


def bind(rest: Rest, made: Json, node: str, card: str, amount: Amount) -> None:
    """Bind a pod as the extender does: node and placement in one write."""
    name = made["metadata"]["name"]
    annotations = {PLACEMENT: placement_text(made, node, card, amount)}
    binding = {
        "metadata": {"name": name, "annotations": annotations},
        "target": {"kind": "Node", "name": node},
    }
    rest.must("POST", f"{pod_path(made)}/binding", binding)


def template(rest: Rest) -> Template:
    """Make a node and a pod, read each state of them, and remove them."""
    node_path = f"/api/v1/nodes/{NODE}"
    node = rest.must("POST", "/api/v1/nodes", node_body(NODE, CARDS))
    made = post_pod(rest, pod(POD, units=_SMALL.units, cores=_SMALL.cores))
    path = pod_path(made)
    bind(rest, made, NODE, f"GPU-{NODE}-0", _SMALL)
    bound = rest.must("GET", path)
    set_running(rest, made)
    running = rest.must("GET", path)
    rest.must("DELETE", path, AT_ONCE)
    rest.must("DELETE", node_path)
    return Template(
        node=_stored(node),
        node_uid=node["metadata"]["uid"],
        pending=_stored(made),
        bound=_stored(bound),
        running=_stored(running),
        pod_uid=made["metadata"]["uid"],
    )


def nodes(of: Template, count: int) -> Iterator[tuple[str, str]]:
    """Give etcd's key and value of each node."""
    for number in range(count):
        name = node_name(number)
        swaps = {NODE: name, of.node_uid: _uid(1, number)}
        yield f"/registry/minions/{name}", swapped(of.node, swaps)


def pods(of: Template, count: int, node_count: int) -> Iterator[tuple[str, str]]:
    """Give etcd's key and value of each pod; they fill the nodes' cards in turn."""
    for number in range(count):
        card = number // node_count % CARDS
        swaps = names(of, f"pod-{number:06d}", 2, number, node_count, card)
        yield f"{PODS}/pod-{number:06d}", swapped(of.running, swaps)


def names(
    of: Template, name: str, kind: int, number: int, node_count: int, card: int
) -> dict[str, str]:
    """Say what stands in a copy of the pod instead; ``kind`` keeps its UID apart."""
    node = node_name(number % node_count)
    return {
        f"GPU-{NODE}-0": f"GPU-{node}-{card}",
        NODE: node,
        POD: name,
        of.pod_uid: _uid(kind, number),
    }


def swapped(text: str, swaps: Mapping[str, str]) -> str:
    """Replace each name by another, in the order given."""
    for old, new in swaps.items():
        text = text.replace(old, new)
    return text


def put(etcd: Rest, pairs: Iterable[tuple[str, str]]) -> None:
    """Write keys and values, a hundred in a transaction."""
    batch: list[Json] = []
    for key, value in pairs:
        batch.append({"requestPut": put_body(key, value)})
        if len(batch) == _BATCH:
            etcd.must("POST", "/v3/kv/txn", {"success": batch})
            batch = []
    if batch:
        etcd.must("POST", "/v3/kv/txn", {"success": batch})


def put_body(key: str, value: str) -> Json:
    """Write a request of etcd's gateway to keep a value."""
    return {"key": base64_of(key), "value": base64_of(value)}


def gather(plane: ControlPlane, node_count: int, pod_count: int) -> Template:
    """Fill the cluster; the API server comes back with all of it."""
    of = template(plane.rest)
    plane.stop_apiserver()
    put(plane.etcd, nodes(of, node_count))
    put(plane.etcd, pods(of, pod_count, node_count))
    plane.start_apiserver()
    # Its own start is not what is measured: until its watch cache is full it refuses.
    wait_until(
        lambda: plane.rest.get(_CACHED)[0] == 200, "the API server's cache", _FULL_S
    )
    return of


def _stored(read: Json) -> str:
    """Write an object as it is in etcd, where its version is etcd's own."""
    metadata = {k: v for k, v in read["metadata"].items() if k != "resourceVersion"}
    return json.dumps(read | {"metadata": metadata}, separators=(",", ":"))


def _uid(kind: int, number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{kind:012x}"


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


EVENTS = 4
"""Of one life: added, bound, running, deleted."""
_WRITERS = 8
_LAST_CARD = 7


def live(etcd: Rest, of: Template, number: int, nodes: int) -> None:
    """Lead one pod through its life."""
    name = f"life-{number}"
    key, swaps = f"{PODS}/{name}", names(of, name, 3, number, nodes, _LAST_CARD)
    for state in (of.pending, of.bound, of.running):
        etcd.must("POST", "/v3/kv/put", put_body(key, swapped(state, swaps)))
    etcd.must("POST", "/v3/kv/deleterange", {"key": base64_of(key)})


class Pace:
    """Deals out the numbers of lives, each at its time, or later where all are busy."""

    def __init__(
        self,
        per_s: float,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_s = per_s
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._numbers = count()

    def take(self) -> int | None:
        """Wait for the next number's time and give it; None when the time is over."""
        number = next(self._numbers)
        passed, due = self._clock() - self._began, number / self._per_s
        if max(passed, due) >= self._seconds:
            return None
        self._sleep(max(0.0, due - passed))
        return number


def main(
    port: int, file: Path, events_a_second: float, seconds: float, nodes: int
) -> None:
    """Make the events, and say how many there were in which time."""
    etcd, of = Rest(port, tls=False), Template(**json.loads(file.read_text()))
    pace, done = Pace(events_a_second / EVENTS, seconds), list[int]()

    def work() -> None:
        while (number := pace.take()) is not None:
            live(etcd, of, number, nodes)
            done.append(number)

    began = time.monotonic()
    workers = [threading.Thread(target=work) for _ in range(_WRITERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.monotonic() - began
    print(json.dumps({"events": EVENTS * len(done), "seconds": round(took, 2)}))


if __name__ == "__main__":
    _, port, file, *rest = sys.argv
    main(int(port), Path(file), float(rest[0]), float(rest[1]), int(rest[2]))
