"""The right card to the right pod, through kubelet's own three calls."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from tests.builders import container_json, pod_json
from tests.deviceplugin.node_fixture import (
    UUIDS,
    NodeFixture,
    found_card,
    inside,
    visible,
)
from tests.testbed.waiting import wait_until


@pytest.fixture
def host(tmp_path: Path) -> Iterator[NodeFixture]:
    with NodeFixture(tmp_path, found_card(0), found_card(1)) as made:
        yield made


def test_planned_card(host: NodeFixture) -> None:
    """A pod gets the card of its placement, and the file says what it has of it."""
    pod = host.bind("a", 20, 1, card=1)
    given = host.run(pod)["main"]
    assert visible(given) == (UUIDS[1],)
    assert given.envs["VCUDA_MEMORY_LIMIT_MIB"] == str(20 * 256)
    assert inside(given)["cards"] == [
        {"uuid": UUIDS[1], "units": 20, "cores": 1, "memory_mib": 5120}
    ]
    assert host.actual("a") is None
    assert names.ACTUAL not in host.pod("a")["metadata"]["annotations"]


def test_several_containers_share_their_pods_card(host: NodeFixture) -> None:
    """Each container sees the pod's card, and its own part of it in its own file."""
    pod = host.bind(
        "a",
        card=1,
        containers=[container_json("x", 4, 1), container_json("y", 8, 2)],
    )
    given = host.run(pod)
    assert visible(given["x"]) == visible(given["y"]) == (UUIDS[1],)
    assert inside(given["x"])["cards"][0]["units"] == 4
    assert inside(given["y"])["cards"][0]["cores"] == 2


def test_init_container_and_sidecar(host: NodeFixture) -> None:
    """Init containers, sidecars and containers all see the pod's card."""
    pod = host.bind(
        "a",
        card=1,
        init=[
            container_json("once", 10, 5),
            container_json("side", 3, 1, restart="Always"),
        ],
        containers=[container_json("main", 4, 2), container_json("more", 9, 2)],
    )
    given = host.run(pod)
    assert set(given) == {"once", "side", "main", "more"}
    assert {visible(one) for one in given.values()} == {(UUIDS[1],)}
    assert {inside(one)["cards"][0]["units"] for one in given.values()} == {10, 3, 4, 9}


def test_init_container_of_a_pod_that_asks_nothing_else(
    host: NodeFixture,
) -> None:
    """Only the init container asks; kubelet's list never shows it."""
    pod = host.bind(
        "a", card=1, init=[container_json("once", 10, 5)], containers=[container_json()]
    )
    assert visible(host.run(pod)["once"]) == (UUIDS[1],)
    other = host.bind("b", 10, 5, card=0)
    assert visible(host.run(other)["main"]) == (UUIDS[0],)


def test_whole_cards(tmp_path: Path) -> None:
    """200 cores are two whole cards; both resources show the same two."""
    with NodeFixture(tmp_path, *(found_card(i) for i in range(3))) as host:
        pod = host.bind("a", 10, 200, card=None)
        given = host.run(pod)["main"]
        assert visible(given) == (UUIDS[0], UUIDS[1])
        assert [c["units"] for c in inside(given)["cards"]] == [29, 29]
        actual = host.actual("a")
        assert actual is not None
        assert set(actual.cards()) == {UUIDS[0], UUIDS[1]}


def test_two_pods_of_one_size(host: NodeFixture) -> None:
    """Bound at the same moment to two cards, each gets its own."""
    first, second = (
        host.bind("a", 20, 1, card=0),
        host.bind("b", 20, 1, card=1),
    )
    assert visible(host.run(second)["main"]) == (UUIDS[1],)
    assert visible(host.run(first)["main"]) == (UUIDS[0],)
    assert host.actual("a") is None
    assert host.actual("b") is None


def test_made_again_under_its_name(host: NodeFixture) -> None:
    """A pod of the same name and size, planned elsewhere, gets its own card."""
    host.run(host.bind("a", 20, 1, card=0))
    host.end_pod("a")
    again = host.bind("a", 20, 1, card=1)
    assert visible(host.run(again)["main"]) == (UUIDS[1],)
    assert host.actual("a") is None


