"""Pods that are admitted while the API server is out of reach."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind
from tests.builders import container_json, pod_json
from tests.deviceplugin.node_fixture import (
    UUIDS,
    C,
    M,
    NodeFixture,
    asks_first,
    found_card,
    inside,
    visible,
)

SILENT = "the API server does not say which cards the pod may have: no route to host"
ONLY_THE_THIRD = {names.UUIDS: UUIDS[2]}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[NodeFixture]:
    with NodeFixture(tmp_path, *(found_card(i) for i in range(3))) as made:
        yield made


def waits(three: NodeFixture, pod: Json, because: str = SILENT) -> None:
    three.waits(pod, because)


def starts(three: NodeFixture, pod: Json) -> Sequence[str]:
    """Start the container; the cards that it sees, which are those of its file."""
    given = three.start_one(pod)
    seen = visible(given)
    assert tuple(card["uuid"] for card in inside(given)["cards"]) == seen
    assert inside(given)["uid"] == pod["metadata"]["uid"]
    return seen


@pytest.mark.parametrize(("seen", "card"), [(True, 1), (False, 0)])
def test_an_ordinary_pod_waits(three: NodeFixture, seen: bool, card: int) -> None:
    """Also one that was seen before, and is given its own card.

    Nobody can tell it from a new one of its name.
    """
    if seen:
        pod = three.bind("a", 20, 1, card=1)
    three.cut_off()
    if not seen:
        pod = three.bind("a", 20, 1, card=1)
    three.admit(pod)
    waits(three, pod)
    three.serving.reporter.catch_up()
    three.line.cut = False
    assert starts(three, pod) == (UUIDS[card],)
    assert three.actual("a") == (None if seen else (UUIDS[card],))


def test_an_unknown_init_container_starts(three: NodeFixture) -> None:
    """Neither kubelet nor we can say whose it is: waiting would not end."""
    three.cut_off()
    for name in ("etcd", "proxy"):
        three.admit(pod_json(name, uid=name, node="n"))
    once, main = container_json("once", 8, 3), container_json("main")
    three.run(pod_json("s-n", uid="hash", init=[once], containers=[main], node="n"))


@pytest.mark.parametrize("first", [M, C])
def test_whole_cards_wait(
    three: NodeFixture, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """No card has so much memory, so it is of two."""
    asks_first(monkeypatch, first)
    three.cut_off()
    pod = three.bind("a", 40, 200, card=None)
    assert visible(three.admit(pod)["main"]) == UUIDS[:2]
    waits(three, pod)
    three.line.cut = False
    assert starts(three, pod) == UUIDS[:2]


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("first", [M, C])
def test_whole_cards_after_a_reboot(
    three: NodeFixture, monkeypatch: pytest.MonkeyPatch, first: str, others: int
) -> None:
    """What its memory does not tell is known from before, also among other pods."""
    asks_first(monkeypatch, first)
    pod = three.bind("a", 10, 200, card=None)
    three.run(pod)
    three.reboot_cut_off()
    for number in range(others):
        three.admit(pod_json(f"proxy-{number}", uid=f"{number}", node="n"))
    assert visible(three.admit(pod)["main"]) == UUIDS[:2]
    waits(three, pod)
    three.line.cut = False
    assert starts(three, pod) == UUIDS[:2]


def test_whole_cards_whose_memory_came_first(
    three: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new pod of little memory: it would see one card for that, two for its cores."""
    asks_first(monkeypatch, M)
    three.cut_off()
    pod = three.bind("a", 10, 200, card=None)
    assert "Insufficient untouched cards" in three.refuse(pod)


def test_a_pod_that_comes_again_with_fewer_cores(
    three: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is of two cards by then, with which it could never start."""
    asks_first(monkeypatch, M)
    three.run(three.bind("a", 10, 200, card=None))
    three.end_pod("a")
    three.reboot_cut_off()
    pod = three.bind("a", 10, 20, card=None)
    assert "20 cores cannot be of 2 whole cards" in three.refuse(pod)


@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize("first", [M, C])
def test_a_new_pod_under_an_old_name(
    three: NodeFixture, monkeypatch: pytest.MonkeyPatch, first: str, ran: bool
) -> None:
    """What the watch told of the old one says nothing of the new one."""
    asks_first(monkeypatch, first)
    old = three.bind("web-0", 20, 1, card=0)
    if ran:
        three.run(old)
        three.tell_running("web-0")
    three.cut_off()
    three.end_pod("web-0")
    new = three.bind("web-0", 20, 1, card=2, annotations=ONLY_THE_THIRD)
    three.admit(new)
    waits(three, new)
    three.line.cut = False
    waits(three, new, "excluded by baidu.com/vcuda-uuids")


def test_what_ran_is_restarted(three: NodeFixture) -> None:
    pod = three.bind("a", 20, 1, card=1)
    three.run(pod)
    three.cut_off()
    assert starts(three, pod) == (UUIDS[1],)


def test_a_pod_that_the_api_server_does_not_have(three: NodeFixture) -> None:
    pod = three.bind("a", 20, 1, card=1)
    three.admit(pod)
    three.cluster.delete(Kind.PODS, "default", "a", grace_period_s=0)
    three.wait_gone("a")
    waits(three, pod, "the API server has no such pod on this node")
