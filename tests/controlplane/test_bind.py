"""Binds that kube-scheduler would not send, or sends twice, or too late."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.controlplane.by_hand import ASK, bind, nothing_half_made
from tests.controlplane.world import World, cards_of, node_of
from tests.testbed.objects import read_pod
from tests.testbed.rest import Json
from tests.testbed.waiting import wait_until

pytestmark = pytest.mark.controlplane

UUIDS = "baidu.com/vcuda-uuids"


def test_filter_and_bind_repeated(manual: World) -> None:
    """The same filter gives the same answer; a replayed bind succeeds, no more.

    One that comes before the watch has told of the first may ask the API server, which
    refuses it.
    """
    manual.node("edge", 29, 29)
    a_pod = manual.post("pod", 20, 1)
    body = {**ASK, "Pod": a_pod}
    answers = [
        manual.extender.rest.must("POST", "/scheduler/filter", body) for _ in range(3)
    ]
    assert answers == [answers[0]] * 3
    assert answers[0]["NodeNames"] == ["edge"]
    mark = manual.plane.audit.mark()
    assert [bind(manual, a_pod) for _ in range(3)] == ["", "", ""]
    before = read_pod(manual.rest, a_pod)["metadata"]["annotations"]
    assert "already bound to node edge" in bind(manual, a_pod, "other")
    assert read_pod(manual.rest, a_pod)["metadata"]["annotations"] == before
    calls = manual.plane.audit.calls(mark)
    bindings = [call.status for call in calls if call.resource == "pods/binding"]
    assert bindings[0] == 201
    assert set(bindings[1:]) <= {409}
    nothing_half_made(manual)


def test_bind_places_what_filter_judged(manual: World) -> None:
    """kube-scheduler's copy of the pod, which may be newer than the one in our book.

    Here it is newer than the API server's own, which no other copy can be.
    """
    uuids = ("GPU-aaaaaaaa-1", "GPU-bbbbbbbb-2")
    manual.node("edge", 29, 29, uuids=uuids)
    a_pod = manual.post("pod", 20, 1, annotations={UUIDS: "GPU-aaaaaaaa"})
    wait_until(lambda: a_pod["metadata"]["uid"] in pending(manual), "pod in the books")
    a_pod["metadata"]["annotations"] = {UUIDS: "GPU-bbbbbbbb"}
    filtered(manual, a_pod)
    assert bind(manual, a_pod) == ""
    assert cards_of(read_pod(manual.rest, a_pod)) == uuids[1:]
    nothing_half_made(manual)


def test_bind_after_deletion(manual: World) -> None:
    """A pod that is gone, or made again under its name, is not bound."""
    manual.node("edge", 29)
    gone = manual.post("pod", 20, 1)
    manual.delete(gone)
    assert bind(manual, gone)
    again = manual.post("pod", 20, 1)
    assert bind(manual, gone)
    assert not node_of(read_pod(manual.rest, again))
    assert bind(manual, again) == ""
    nothing_half_made(manual)


def test_last_room_goes_to_one(manual: World) -> None:
    """Of eight binds at once for room for three, three win; the others are told why."""
    manual.node("edge", 29, 13)
    pods = [manual.post(f"pod-{n}", 12, 1) for n in range(8)]
    with ThreadPoolExecutor(len(pods)) as pool:
        errors = list(pool.map(lambda each: bind(manual, each), pods))
    assert errors.count("") == 3
    full = "Insufficient baidu.com/vcuda-memory on one card"
    assert {error for error in errors if error} == {full}
    nothing_half_made(manual)


def filtered(manual: World, a_pod: Json) -> None:
    """Have a pod let through to edge, as comes before its bind."""
    asked = {**ASK, "Pod": a_pod}
    answer = manual.extender.rest.must("POST", "/scheduler/filter", asked)
    assert answer["NodeNames"] == ["edge"]


def pending(manual: World) -> set[str]:
    snapshot = manual.extender.rest.must("GET", "/snapshot")
    return {pod["uid"] for pod in snapshot["pending"]}
