"""Events about pods: each once a minute, and never in anybody's way."""

import logging
from threading import Event, Thread

import pytest

from deviceplugin.pod_watch import COMPONENT, EventRecorder
from deviceplugin.pods import pod_known_to_kubelet
from gpushare.domain.model import Amount
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube.cluster import Kind, Target
from gpushare.kube.errors import Forbidden
from tests.builders import pod_json
from tests.deviceplugin.shapes import seen

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
