"""The stand-in scheduler, with the answers of an extender that a test gives."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Kind, PodTarget
from gpushare.settings import Address
from gpusharectl.demo.fakeapi.cluster import Embedded
from gpusharectl.demo.kubelet import device_amounts, node_body
from gpusharectl.demo.scheduler import StandInScheduler
from tests.builders import pod_json
from tests.gpusharectl.demo.rounds import Rounds

NO_ROOM = "Insufficient baidu.com/vcuda-memory on one card"
TOTALS = "Insufficient baidu.com/vcuda-memory"
TO_N = "Successfully assigned default/pod to n"


class World(StandInScheduler):
    """A cluster, its scheduler, and the extender, which remembers what it was asked."""

    def __init__(self) -> None:
        self.cluster = Embedded()
        super().__init__(self.cluster, Address("127.0.0.1", 1))
        self.calls: list[tuple[str, Any]] = []
        self.refused: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.scores: dict[str, int] = {}

    def _ask(self, verb: str, args: Mapping[str, Any]) -> Any:
        self.calls.append((verb, args))
        error = self.errors.get(verb, "")
        if verb == "filter":
            kept = [name for name in args["NodeNames"] if name not in self.refused]
            return {
                "NodeNames": [] if error else kept,
                "FailedNodes": {},
                "FailedAndUnresolvableNodes": self.refused,
                "Error": error,
            }
        if verb == "prioritize":
            return [{"Host": n, "Score": score} for n, score in self.scores.items()]
        if not error:
            target = PodTarget(args["PodNamespace"], args["PodName"], args["PodUID"])
            self.cluster.bind(target, args["Node"], {})
        return {"Error": error}

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.calls]

    def nodes(self, **units: int) -> None:
        for name, size in units.items():
            has = {names.CORE: 100, names.MEMORY: size}
            body = node_body(name)
            self.cluster.create(Kind.NODES, body | {"status": device_amounts(has, has)})

    def pod(self, name: str = "pod", rounds: int = 1, **how: Any) -> list[str]:
        """Create a pod; return its events after the scheduler has looked."""
        self.cluster.create(Kind.PODS, pod_json(name, **how))
        return self.look(name, rounds)

    def look(self, name: str = "pod", rounds: int = 1) -> list[str]:
        self.run(Rounds(rounds))
        items = self.cluster.list_page(Kind.EVENTS, limit=0).items
        # A list is in the order of names, which are random.
        events = sorted(items, key=lambda e: int(e["metadata"]["resourceVersion"]))
        return [e["message"] for e in events if e["involvedObject"]["name"] == name]

    def node_of(self, name: str = "pod") -> str:
        pod = self.cluster.get(Kind.PODS, "default", name)
        return str(pod["spec"].get("nodeName", ""))


@pytest.fixture
def world() -> World:
    return World()


def test_a_pod_is_filtered_scored_and_bound(world: World) -> None:
    world.nodes(n=29, m=29, full=1)
    world.scores = {"m": 7}
    assert world.pod(units=20) == ["Successfully assigned default/pod to m"]
    assert world.node_of() == "m"
    assert world.verbs() == ["filter", "prioritize", "bind"]
    asked = world.calls[0][1]
    assert (asked["NodeNames"], asked["Nodes"]) == (["m", "n"], None)
    assert asked["Pod"]["metadata"]["name"] == "pod"


def test_the_diagnosis_is_counted_and_sorted(world: World) -> None:
    assert world.pod("none", units=20) == ["0/0 nodes are available."]
    world.cluster.delete(Kind.PODS, "default", "none")
    world.nodes(n0=29, n1=29, n2=29, small=1, tiny=2)
    world.refused = {"n0": NO_ROOM, "n1": "No shared cards", "n2": NO_ROOM}
    assert world.pod(units=20) == [
        f"0/5 nodes are available: 1 No shared cards, 2 {TOTALS}, 2 {NO_ROOM}."
    ]


def test_all_that_a_total_lacks_is_said(world: World) -> None:
    """Of a pod at its peak, which may be an init container's."""
    world.nodes(n=4)
    body = pod_json("early")
    first = {"name": "first", "resources": {"limits": {names.MEMORY: "4"}}}
    body["spec"]["initContainers"] = [first]
    world.cluster.create(Kind.PODS, body)
    assert world.look("early") == ["Successfully assigned default/early to n"]
    short = f"1 Insufficient {names.CORE}, 1 {TOTALS}"
    assert world.pod(units=1, cores=101) == [f"0/1 nodes are available: {short}."]


def test_a_node_or_a_pod_that_says_little_stops_nothing(world: World) -> None:
    """Somebody has created them with kubectl, perhaps without a status."""
    world.cluster.create(Kind.NODES, node_body("bare"))
    odd = node_body("odd") | {"status": {"allocatable": {names.MEMORY: "many"}}}
    world.cluster.create(Kind.NODES, odd)
    short = f"0/2 nodes are available: 2 {TOTALS}."
    assert world.pod("first", units="1k") == [short]
    world.nodes(n=29)
    assert world.pod(units=20) == [TO_N]


def test_a_pod_that_failed_holds_nothing(world: World) -> None:
    """Nor does kube-scheduler count it (contracts 6), nor score one node (1.4)."""
    world.nodes(n=29)
    world.pod("failed", units=20)
    assert world.pod("late", units=20) == [f"0/1 nodes are available: 1 {TOTALS}."]
    assert world.verbs() == ["filter", "bind"]
    body = {"status": {"phase": "Failed"}}
    world.cluster.patch(Kind.PODS, "default", "failed", body, subresource="status")
    assert world.pod(units=20) == [TO_N]


def test_a_pod_that_is_not_ours_goes_past_the_extender(world: World) -> None:
    """As with managedResources; the stand-in binds it itself."""
    world.nodes(n=29)
    assert world.pod() == [TO_N]
    assert world.calls == []


@pytest.mark.parametrize("verb", ["filter", "bind"])
def test_an_error_becomes_the_event(world: World, verb: str) -> None:
    """It is tried again and again, but only news is written."""
    world.nodes(n=29)
    world.errors = {verb: "not ready"}
    assert world.pod(units=20, rounds=12) == ["not ready"]
    assert world.verbs().count(verb) > 1
    assert world.node_of() == ""
    world.errors = {}
    assert world.look(rounds=12) == ["not ready", TO_N]


def test_a_pod_that_is_being_deleted_is_left_alone(world: World) -> None:
    world.nodes(n=29)
    world.pod("old", units=20)
    world.cluster.delete(Kind.PODS, "default", "old")
    world.calls.clear()
    world.pod("new", units=4)
    assert {args["Pod"]["metadata"]["name"] for _, args in world.calls[:1]} == {"new"}
    assert world.verbs() == ["filter", "bind"]
