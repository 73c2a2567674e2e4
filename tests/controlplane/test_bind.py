"""Binds that kube-scheduler would not send, or sends twice, or too late."""

import http.client
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.controlplane.by_hand import ASK, bind, nothing_half_made
from tests.controlplane.world import World, cards_of, node_of
from tests.testbed.objects import read_pod
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

UUIDS = "baidu.com/vcuda-uuids"


def test_impossible_requests(lonely: World) -> None:
    """What is well-formed and cannot be is answered with 200 and an Error."""
    lonely.node("edge", 29)
    a_pod = lonely.post("pod", 4, 1)
    assert "no node elsewhere" in bind(lonely, a_pod, "elsewhere")
    assert "created again" in bind(lonely, a_pod, PodUID="another")
    assert "is gone" in bind(lonely, a_pod, PodName="unheard-of")
    whole_nodes = {**ASK, "NodeNames": None, "Nodes": {"items": []}}
    answer = lonely.extender.rest.must("POST", "/scheduler/filter", whole_nodes)
    assert "nodeCacheCapable" in answer["Error"]
    assert not node_of(read_pod(lonely.rest, a_pod))
    nothing_half_made(lonely)


def test_filter_and_bind_repeated(lonely: World) -> None:
    """The same filter gives the same answer; a replayed bind succeeds, no more.

    One that comes before the watch has told of the first may ask the API server, which
    refuses it.
    """
    lonely.node("edge", 29, 29)
    a_pod = lonely.post("pod", 20, 1)
    body = {**ASK, "Pod": a_pod}
    answers = [
        lonely.extender.rest.must("POST", "/scheduler/filter", body) for _ in range(3)
    ]
    assert answers == [answers[0]] * 3
    assert answers[0]["NodeNames"] == ["edge"]
    mark = lonely.plane.audit.mark()
    assert [bind(lonely, a_pod) for _ in range(3)] == ["", "", ""]
    before = read_pod(lonely.rest, a_pod)["metadata"]["annotations"]
    assert "already bound to node edge" in bind(lonely, a_pod, "other")
    assert read_pod(lonely.rest, a_pod)["metadata"]["annotations"] == before
    calls = lonely.plane.audit.calls(mark)
    bindings = [call.status for call in calls if call.resource == "pods/binding"]
    assert bindings[0] == 201
    assert set(bindings[1:]) <= {409}
    nothing_half_made(lonely)


def test_bind_places_what_filter_judged(lonely: World) -> None:
    """kube-scheduler's copy of the pod, which may be newer than the one in our book.

    Here it is newer than the API server's own, which no other copy can be.
    """
    uuids = ("GPU-aaaaaaaa-1", "GPU-bbbbbbbb-2")
    lonely.node("edge", 29, 29, uuids=uuids)
    a_pod = lonely.post("pod", 20, 1, annotations={UUIDS: "GPU-aaaaaaaa"})
    wait_until(lambda: a_pod["metadata"]["uid"] in pending(lonely), "pod in the books")
    a_pod["metadata"]["annotations"] = {UUIDS: "GPU-bbbbbbbb"}
    filtered(lonely, a_pod)
    assert bind(lonely, a_pod) == ""
    assert cards_of(read_pod(lonely.rest, a_pod)) == uuids[1:]
    nothing_half_made(lonely)


def test_bind_after_deletion(lonely: World) -> None:
    """A pod that is gone, or made again under its name, is not bound."""
    lonely.node("edge", 29)
    gone = lonely.post("pod", 20, 1)
    lonely.delete(gone)
    assert bind(lonely, gone)
    again = lonely.post("pod", 20, 1)
    assert bind(lonely, gone)
    assert not node_of(read_pod(lonely.rest, again))
    assert bind(lonely, again) == ""
    nothing_half_made(lonely)


def test_last_room_goes_to_one(lonely: World) -> None:
    """Of eight binds at once for room for three, three win; the others are told why."""
    lonely.node("edge", 29, 13)
    pods = [lonely.post(f"pod-{n}", 12, 1) for n in range(8)]
    with ThreadPoolExecutor(len(pods)) as pool:
        errors = list(pool.map(lambda each: bind(lonely, each), pods))
    assert errors.count("") == 3
    full = "Insufficient baidu.com/vcuda-memory on one card"
    assert {error for error in errors if error} == {full}
    nothing_half_made(lonely)


def test_sigterm_answers_what_is_in_flight(lonely: World) -> None:
    """A bind that waits for the API server is answered before the process ends."""
    lonely.node("edge", 29)
    a_pod = lonely.post("pod", 20, 1)
    filtered(lonely, a_pod)
    assert lonely.extender.process is not None
    with ThreadPoolExecutor(1) as pool:
        lonely.plane.kill("kube-apiserver", signal.SIGSTOP)
        try:
            error = pool.submit(bind, lonely, a_pod)
            wait_until(
                lambda: lonely.extender.metrics()["vcuda_extender_reservations"],
                "reservation",
            )
            lonely.extender.process.send(signal.SIGTERM)
            wait_until(lambda: not open_for_others(lonely), "closed door")
        finally:
            lonely.plane.kill("kube-apiserver", signal.SIGCONT)
        assert error.result(timeout=20) == ""
    assert lonely.extender.process.popen.wait(timeout=20) == 0
    assert cards_of(read_pod(lonely.rest, a_pod)) == ("edge-0",)
    lonely.extender.start()
    nothing_half_made(lonely)


def filtered(lonely: World, a_pod: Json) -> None:
    """Have a pod let through to edge, as comes before its bind."""
    asked = {**ASK, "Pod": a_pod}
    answer = lonely.extender.rest.must("POST", "/scheduler/filter", asked)
    assert answer["NodeNames"] == ["edge"]


def pending(lonely: World) -> set[str]:
    snapshot = lonely.extender.rest.must("GET", "/snapshot")
    return {pod["uid"] for pod in snapshot["pending"]}


def open_for_others(lonely: World) -> bool:
    """Tell whether a new connection is answered soon."""
    port = lonely.extender.port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=0.3)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
