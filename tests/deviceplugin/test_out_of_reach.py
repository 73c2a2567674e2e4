"""Pods that come while kubelet reaches the API server and the plugin does not."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from gpusharectl.demo.devices import CannotStartYetError
from tests.builders import container_json, pod_json
from tests.deviceplugin.cards.test_trouble import asks_first
from tests.deviceplugin.house import UUIDS, C, House, M, found_card, inside, visible
from tests.testbed.waiting import wait_until

SILENT = "the API server does not say which cards the pod may have: no route to host"
ONLY_THE_THIRD = {names.UUIDS: UUIDS[2]}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with House(tmp_path, *(found_card(i) for i in range(3))) as made:
        yield made


def waits(house: House, pod: Json, because: str = SILENT) -> None:
    with pytest.raises(CannotStartYetError, match=because):
        house.devices.start(pod["metadata"]["uid"], "main")


def starts(house: House, pod: Json) -> Sequence[str]:
    """Start the container; the cards that it sees, which are those of its file."""
    given = house.devices.start(pod["metadata"]["uid"], "main")
    seen = visible(given)
    assert tuple(one["uuid"] for one in inside(given)["cards"]) == seen
    assert inside(given)["uid"] == pod["metadata"]["uid"]
    return seen


def test_an_ordinary_pod_waits(house: House) -> None:
    """It starts where kubelet gave it devices, once the API server has been told."""
    house.cut_off()
    pod = house.bind("a", 20, 1, card=1)
    house.admit(pod)
    waits(house, pod)
    house.serving.reporter.catch_up()
    house.line.cut = False
    assert starts(house, pod) == (UUIDS[0],)
    actual = house.actual("a")
    assert actual is not None
    assert actual.cards() == (UUIDS[0],)


def test_its_lists_are_heeded(house: House) -> None:
    """A guess may be wrong, and then it is not started."""
    house.cut_off()
    pod = house.bind("a", 20, 1, card=2, annotations=ONLY_THE_THIRD)
    house.admit(pod)
    waits(house, pod)
    house.line.cut = False
    waits(house, pod, "excluded by baidu.com/vcuda-uuids")


def test_an_init_container_waits_too(house: House) -> None:
    """Among other unknown pods nobody knew whose it was; its devices tell later."""
    house.cut_off()
    for name in ("etcd", "proxy"):
        house.admit(pod_json(name, uid=name, node="n"))
    pod = house.bind(
        "a",
        card=0,
        init=[container_json("once", 8, 3)],
        containers=[container_json("main", 3, 1)],
    )
    given = house.admit(pod)
    for container in given:
        with pytest.raises(CannotStartYetError, match=SILENT):
            house.devices.start(pod["metadata"]["uid"], container)
    house.line.cut = False
    for container, units in (("once", 8), ("main", 3)):
        house.devices.start(pod["metadata"]["uid"], container)
        assert visible(given[container]) == (UUIDS[0],)
        assert inside(given[container])["container"] == container
        assert inside(given[container])["cards"][0]["units"] == units


def test_an_unknown_init_container_starts(house: House) -> None:
    """Neither kubelet nor we can say whose it is: waiting would not end."""
    house.cut_off()
    for name in ("etcd", "proxy"):
        house.admit(pod_json(name, uid=name, node="n"))
    once, main = container_json("once", 8, 3), container_json("main")
    house.run(pod_json("s-n", uid="hash", init=[once], containers=[main], node="n"))


def test_whole_cards(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not refused for good, and the memory is of the same cards."""
    asks_first(monkeypatch, C)
    house.cut_off()
    pod = house.bind("a", 40, 200, card=None)
    assert visible(house.admit(pod)["main"]) == UUIDS[:2]
    waits(house, pod)
    house.line.cut = False
    assert starts(house, pod) == UUIDS[:2]


def test_whole_cards_whose_memory_came_first(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container would see one card for its memory and two for its cores."""
    asks_first(monkeypatch, M)
    house.cut_off()
    pod = house.bind("a", 10, 200, card=None)
    assert "Insufficient untouched cards" in house.refuse(pod)


@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize("first", [M, C])
def test_a_new_pod_under_an_old_name(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    ran: bool,
) -> None:
    """What the watch told of the old one says nothing of the new one."""
    asks_first(monkeypatch, first)
    old = house.bind("web-0", 20, 1, card=0)
    if ran:
        house.run(old)
        house.tell_running("web-0")
    house.cut_off()
    house.end_pod("web-0")
    new = house.bind("web-0", 20, 1, card=2, annotations=ONLY_THE_THIRD)
    house.admit(new)
    waits(house, new)
    house.line.cut = False
    waits(house, new, "excluded by baidu.com/vcuda-uuids")


def test_what_ran_is_restarted(house: House) -> None:
    """Its cards were looked at before."""
    pod = house.bind("a", 20, 1, card=1)
    house.run(pod)
    house.cut_off()
    assert starts(house, pod) == (UUIDS[1],)


def test_a_pod_that_was_seen_before_waits_too(house: House) -> None:
    """Nobody can tell it from a new one of its name; it is given its own card."""
    pod = house.bind("a", 20, 1, card=1)
    house.cut_off()
    house.admit(pod)
    waits(house, pod)
    house.line.cut = False
    assert starts(house, pod) == (UUIDS[1],)
    assert house.actual("a") is None


def test_a_static_pod_starts(house: House) -> None:
    """kubelet alone knows it, and ends its name with the node's."""
    house.cut_off()
    static = pod_json("s-n", uid="hash", units=20, cores=1, node="n")
    assert visible(house.run(static)["main"]) == (UUIDS[0],)


def test_a_pod_that_the_api_server_does_not_have(house: House) -> None:
    """Somebody deleted it by force; kubelet is about to hear of it."""
    pod = house.bind("a", 20, 1, card=1)
    house.admit(pod)
    house.cluster.delete(Kind.PODS, "default", "a", grace_period_s=0)
    wait_until(lambda: house.serving.pods.find(("default", "a")) is None, "its end")
    waits(house, pod, "the API server has no such pod on this node")
