"""The stand-in scheduler, against a stub of the extender."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import pytest

from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind, Target
from gpushare.settings import Address
from gpusharectl.demo.kubelet import amounts, node_body
from gpusharectl.demo.scheduler import StandInScheduler
from tests.builders import pod_json
from tests.testbed.waiting import wait_until

NO_ROOM = "Insufficient baidu.com/vcuda-memory on one card"
TOTALS = "Insufficient baidu.com/vcuda-memory"


class Stub:
    """An extender whose answers a test gives; it remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.refused: dict[str, str] = {}
        self.error = ""
        self.bind_error = ""
        self.scores: dict[str, int] = {}
        self.bind: Callable[[Json], None] = lambda _args: None

    def answer(self, verb: str, args: Any) -> Any:
        self.calls.append((verb, args))
        if verb == "filter":
            kept = [name for name in args["NodeNames"] if name not in self.refused]
            return {
                "Nodes": None,
                "NodeNames": [] if self.error else kept,
                "FailedNodes": {},
                "FailedAndUnresolvableNodes": self.refused,
                "Error": self.error,
            }
        if verb == "prioritize":
            return [
                {"Host": name, "Score": self.scores.get(name, 0)}
                for name in args["NodeNames"]
            ]
        if not self.bind_error:
            self.bind(args)
        return {"Error": self.bind_error}

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.calls]

    @contextmanager
    def served(self) -> Iterator[Address]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                verb = self.path.removeprefix(f"{names.EXTENDER_PREFIX}/")
                answer = json.dumps(stub.answer(verb, json.loads(body))).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            yield Address("127.0.0.1", server.server_port)
            server.shutdown()
            thread.join()


class Town:
    """A cluster, a stub of an extender, and the scheduler between them."""

    def __init__(self) -> None:
        self.cluster = Embedded()
        self.stub = Stub()
        self.stub.bind = self._bind

    def nodes(self, **units: tuple[int, ...]) -> None:
        for name, sizes in units.items():
            has = {names.CORE: 100 * len(sizes), names.MEMORY: sum(sizes)}
            body = node_body(name)
            self.cluster.create(Kind.NODES, body | {"status": amounts(has, has)})

    def pod(self, name: str = "pod", **how: Any) -> None:
        self.cluster.create(Kind.PODS, pod_json(name, **how))

    def said(self, name: str = "pod") -> list[str]:
        items = self.cluster.list_page(Kind.EVENTS, limit=0).items
        # A list is in the order of names, which are random.
        events = sorted(items, key=lambda e: int(e["metadata"]["resourceVersion"]))
        return [e["message"] for e in events if e["involvedObject"]["name"] == name]

    def node_of(self, name: str = "pod") -> str:
        pod = self.cluster.get(Kind.PODS, "default", name)
        return str(pod["spec"].get("nodeName", ""))

    @contextmanager
    def scheduled(self) -> Iterator[None]:
        stop = Event()
        with self.stub.served() as address:
            scheduler = StandInScheduler(self.cluster, address)
            thread = Thread(target=scheduler.run, args=(stop,))
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()

    def until_said(self, name: str = "pod", times: int = 1) -> list[str]:
        def enough(found: list[str]) -> bool:
            return len(found) >= times

        with self.scheduled():
            return wait_until(lambda: self.said(name), "event", 10, accept=enough)

    def _bind(self, args: Json) -> None:
        target = Target(args["PodNamespace"], args["PodName"], args["PodUID"])
        self.cluster.bind(target, args["Node"], {})


@pytest.fixture
def town() -> Town:
    return Town()


def test_a_pod_is_filtered_scored_and_bound(town: Town) -> None:
    """As kube-scheduler asks; the event says where it went."""
    town.nodes(n=(29,), m=(29,), full=(1,))
    town.stub.scores = {"m": 7}
    town.pod(units=20)
    assert town.until_said() == ["Successfully assigned default/pod to m"]
    assert town.node_of() == "m"
    assert town.stub.verbs() == ["filter", "prioritize", "bind"]
    asked = town.stub.calls[0][1]
    assert asked["NodeNames"] == ["m", "n"]
    assert asked["Nodes"] is None
    assert asked["Pod"]["metadata"]["name"] == "pod"


