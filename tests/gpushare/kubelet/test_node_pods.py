"""The pods of this node by the watch and by requests, and events about them.

kubelet's own list of who holds what, asked with patience and a deadline.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import cast
from unittest.mock import DEFAULT, Mock

import grpc
import pytest

from gpushare.domain.model import Amount
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind, ListPage, WatchEvent
from gpushare.kube.errors import ClusterError, Forbidden, Unavailable
from gpushare.kube.proto import podresources_pb2 as pb
from gpushare.kubelet import node_pods
from gpushare.kubelet.node_pods import (
    COMPONENT,
    EventRecorder,
    KubeletSilentError,
    NodePods,
    PodResources,
)
from gpushare.kubelet.pods import NodePod, pod_known_to_kubelet, read_node_pod
from gpushare.kubelet.services import POD_RESOURCES, add_servicer
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import event, page, pod_json
from tests.deviceplugin.node_fixture import NODE
from tests.gpushare.cards.nvml_fixture import Clock
from tests.testbed.waiting import wait_until

NAME = ("default", "a")


def here(name: str = "a", uid: str = "", **how: object) -> Json:
    return pod_json(name, uid=uid, units=1, node=NODE, **how)  # type: ignore[arg-type]


@pytest.fixture
def pods() -> NodePods:
    return NodePods(Embedded(), NODE)


def uids(pods: NodePods) -> list[str]:
    return sorted(pod.uid for pod in pods.all())


def test_a_list_replaces_all_but_what_was_fetched_meanwhile(pods: NodePods) -> None:
    pods.replace(iter([page(here("a")), page(here("gone"))]))

    def pages() -> Iterator[ListPage]:
        pods.apply(event("ADDED", here("b")))
        yield page(here("a"))
        yield page(here("c"))

    pods.replace(pages())
    assert uids(pods) == ["uid-a", "uid-b", "uid-c"]
    assert pods.find(("default", "gone")) is None


ADDED, DELETED = event("ADDED", here()), event("DELETED", here())


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([ADDED, event("MODIFIED", here(terminating=True))], ["uid-a"]),
        ([ADDED, event("MODIFIED", here(phase="Succeeded"))], []),
        ([ADDED, event("MODIFIED", here(phase="Failed"))], []),
        # An answer may be older than what the watch has told meanwhile.
        ([ADDED, DELETED, event("MODIFIED", here())], []),
        ([ADDED, DELETED, event("ADDED", here(uid="second"))], ["second"]),
    ],
)
def test_events(pods: NodePods, events: list[WatchEvent], left: list[str]) -> None:
    for change in events:
        pods.apply(change)
    assert uids(pods) == left


def test_the_newest_of_a_name(pods: NodePods) -> None:
    for what, uid, left in (
        ("ADDED", "first", "first"),
        ("ADDED", "second", "second"),
        ("DELETED", "first", "second"),
        ("DELETED", "second", ""),
    ):
        pods.apply(event(what, here(uid=uid)))  # type: ignore[arg-type]
        assert found(pods.wait_for(NAME, 0)) == left


def found(pod: NodePod | None) -> str:
    return "" if pod is None else pod.uid


def test_a_pod_that_cannot_be_read_is_passed_over(
    pods: NodePods, caplog: pytest.LogCaptureFixture
) -> None:
    broken = here("b")
    broken["spec"] = {"containers": 5}
    pods.replace(iter([page(broken, here("a"))]))
    assert uids(pods) == ["uid-a"]
    assert caplog.messages == ["pod not understood"]


def test_a_pod_is_fetched(pods: NodePods) -> None:
    cluster = cast("Embedded", pods._cluster)
    assert pods.fetch(NAME) is None
    cluster.create(Kind.PODS, pod_json("a", units=1))
    assert pods.fetch(NAME) is None
    made = cluster.create(Kind.PODS, here("b"))
    assert found(pods.fetch(("default", "b"))) == made["metadata"]["uid"]
    assert len(pods.all()) == 1


def test_without_an_answer_the_watch_has_to_do() -> None:
    cluster = Mock(get=Mock(side_effect=Unavailable("no answer")))
    pods = NodePods(cluster, NODE)
    pods.apply(event("ADDED", here()))
    with pytest.raises(ClusterError):
        pods.fetch(NAME)
    assert found(pods.fetch_or_find(NAME)) == "uid-a"


def test_what_has_ended_is_remembered_within_bounds(pods: NodePods) -> None:
    for number in range(2100):
        pods.apply(event("DELETED", here(uid=f"u{number}")))
    assert len(pods._ended) == 2000
    assert "u2099" in pods._ended


def test_a_request_that_cannot_be_met() -> None:
    assert names.MEMORY in read_node_pod(pod_json(units="1.5", cores=1)).why_refused()


POD = read_node_pod(pod_json("a", units=1))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> EventRecorder:
    monkeypatch.setattr(node_pods, "_LOOK_S", 0.02)
    cluster = Embedded()
    cluster.create(Kind.PODS, pod_json("a", units=1))
    return EventRecorder(cluster, "n", Clock())


def written(recorder: EventRecorder) -> list[tuple[str, str]]:
    """Let it write all that waits, and read the events."""
    stop = Event()
    thread = Thread(target=recorder.run, args=(stop,))
    thread.start()
    wait_until(recorder._queue.empty, "the end of the queue")
    stop.set()
    thread.join()
    found = recorder.cluster.list_page(Kind.EVENTS, limit=5000).items
    source = {"component": COMPONENT, "host": "n"}
    assert {(event["source"] == source, event["type"]) for event in found} <= {
        (True, "Warning")
    }
    return [(event["reason"], event["message"]) for event in found]


def test_the_same_words_once_a_minute(
    recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Others at once. Of a pod that only kubelet knows there is no event."""
    other = read_node_pod(pod_json("a", uid="second", units=1))
    static = pod_known_to_kubelet(("d", "static"), Amount(1))
    clock = recorder.clock = Clock(0)
    for clock.now in (0, 1, 59.9, 60, 61, 119, 121):
        recorder.warn(POD, "VcudaWaiting", "no room")
    recorder.warn(POD, "VcudaWaiting", "less room")
    recorder.warn(POD, "VcudaDenied", "no room")
    recorder.warn(other, "VcudaDenied", "no room")
    recorder.warn(static, "VcudaDenied", "no room")
    assert caplog.messages == ["VcudaWaiting"] * 4 + ["VcudaDenied"] * 3
    assert len(written(recorder)) == 6
    clock.now += 60
    recorder.warn(POD, "VcudaWaiting", "no room")
    assert len(recorder._written_at) == 1


