"""When the node's startup taint goes, and what stays on the node."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from deviceplugin import startup_taint
from deviceplugin.cards.advertised import Offer, OwnNode, Publisher
from deviceplugin.kubelet.registration import Service
from deviceplugin.startup_taint import StartupTaint
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Conflict, Forbidden
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.builders import node_json, page
from tests.deviceplugin.node_fixture import NODE, C, M, NodeFixture, found_card
from tests.testbed.waiting import wait_until

OURS = {"key": names.STARTUP_TAINT, "value": "true", "effect": "NoSchedule"}
THEIRS = {"key": "theirs", "effect": "NoSchedule"}
COUNTED = {M: "29", C: "100"}


def taints(cluster: Embedded) -> list[Json]:
    spec = cluster.get(Kind.NODES, "", NODE).get("spec") or {}
    return list(spec.get("taints") or [])


def taint(cluster: Embedded, *wanted: Json) -> None:
    cluster.patch(Kind.NODES, "", NODE, {"spec": {"taints": list(wanted)}})


def count(cluster: Embedded, capacity: dict[str, str]) -> None:
    """What kubelet does some seconds after the plugin has registered."""
    status = {"status": {"capacity": capacity}}
    cluster.patch(Kind.NODES, "", NODE, status, subresource="status")


class Starting:
    """A node whose cards are published and counted, and whose kubelet listens."""

    def __init__(self) -> None:
        self.cluster = Embedded()
        self.cluster.create(Kind.NODES, node_json(NODE))
        self.node, offer = OwnNode(self.cluster, NODE), Offer(0)
        offer.set_found([found_card(0)])
        self.publisher = Publisher(self.node, offer)
        options = pb.DevicePluginOptions()
        self.services = [Service(resource, list, offer, options) for resource in (M, C)]
        self.taint = StartupTaint(self.publisher, self.services)
        taint(self.cluster, OURS, THEIRS)
        count(self.cluster, COUNTED)
        self.see()
        self.publisher.publish()
        for service in self.services:
            service.streams.opened(1)
        self.see()

    def see(self) -> None:
        """Let the watch bring the node as it is."""
        self.node.replace(iter([page(self.cluster.get(Kind.NODES, "", NODE))]))


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Starting:
    monkeypatch.setattr("deviceplugin.cards.advertised._LOOK_S", 0)
    return Starting()


def test_the_startup_taint_goes_and_others_stay(starting: Starting) -> None:
    starting.taint.step()
    assert taints(starting.cluster) == [THEIRS]


def not_counted(starting: Starting) -> None:
    count(starting.cluster, {M: "29", C: "0"})


def not_known_to_kubelet(starting: Starting) -> None:
    starting.services[1].streams.opened(-1)


def not_published(starting: Starting) -> None:
    starting.publisher.offer.set_found([found_card(1)])


@pytest.mark.parametrize("lacks", [not_counted, not_known_to_kubelet, not_published])
def test_it_stays_until_pods_can_be_placed(
    starting: Starting, lacks: Callable[[Starting], None]
) -> None:
    """kubelet listens for all resources and counts them; the cards are published."""
    lacks(starting)
    starting.see()
    starting.taint.step()
    assert taints(starting.cluster) == [OURS, THEIRS]


def test_a_write_in_between_comes_first(starting: Starting) -> None:
    """Else a taint that somebody has just put there would be lost."""
    new = {"key": "new", "effect": "NoExecute"}
    taint(starting.cluster, OURS, new)
    with pytest.raises(Conflict):
        starting.taint.step()
    assert taints(starting.cluster) == [OURS, new]
    starting.see()
    starting.taint.step()
    assert taints(starting.cluster) == [new]


def test_a_refusal_is_logged_once_and_tried_again(
    starting: Starting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    answers: Iterator[Exception | None] = iter([Forbidden("no"), Forbidden("no"), None])
    allowed = starting.cluster.set_taints

    def set_taints(*how: object) -> None:
        if (answer := next(answers, None)) is not None:
            raise answer
        allowed(*how)  # type: ignore[arg-type]

    monkeypatch.setattr(startup_taint, "_LOOK_S", 0.01)
    monkeypatch.setattr(startup_taint, "_AGAIN_AFTER_S", 0.01)
    monkeypatch.setattr(starting.cluster, "set_taints", set_taints)
    stop = Event()
    thread = Thread(target=starting.taint.run, args=(stop,))
    thread.start()
    wait_until(lambda: taints(starting.cluster) == [THEIRS], "the taint to go")
    stop.set()
    thread.join(20)
    events = [message for message in caplog.messages if "taint" in message]
    assert events == ["startup taint not removed", "startup taint removed"]


def test_a_plugin_that_is_told_to_removes_it(tmp_path: Path) -> None:
    """Also when it comes again with a new node; by default there is no such thing."""
    with NodeFixture(tmp_path, settings={"startup_taint": True}) as node:
        for capacity in (COUNTED, {M: "28", C: "100"}):
            taint(node.cluster, OURS, THEIRS)
            count(node.cluster, capacity)
            wait_until(lambda: taints(node.cluster) == [THEIRS], "the taint to go")
        node.restart(startup_taint=False)
        assert node.serving.startup_taint is None
