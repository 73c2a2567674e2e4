"""Pods that come while kubelet reaches the API server and the plugin does not."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpusharectl.demo.devices import CannotStartYetError
from tests.builders import container_json, pod_json
from tests.deviceplugin.allocation.test_kubelet_forgets import asks_first
from tests.deviceplugin.node_fixture import (
    UUIDS,
    C,
    M,
    NodeFixture,
    found_card,
    inside,
    visible,
)
from tests.testbed.waiting import wait_until

SILENT = "the API server does not say which cards the pod may have: no route to host"
ONLY_THE_THIRD = {names.UUIDS: UUIDS[2]}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[NodeFixture]:
    with NodeFixture(tmp_path, *(found_card(i) for i in range(3))) as made:
        yield made


def waits(host: NodeFixture, pod: Json, because: str = SILENT) -> None:
    with pytest.raises(CannotStartYetError, match=because):
        host.devices.start(pod["metadata"]["uid"], "main")


def starts(host: NodeFixture, pod: Json) -> Sequence[str]:
    """Start the container; the cards that it sees, which are those of its file."""
    given = host.devices.start(pod["metadata"]["uid"], "main")
    seen = visible(given)
    assert tuple(one["uuid"] for one in inside(given)["cards"]) == seen
    assert inside(given)["uid"] == pod["metadata"]["uid"]
    return seen


def test_an_ordinary_pod_waits(host: NodeFixture) -> None:
    """It starts where kubelet gave it devices, once the API server has been told."""
    host.cut_off()
    pod = host.bind("a", 20, 1, card=1)
    host.admit(pod)
    waits(host, pod)
    host.serving.reporter.catch_up()
    host.line.cut = False
    assert starts(host, pod) == (UUIDS[0],)
    actual = host.actual("a")
    assert actual is not None
    assert actual.cards() == (UUIDS[0],)


def test_its_lists_are_heeded(host: NodeFixture) -> None:
    """A guess may be wrong, and then it is not started."""
    host.cut_off()
    pod = host.bind("a", 20, 1, card=2, annotations=ONLY_THE_THIRD)
    host.admit(pod)
    waits(host, pod)
    host.line.cut = False
    waits(host, pod, "excluded by baidu.com/vcuda-uuids")


def test_an_init_container_waits_too(host: NodeFixture) -> None:
    """Among other unknown pods nobody knew whose it was; its devices tell later."""
    host.cut_off()
    for name in ("etcd", "proxy"):
        host.admit(pod_json(name, uid=name, node="n"))
    pod = host.bind(
        "a",
        card=0,
        init=[container_json("once", 8, 3)],
        containers=[container_json("main", 3, 1)],
    )
    given = host.admit(pod)
    for container in given:
        with pytest.raises(CannotStartYetError, match=SILENT):
            host.devices.start(pod["metadata"]["uid"], container)
    host.line.cut = False
    for container, units in (("once", 8), ("main", 3)):
        host.devices.start(pod["metadata"]["uid"], container)
        assert visible(given[container]) == (UUIDS[0],)
        assert inside(given[container])["container"] == container
        assert inside(given[container])["cards"][0]["units"] == units


def test_an_unknown_init_container_starts(host: NodeFixture) -> None:
    """Neither kubelet nor we can say whose it is: waiting would not end."""
    host.cut_off()
    for name in ("etcd", "proxy"):
        host.admit(pod_json(name, uid=name, node="n"))
    once, main = container_json("once", 8, 3), container_json("main")
    host.run(pod_json("s-n", uid="hash", init=[once], containers=[main], node="n"))


def test_whole_cards(host: NodeFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not refused for good, and the memory is of the same cards."""
    asks_first(monkeypatch, C)
    host.cut_off()
    pod = host.bind("a", 40, 200, card=None)
    assert visible(host.admit(pod)["main"]) == UUIDS[:2]
    waits(host, pod)
    host.line.cut = False
    assert starts(host, pod) == UUIDS[:2]


def test_whole_cards_whose_memory_came_first(
    host: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container would see one card for its memory and two for its cores."""
    asks_first(monkeypatch, M)
    host.cut_off()
    pod = host.bind("a", 10, 200, card=None)
    assert "Insufficient untouched cards" in host.refuse(pod)


@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize("first", [M, C])
def test_a_new_pod_under_an_old_name(
    host: NodeFixture,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    ran: bool,
) -> None:
    """What the watch told of the old one says nothing of the new one."""
    asks_first(monkeypatch, first)
    old = host.bind("web-0", 20, 1, card=0)
    if ran:
        host.run(old)
        host.tell_running("web-0")
    host.cut_off()
    host.end_pod("web-0")
    new = host.bind("web-0", 20, 1, card=2, annotations=ONLY_THE_THIRD)
    host.admit(new)
    waits(host, new)
    host.line.cut = False
    waits(host, new, "excluded by baidu.com/vcuda-uuids")


def test_what_ran_is_restarted(host: NodeFixture) -> None:
    """Its cards were looked at before."""
    pod = host.bind("a", 20, 1, card=1)
    host.run(pod)
    host.cut_off()
    assert starts(host, pod) == (UUIDS[1],)


def test_a_pod_that_was_seen_before_waits_too(host: NodeFixture) -> None:
    """Nobody can tell it from a new one of its name; it is given its own card."""
    pod = host.bind("a", 20, 1, card=1)
    host.cut_off()
    host.admit(pod)
    waits(host, pod)
    host.line.cut = False
    assert starts(host, pod) == (UUIDS[1],)
    assert host.actual("a") is None


def test_a_static_pod_starts(host: NodeFixture) -> None:
    """kubelet alone knows it, and ends its name with the node's."""
    host.cut_off()
    static = pod_json("s-n", uid="hash", units=20, cores=1, node="n")
    assert visible(host.run(static)["main"]) == (UUIDS[0],)


def test_a_pod_that_the_api_server_does_not_have(host: NodeFixture) -> None:
    """Somebody deleted it by force; kubelet is about to hear of it."""
    pod = host.bind("a", 20, 1, card=1)
    host.admit(pod)
    host.cluster.delete(Kind.PODS, "default", "a", grace_period_s=0)
    wait_until(lambda: host.serving.pods.find(("default", "a")) is None, "its end")
    waits(host, pod, "the API server has no such pod on this node")
