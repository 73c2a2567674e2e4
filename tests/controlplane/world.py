"""A cluster with our extender in it: what tests put there and what they read back.

Everything that is asserted is read from the API server's objects, by their JSON alone:
none of the extender's own readers or memory has a say in whether it did well.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gpushare.domain.model import Card, CardUUID
from gpushare.kube.annotations import encode_cards
from tests.controlplane.extender import Extender, extender
from tests.testbed.controlplane import ControlPlane
from tests.testbed.kubelet import StandInKubelet
from tests.testbed.objects import CORE, MEMORY, events_of, pod, post_node, read_pod
from tests.testbed.objects import post_pod as post
from tests.testbed.rest import Json, Rest
from tests.testbed.scheduler import Scheduler, SchedulerSettings
from tests.testbed.waiting import wait_until

CARDS = "baidu.com/vcuda-cards"
PLACEMENT = "baidu.com/vcuda-placement"
POLICY = "baidu.com/vcuda-policy"
EAGER = SchedulerSettings(qps=1000, burst=2000, pod_max_backoff_s=2)
"""Retries soon, so that no test waits long for a second attempt."""


@dataclass(frozen=True)
class Verdict:
    """What became of a pod: its node and cards, or the event that says why not."""

    node: str = ""
    cards: tuple[str, ...] = ()
    event: str = ""


@dataclass
class World:
    """One namespace of one cluster, with an extender and, mostly, a kube-scheduler."""

    plane: ControlPlane
    extender: Extender
    kubelet: StandInKubelet
    scheduler: Scheduler | None = None
    scheduler_name: str = "default-scheduler"
    namespace: str = "default"
    nodes: set[str] = field(default_factory=set)

    @property
    def rest(self) -> Rest:
        return self.plane.rest

    def node(
        self, name: str, *units: int, uuids: Sequence[str] = (), pods: int = 400
    ) -> None:
        """Add a node with one card for each number of units, and wait until it counts.

        The first card is ``<name>-0``, unless the UUIDs are given.
        """
        names = uuids or [f"{name}-{index}" for index in range(len(units))]
        cards = [
            Card(CardUUID(uuid), index, each)
            for index, (uuid, each) in enumerate(zip(names, units, strict=True))
        ]
        self.raw_node(name, sum(units), len(units), encode_cards(cards), pods)

    def raw_node(
        self, name: str, units: int, cards: int, text: str | None, pods: int = 400
    ) -> None:
        """Add a node with this annotation, broken or not, or None for one without."""
        annotations = {} if text is None else {CARDS: text}
        cores = 100 * cards
        post_node(
            self.rest,
            name,
            units=units,
            cores=cores,
            pods=pods,
            annotations=annotations,
        )
        self.nodes.add(name)
        wait_until(lambda: name in self.known_nodes(), f"node {name} in the ledger")

    def known_nodes(self) -> set[str]:
        """Ask the extender which nodes it knows: to wait for, never to assert."""
        snapshot = self.extender.rest.must("GET", "/snapshot")
        return {node["name"] for node in snapshot["nodes"]}

    def known_pods(self) -> set[str]:
        """Ask the extender whose pods have cards, by UID: to wait for, as above."""
        snapshot = self.extender.rest.must("GET", "/snapshot")
        return {pod["uid"] for node in snapshot["nodes"] for pod in node["pods"]}

    def pod(
        self,
        name: str,
        units: int | str | None = None,
        cores: int | str | None = None,
        *,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        priority_class: str = "",
    ) -> Json:
        """Describe a pod for our scheduler; None leaves a resource out, 0 names it."""
        spec: Json = {"schedulerName": self.scheduler_name}
        if priority_class:
            spec["priorityClassName"] = priority_class
        a_pod = pod(
            name, self.namespace, spec=spec, annotations=annotations, labels=labels
        )
        requests = a_pod["spec"]["containers"][0]["resources"]["requests"]
        for resource, amount in ((MEMORY, units), (CORE, cores)):
            if amount is not None:
                requests[resource] = str(amount)
        return a_pod

    def post(
        self,
        name: str,
        units: int | str | None = None,
        cores: int | str | None = None,
        **more: Any,
    ) -> Json:
        """Create such a pod, and do not wait."""
        return post(self.rest, self.pod(name, units, cores, **more))

    def runs(
        self,
        name: str,
        units: int | str | None = None,
        cores: int | str | None = None,
        **more: Any,
    ) -> str:
        """Create a pod, insist that it is placed, and give its only card."""
        verdict = self.verdict(self.post(name, units, cores, **more))
        assert verdict.node, f"{name} should run, but: {verdict.event}"
        (card,) = verdict.cards
        return card

    def verdict(self, a_pod: Json, timeout_s: float = 120.0) -> Verdict:
        """Wait until kube-scheduler has bound the pod or said why it cannot."""
        name = a_pod["metadata"]["name"]
        return wait_until(
            lambda: self._verdict(a_pod),
            f"verdict on {name}",
            timeout_s,
            accept=_is_final,
        )

    def bound(self, a_pod: Json, timeout_s: float = 120.0) -> Verdict:
        """Wait until the pod is bound, however often it was refused before."""
        bound = wait_until(
            lambda: read_pod(self.rest, a_pod),
            f"node for {a_pod['metadata']['name']}",
            timeout_s,
            accept=lambda seen: bool(node_of(seen)),
        )
        return Verdict(node_of(bound), cards_of(bound))

    def pods(self) -> list[Json]:
        return self.rest.items(f"/api/v1/namespaces/{self.namespace}/pods")

    def messages(self, a_pod: Json) -> list[str]:
        """Give the texts of the pod's FailedScheduling events, the oldest first."""
        events = events_of(self.rest, a_pod)
        failed = [event for event in events if event["reason"] == "FailedScheduling"]
        return [event["message"] for event in failed]

    def attempts(self) -> int:
        """Count kube-scheduler's decisions that a pod cannot be placed."""
        assert self.scheduler is not None
        counter = r"scheduler_schedule_attempts_total"
        pattern = counter + r'\{.*result="unschedulable".*\} (\S+)'
        samples = re.findall(pattern, self.scheduler.metrics())
        return sum(int(float(number)) for number in samples)

    def delete(self, a_pod: Json) -> None:
        metadata = a_pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self.rest.must("DELETE", path)

    def _verdict(self, a_pod: Json) -> Verdict:
        now = read_pod(self.rest, a_pod)
        if node := node_of(now):
            return Verdict(node, cards_of(now))
        refusals = [text for text in self.messages(a_pod) if self._counts(text)]
        return Verdict(event=refusals[-1] if refusals else "")

    def _counts(self, text: str) -> bool:
        """Tell whether kube-scheduler had heard of all our nodes by then."""
        number = re.match(r"0/(\d+) nodes", text)
        seen = int(number[1]) if number else len(self.nodes)
        return seen >= len(self.nodes) and not text.startswith("no nodes available")


