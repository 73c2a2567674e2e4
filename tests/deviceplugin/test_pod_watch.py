"""The pods of this node by the watch and by requests, and events about them."""

import logging
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from deviceplugin.pod_watch import COMPONENT, EventRecorder, NodePods
from deviceplugin.pods import NodePod, node_pod, pod_known_to_kubelet
from gpushare.domain.model import Amount
from gpushare.domain.request import Role
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind, Page, Target
from gpushare.kube.errors import ClusterError, Forbidden, Unavailable
from gpushare.kube.json_reader import Malformed
from tests.builders import container_json, event, page, pod_json
from tests.deviceplugin.admission_fixture import seen
from tests.deviceplugin.node_fixture import NODE

NAME = ("default", "a")


class Away(Embedded):
    """An API server that does not answer."""

    def get(self, *_: object) -> Json:
        raise Unavailable("no answer")


def here(name: str = "a", uid: str = "", **how: object) -> Json:
    return pod_json(name, uid=uid, units=1, node=NODE, **how)  # type: ignore[arg-type]


@pytest.fixture
def pods() -> NodePods:
    return NodePods(Embedded(), NODE)


def uids(pods: NodePods) -> list[str]:
    return sorted(pod.uid for pod in pods.all())


def test_a_list_replaces_all(pods: NodePods) -> None:
    """Over its pages; who is not in it has ended."""
    pods.replace(iter([page(here("a")), page(here("b"))]))
    assert uids(pods) == ["uid-a", "uid-b"]
    pods.replace(iter([page(here("b"), here("c"))]))
    assert uids(pods) == ["uid-b", "uid-c"]
    assert pods.find(NAME) is None


def test_events(pods: NodePods) -> None:
    """Each is taken over."""
    pods.apply(event("ADDED", here()))
    pods.apply(event("MODIFIED", here(annotations={"x": "y"})))
    assert uids(pods) == ["uid-a"]
    pods.apply(event("DELETED", here()))
    assert uids(pods) == []


def test_a_pod_that_was_fetched_during_a_list(pods: NodePods) -> None:
    """It is younger than the list, and stays."""
    pods.replace(iter([page(here("a"))]))

    def pages() -> Iterator[Page]:
        pods.apply(event("ADDED", here("b")))
        yield page(here("a"))

    pods.replace(pages())
    assert uids(pods) == ["uid-a", "uid-b"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_ends_with_its_phase(pods: NodePods, phase: str) -> None:
    """Its object may stay for days. A terminating one has not ended."""
    pods.apply(event("ADDED", here()))
    pods.apply(event("MODIFIED", here(terminating=True)))
    assert uids(pods) == ["uid-a"]
    pods.apply(event("MODIFIED", here(phase=phase)))
    assert uids(pods) == []


def test_what_was_read_before_the_end_comes_too_late(pods: NodePods) -> None:
    """An answer may be older than what the watch has told meanwhile."""
    pods.apply(event("ADDED", here()))
    pods.apply(event("DELETED", here()))
    pods.apply(event("MODIFIED", here()))
    assert uids(pods) == []
    pods.apply(event("ADDED", here(uid="second")))
    assert uids(pods) == ["second"]


def test_the_newest_of_a_name(pods: NodePods) -> None:
    """Made again while the old one still ends, and after it has."""
    pods.apply(event("ADDED", here(uid="first")))
    pods.apply(event("ADDED", here(uid="second")))
    assert found(pods.find(NAME)) == "second"
    pods.apply(event("DELETED", here(uid="first")))
    assert found(pods.find(NAME)) == "second"
    pods.apply(event("DELETED", here(uid="second")))
    assert pods.find(NAME) is None


def found(pod: NodePod | None) -> str:
    assert pod is not None
    return pod.uid


def test_a_pod_that_cannot_be_read_is_passed_over(
    pods: NodePods, caplog: pytest.LogCaptureFixture
) -> None:
    """Others are served; the log names it."""
    broken = here("b")
    broken["spec"] = {"containers": 5}
    pods.replace(iter([page(broken, here("a"))]))
    assert uids(pods) == ["uid-a"]
    assert caplog.messages == ["pod not understood"]


def test_who_waits_for_a_pod_is_woken(pods: NodePods) -> None:
    """kubelet's watch was faster than ours."""
    waited: list[NodePod | None] = []
    thread = Thread(target=lambda: waited.append(pods.wait_for(NAME, 60)))
    thread.start()
    pods.apply(event("ADDED", here()))
    thread.join()
    assert [found(one) for one in waited] == ["uid-a"]
    assert pods.wait_for(("default", "none"), 0.01) is None


def test_a_pod_is_fetched(pods: NodePods) -> None:
    """Only one of this node; and then it is known."""
    cluster = pods._cluster
    assert isinstance(cluster, Embedded)
    assert pods.fetch(NAME) is None
    cluster.create(Kind.PODS, pod_json("a", units=1))
    assert pods.fetch(NAME) is None
    made = cluster.create(Kind.PODS, here("b"))
    assert found(pods.fetch(("default", "b"))) == made["metadata"]["uid"]
    assert len(pods.all()) == 1


def test_without_an_answer_the_watch_has_to_do() -> None:
    """``fetch`` raises, ``fresh`` goes by what is known."""
    pods = NodePods(Away(), NODE)
    pods.apply(event("ADDED", here()))
    with pytest.raises(ClusterError):
        pods.fetch(NAME)
    assert found(pods.fetch_or_find(NAME)) == "uid-a"
    assert pods.fetch_or_find(("default", "b")) is None


def test_what_has_ended_is_remembered_within_bounds(pods: NodePods) -> None:
    """A node that lives for years does not fill up."""
    for number in range(2100):
        pods.apply(event("DELETED", here(uid=f"u{number}")))
    assert len(pods._ended) == 2000
    assert "u2099" in pods._ended


def test_what_a_pod_asks_in_kubelets_order() -> None:
    """Init containers first; who asks nothing of us is left out."""
    pod = node_pod(
        pod_json(
            containers=[container_json("x"), container_json("y", 2)],
            init=[
                container_json("once", 3, 1),
                container_json("side", cores=4, restart="Always"),
            ],
        )
    )
    assert [(one.name, one.role, one.amount) for one in pod.gpu_containers] == [
        ("once", Role.INIT, Amount(1, 3)),
        ("side", Role.SIDECAR, Amount(4, 0)),
        ("y", Role.APP, Amount(0, 2)),
    ]
    assert pod.why_refused() == ""


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (pod_json(units=1, cores=150), "ask 100 or 200"),
        (pod_json(units="1.5", cores=1), names.MEMORY),
    ],
)
def test_a_request_that_cannot_be_met(pod: Json, words: str) -> None:
    """The pod is known, and what is wrong with it."""
    assert words in node_pod(pod).why_refused()