def test_without_a_placement_where_there_is_room(host: NodeFixture) -> None:
    """nodeName set by hand: served by the first card with room, and told."""
    host.run(host.bind("a", 20, 1, card=0))
    pod = host.bind("b", 20, 1, card=None)
    assert visible(host.run(pod)["main"]) == (UUIDS[1],)
    actual = host.actual("b")
    assert actual is not None
    assert actual.cards() == (UUIDS[1],)


def test_without_a_placement_where_there_is_none(host: NodeFixture) -> None:
    """No card has room: denied, with the words that filter would have used."""
    host.run(host.bind("a", 20, 1, card=0))
    host.bind("b", 20, 1, card=1)
    pod = host.bind("c", 10, 1, card=None)
    words = host.refuse(pod)
    assert "Insufficient baidu.com/vcuda-memory on one card" in words
    wait_until(lambda: any(e[0] == "c" for e in host.events()), "the event")


@pytest.mark.parametrize(
    "placement",
    [
        "not json",
        '{"v": 1, "uid": "another", "shares": [], "at": ""}',
        "{}",
    ],
)
def test_placement_that_is_none(host: NodeFixture, placement: str) -> None:
    """Not JSON, or of another UID: as if there were none."""
    host.run(host.bind("a", 20, 1, card=0))
    pod = host.bind("b", 20, 1, placement=placement)
    assert visible(host.run(pod)["main"]) == (UUIDS[1],)
    assert host.actual("b") is not None


def impossible(host: NodeFixture, pod: Json, card: str, units: int) -> str:
    shares = [
        {
            "card": card,
            "cores": 1,
            "units": units,
            "containers": {"main": [1, units]},
        }
    ]
    uid = pod["metadata"]["uid"]
    return json.dumps({"v": 1, "uid": uid, "shares": shares, "at": ""})


@pytest.mark.parametrize(
    ("card", "units", "words"),
    [
        ("GPU-unknown", 20, "no card GPU-unknown"),
        (UUIDS[0], 40, "has 100 cores and 29"),
    ],
)
def test_impossible_placement(
    host: NodeFixture, card: str, units: int, words: str
) -> None:
    """With the pod's own UID: the pod is not started, an event says why."""
    pod = host.bind("a", units, 1, card=None)
    text = impossible(host, pod, card, units)
    host.cluster.annotate(Kind.PODS, "default", "a", {names.PLACEMENT: text})
    wait_until(
        lambda: host.serving.pods.find(("default", "a")).placement is not None,
        "the annotation to be seen",
    )
    assert words in host.refuse(host.pod("a"))
    wait_until(lambda: any(words in e[2] for e in host.events()), "the event")
    other = host.bind("b", 5, 1, card=0)
    assert visible(host.run(other)["main"]) == (UUIDS[0],)


def test_static_pod(host: NodeFixture) -> None:
    """Only kubelet knows it: served; told once its mirror is there."""
    static = pod_json("s-n", uid="hash", units=20, cores=1, node="n")
    given = host.run(static)["main"]
    assert visible(given) == (UUIDS[0],)
    assert inside(given)["cards"][0]["units"] == 20
    host.bind("s-n", 20, 1, card=None)
    host.wait_seen("s-n")
    host.serving.reporter.catch_up()
    actual = host.actual("s-n")
    assert actual is not None
    assert actual.cards() == (UUIDS[0],)


def test_a_mirror_that_is_made_anew(host: NodeFixture) -> None:
    """Somebody deleted it; the static pod runs on, and is told of again."""
    static = pod_json("s-n", uid="hash", units=20, cores=1, node="n")
    host.admit(static)
    host.bind("s-n", 20, 1, card=None)
    host.devices.start("hash", "main")
    assert host.actual("s-n") is not None
    host.cluster.delete(Kind.PODS, "default", "s-n", grace_period_s=0)
    host.bind("s-n", 20, 1, card=None)
    host.serving.reporter.catch_up()
    assert host.actual("s-n") is not None


def test_a_static_pod_in_place_of_one_that_never_started(
    host: NodeFixture,
) -> None:
    """Its image was wrong, say: what it had says nothing of the new one."""
    host.admit(pod_json("s-n", uid="old", units=20, cores=1, node="n"))
    host.devices.release("old")
    host.run(pod_json("s-n", uid="new", units=10, cores=1, node="n"))
    host.bind("s-n", 10, 1, card=None)
    host.serving.reporter.catch_up()
    assert host.actual("s-n") is not None