def test_a_single_node_is_not_scored(town: Town) -> None:
    """Nor does kube-scheduler (contracts 1.4)."""
    town.nodes(n=(29,))
    town.pod(units=20)
    town.until_said()
    assert town.stub.verbs() == ["filter", "bind"]


def test_the_diagnosis_is_counted_and_sorted(town: Town) -> None:
    """Equal reasons once with their number, in the order of the text."""
    town.nodes(**{f"n{number}": (29,) for number in range(3)}, small=(1,), tiny=(2,))
    town.stub.refused = {"n0": NO_ROOM, "n1": "No shared cards", "n2": NO_ROOM}
    town.pod(units=20)
    (message,) = town.until_said()
    assert message == (
        f"0/5 nodes are available: 1 No shared cards, 2 {TOTALS}, 2 {NO_ROOM}."
    )


def test_the_totals_of_a_node_come_first(town: Town) -> None:
    """A node that is too small is never asked about."""
    town.nodes(n=(29,))
    town.pod("holds", units=20)
    town.until_said("holds")
    town.stub.calls.clear()
    town.pod(units=20)
    assert town.until_said() == [f"0/1 nodes are available: 1 {TOTALS}."]
    assert "filter" not in town.stub.verbs()


def test_a_pod_that_failed_holds_nothing(town: Town) -> None:
    """Nor does kube-scheduler count it (contracts 6)."""
    town.nodes(n=(29,))
    town.pod("failed", units=20)
    town.until_said("failed")
    body = {"status": {"phase": "Failed"}}
    town.cluster.patch(Kind.PODS, "default", "failed", body, subresource="status")
    town.pod(units=20)
    assert town.until_said() == ["Successfully assigned default/pod to n"]


def test_no_nodes_at_all(town: Town) -> None:
    """Kubernetes says it so, without reasons."""
    town.pod(units=20)
    assert town.until_said() == ["0/0 nodes are available."]


def test_a_pod_that_is_not_ours_goes_past_the_extender(town: Town) -> None:
    """As with managedResources; the stand-in binds it itself."""
    town.nodes(n=(29,))
    town.pod()
    assert town.until_said() == ["Successfully assigned default/pod to n"]
    assert town.stub.calls == []


@pytest.mark.parametrize("verb", ["filter", "bind"])
def test_an_error_becomes_the_event(town: Town, verb: str) -> None:
    """Whoever said it, and the pod stays pending."""
    town.nodes(n=(29,))
    if verb == "filter":
        town.stub.error = "not ready"
    else:
        town.stub.bind_error = "not ready"
    town.pod(units=20)
    assert town.until_said() == ["not ready"]
    assert town.node_of() == ""


def test_an_event_is_said_once_while_it_stays_the_same(town: Town) -> None:
    """It is tried again and again, but only news is written."""
    town.nodes(n=(29,))
    town.stub.error = "not ready"
    town.pod(units=20)
    with town.scheduled():
        wait_until(
            lambda: town.stub.verbs().count("filter"),
            "second try",
            accept=lambda count: count >= 2,
        )
        assert town.said() == ["not ready"]
        town.stub.error = ""
        found = wait_until(town.said, "news", accept=lambda found: len(found) == 2)
    assert found[1] == "Successfully assigned default/pod to n"


def test_a_pod_that_is_being_deleted_is_left_alone(town: Town) -> None:
    """It has a deletion timestamp, so that nobody binds it."""
    town.nodes(n=(29,))
    town.pod("old", units=20)
    town.until_said("old")
    town.cluster.delete(Kind.PODS, "default", "old")
    town.stub.calls.clear()
    town.pod("new", units=4)
    town.until_said("new")
    asked = {
        args["Pod"]["metadata"]["name"]
        for verb, args in town.stub.calls
        if verb == "filter"
    }
    assert asked == {"new"}