def test_a_pod_without_a_name_is_malformed() -> None:
    """No API server sends one."""
    with pytest.raises(Malformed):
        node_pod({"metadata": {}, "spec": {"containers": []}})


def test_a_pod_of_which_only_kubelet_knows() -> None:
    """It asks what kubelet asks for it; its UID is empty."""
    pod = pod_known_to_kubelet(NAME, Amount(3, 0))
    assert (pod.uid, pod.name, pod.placement) == ("", NAME, None)
    assert [one.amount for one in pod.gpu_containers] == [Amount(3, 0)]


POD = seen(pod_json("a", units=1))


class Failing(Embedded):
    """Refuses the first event."""

    failed = False

    def event(self, pod: Target, **words: str) -> None:
        if not self.failed:
            self.failed = True
            raise Forbidden("no right to it")
        super().event(pod, **words)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def cluster() -> Embedded:
    made = Embedded()
    made.create(Kind.PODS, pod_json("a", units=1))
    return made


def written(recorder: EventRecorder, cluster: Embedded) -> list[tuple[str, str]]:
    """Let it write all that waits, and read the events."""
    stop = Event()
    thread = Thread(target=recorder.run, args=(stop,))
    thread.start()
    while not recorder._queue.empty():
        Event().wait(0.01)
    stop.set()
    thread.join()
    found = cluster.list_page(Kind.EVENTS, limit=5000).items
    for one in found:
        assert one["source"] == {"component": COMPONENT, "host": "n"}
    assert {one["type"] for one in found} <= {"Warning"}
    return [(one["reason"], one["message"]) for one in found]


def test_the_same_words_once_a_minute(
    cluster: Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    """kubelet asks again every few seconds; the log is as quiet as the events."""
    clock = Clock()
    recorder = EventRecorder(cluster, "n", clock, look_s=0.02)
    for now in (0, 1, 59.9, 60, 61, 119, 121):
        clock.now = now
        recorder.warn(POD, "VcudaWaiting", "no room")
    assert caplog.messages == ["VcudaWaiting"] * 3
    assert written(recorder, cluster) == [("VcudaWaiting", "no room")] * 3


def test_other_words_are_another_event(cluster: Embedded) -> None:
    """As is the same about another pod or for another reason."""
    recorder = EventRecorder(cluster, "n", Clock())
    other = seen(pod_json("a", uid="second", units=1))
    recorder.warn(POD, "VcudaWaiting", "no room")
    recorder.warn(POD, "VcudaWaiting", "less room")
    recorder.warn(POD, "VcudaDenied", "no room")
    recorder.warn(other, "VcudaDenied", "no room")
    assert len(written(recorder, cluster)) == 4


def test_what_was_said_is_forgotten() -> None:
    """A node that lives for years does not fill up."""
    clock = Clock()
    recorder = EventRecorder(Embedded(), "n", clock)
    for number in range(100):
        clock.now += 10
        recorder.warn(POD, "VcudaWaiting", str(number))
    assert len(recorder._written_at) <= 6


def test_a_pod_known_to_kubelet_alone_has_a_log_line(
    cluster: Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no object to write about."""
    recorder = EventRecorder(cluster, "n", Clock())
    recorder.warn(
        pod_known_to_kubelet(("d", "static"), Amount(1)), "VcudaDenied", "no room"
    )
    assert written(recorder, cluster) == []
    assert caplog.messages == ["VcudaDenied"]


def test_too_many_do_not_keep_anybody_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the API server away, the log has to do."""
    recorder = EventRecorder(Embedded(), "n", Clock())
    for number in range(1002):
        recorder.warn(POD, "VcudaWaiting", str(number))
    assert caplog.messages.count("too many events waiting") == 2


def test_an_error_costs_one_event(caplog: pytest.LogCaptureFixture) -> None:
    """It is told, and the next ones are written."""
    caplog.set_level(logging.WARNING)
    cluster = Failing()
    recorder = EventRecorder(cluster, "n", Clock())
    recorder.warn(POD, "VcudaWaiting", "one")
    recorder.warn(POD, "VcudaWaiting", "two")
    assert written(recorder, cluster) == [("VcudaWaiting", "two")]
    [told] = [one for one in caplog.records if one.message == "event not written"]
    assert told.because == "no right to it"  # type: ignore[attr-defined]