def test_too_many_keep_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_pods, "_MOST_WAITING", 2)
    recorder = EventRecorder(Embedded(), "n", Clock())
    for number in range(4):
        recorder.warn(POD, "VcudaWaiting", str(number))
    assert caplog.messages.count("too many events waiting") == 2


def test_an_error_costs_one_event(
    recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    refuse = Mock(wraps=recorder.cluster.event)
    refuse.side_effect = [Forbidden("no right to it"), DEFAULT]
    recorder.cluster.event = refuse  # type: ignore[method-assign]
    recorder.warn(POD, "VcudaWaiting", "one")
    recorder.warn(POD, "VcudaWaiting", "two")
    assert written(recorder) == [("VcudaWaiting", "two")]
    [told] = [line for line in caplog.records if line.message == "event not written"]
    assert told.because == "no right to it"  # type: ignore[attr-defined]


M, C = names.MEMORY, names.CORE
FOREVER_S = 60.0


def pod(name: str, **containers: list[tuple[str, str]]) -> pb.PodResources:
    """Of each container, resource and id of its devices, one entry an id."""
    return pb.PodResources(
        namespace="default",
        name=name,
        containers=[
            pb.ContainerResources(
                name=container,
                devices=[
                    pb.ContainerDevices(resource_name=resource, device_ids=[text])
                    for resource, text in held
                ],
            )
            for container, held in containers.items()
        ],
    )


class Lister:
    """A kubelet that is busy as often as it is told to be."""

    def __init__(self) -> None:
        self.pods = [pod("a", main=[(M, "m1"), (C, "c1"), (M, "m2"), ("x/y", "z")])]
        self.busy = 0
        self.code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def answer(self, context: grpc.ServicerContext) -> None:
        if self.busy:
            self.busy -= 1
            context.abort(self.code, "rejected by rate limit")

    def List(  # noqa: N802
        self, request: pb.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> pb.ListPodResourcesResponse:
        self.answer(context)
        return pb.ListPodResourcesResponse(pod_resources=self.pods)


class WithGet(Lister):
    """One since 1.34."""

    def Get(  # noqa: N802
        self, request: pb.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> pb.GetPodResourcesResponse:
        self.answer(context)
        for pod in self.pods:
            if pod.name == request.pod_name:
                return pb.GetPodResourcesResponse(pod_resources=pod)
        context.abort(grpc.StatusCode.UNKNOWN, "not found")
        raise AssertionError


Serve = Callable[[Lister], PodResources]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(lister: Lister) -> PodResources:
            server = grpc.server(ThreadPoolExecutor(2))
            add_servicer(server, POD_RESOURCES, lister)
            server.add_insecure_port(f"unix:{tmp_path / 'kubelet.sock'}")
            server.start()
            stack.callback(lambda: server.stop(None).wait())
            made = PodResources(tmp_path / "kubelet.sock")
            stack.callback(made.close)
            return made

        yield start


HELD = {"main": {M: {"m1", "m2"}, C: {"c1"}}}


def test_each_container_with_what_it_holds_of_ours(serve: Serve) -> None:
    lister = Lister()
    lister.pods.append(pod("b", x=[], y=[("x/y", "z")]))
    listed = serve(lister).list(FOREVER_S)
    assert listed.pods == {NAME: HELD, ("default", "b"): {"x": {}, "y": {}}}
    assert listed.holder == dict.fromkeys(("m1", "m2", "c1"), NAME)
    assert listed.held_by(("default", "none")) == {}


def test_what_changed_is_read_again(serve: Serve) -> None:
    lister = Lister()
    resources = serve(lister)
    first = resources.list(FOREVER_S)
    lister.pods.append(pod("b", main=[(M, "m3")]))
    second = resources.list(FOREVER_S)
    assert second.held_by(NAME) is first.held_by(NAME)
    lister.pods[0] = pod("a", main=[(M, "m9")])
    third = resources.list(FOREVER_S)
    assert third.held_by(NAME) == {"main": {M: {"m9"}}}
    assert third.held_by(("default", "b")) == {"main": {M: {"m3"}}}
    lister.pods.clear()
    assert resources.list(FOREVER_S).pods == {}


def test_a_busy_kubelet_is_asked_again(serve: Serve) -> None:
    """It answers 100 questions a second, of all its clients together."""
    lister = WithGet()
    lister.busy = 3
    resources = serve(lister)
    assert resources.list(FOREVER_S).held_by(NAME) == HELD
    lister.busy = 3
    assert resources.get(NAME, FOREVER_S) == HELD


def test_a_kubelet_that_stays_busy(serve: Serve) -> None:
    lister = Lister()
    resources = serve(lister)
    # To be connected takes a busy machine longer than what it is given here.
    resources.list(FOREVER_S)
    lister.busy = 10**6
    with pytest.raises(KubeletSilentError, match="RESOURCE_EXHAUSTED: rejected by"):
        resources.list(0.5)
    lister.code = grpc.StatusCode.INTERNAL
    with pytest.raises(KubeletSilentError, match="INTERNAL"):
        resources.list(FOREVER_S)


@pytest.mark.parametrize(
    ("lister", "name", "found"),
    [(WithGet(), "a", HELD), (WithGet(), "none", None), (Lister(), "a", None)],
    ids=["there", "not-there", "before-1.34"],
)
def test_one_pod(serve: Serve, lister: Lister, name: str, found: object) -> None:
    """None where kubelet cannot tell: then its list has to do."""
    assert serve(lister).get(("default", name), FOREVER_S) == found