def _is_final(verdict: Verdict) -> bool:
    return bool(verdict.node or verdict.event)


def card_node(rest: Rest, name: str, *units: int) -> None:
    """Add a node with one card ``<name>-<n>`` for each number of units."""
    cards = [Card(CardUUID(f"{name}-{n}"), n, each) for n, each in enumerate(units)]
    annotations = {CARDS: encode_cards(cards)}
    total = {"units": sum(units), "cores": 100 * len(units)}
    post_node(rest, name, **total, annotations=annotations)


def node_of(a_pod: Json) -> str:
    return str(a_pod.get("spec", {}).get("nodeName", ""))


def cards_of(a_pod: Json) -> tuple[str, ...]:
    """Give the cards of a pod's own placement; none where it has none."""
    return tuple(card for card, _, _ in shares_of(a_pod))


def shares_of(a_pod: Json) -> list[tuple[str, int, int]]:
    """Give card, cores and units of each share, read without our own code."""
    text = a_pod["metadata"].get("annotations", {}).get(PLACEMENT)
    if text is None:
        return []
    placement = json.loads(text)
    assert placement["v"] == 1
    assert placement["uid"] == a_pod["metadata"]["uid"]
    return [(s["card"], s["cores"], s["units"]) for s in placement["shares"]]


@contextmanager
def beside(
    plane: ControlPlane,
    name: str = "default-scheduler",
    scheduler: SchedulerSettings = EAGER,
    part: str = "only",
    **settings: str,
) -> Iterator[World]:
    """Run an extender, a kube-scheduler that asks it, and a stand-in kubelet.

    ``name`` is what pods give as ``schedulerName``, so that several may run at a time;
    ``part`` tells several of one name apart.
    """
    chosen = replace(scheduler, profile={"schedulerName": name})
    with (
        extender(plane, f"{name}-{part}-extender", **settings) as ext,
        plane.start_scheduler(
            f"{name}-{part}", extender_url=ext.url, settings=chosen
        ) as process,
        StandInKubelet(plane.rest) as kubelet,
    ):
        yield World(plane, ext, kubelet, process, name)


def post_all(world: World, pods: Sequence[Json]) -> list[Json]:
    """Create many pods as fast as the API server takes them."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda each: post(world.rest, each), pods))
