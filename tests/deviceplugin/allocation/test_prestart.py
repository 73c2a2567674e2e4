"""The last look before a container starts, and what is written of it."""

from collections.abc import Sequence
from threading import get_ident
from typing import Any
from unittest.mock import Mock

import pytest

from deviceplugin.allocation.device_chooser import (
    Assignment,
    DeniedError,
    DeviceQuestion,
)
from deviceplugin.allocation.prestart import NotYetError
from deviceplugin.cards.devices import Cards
from gpushare.domain.model import Card, Placement, PodRequest, share_whole_cards
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Unavailable
from gpushare.kubelet.node_pods import KubeletSilentError
from gpushare.kubelet.pods import read_node_pod
from gpusharectl.demo.devices import CannotStartYetError
from tests.builders import AT, container_json
from tests.deviceplugin.node_fixture import (
    NODE,
    UUIDS,
    C,
    M,
    NodeFixture,
    ids_of,
    inside,
    prefers,
    visible,
)
from tests.testbed.waiting import wait_until


def raising(error: Exception) -> Mock:
    return Mock(side_effect=error)


def start(node: NodeFixture, pod: Json, container: str = "main") -> None:
    node.start_one(pod, container)


def test_devices_that_nobody_holds(node: NodeFixture) -> None:
    with pytest.raises(NotYetError, match="not known which container holds"):
        node.start_container(M, ["aaaaaaaa-m0007"])


def test_kubelet_does_not_say_whose_they_are(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = node.bind("a", 4, 1)
    node.admit(pod)
    resources = node.occupancy.resources
    with monkeypatch.context() as silent:
        silent.setattr(resources, "list", raising(KubeletSilentError("no answer")))
        silent.setattr(resources, "get", lambda *_: None)
        with pytest.raises(NotYetError, match="which container holds them: no answer"):
            node.start_container(M, ids_of_card(0, 4))
    start(node, pod)


def ids_of_card(index: int, count: int) -> list[str]:
    return [f"{UUIDS[index][4:12]}-m{number:04d}" for number in range(count)]


def test_an_older_kubelet_lists_all(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 1.34 it cannot be asked of one pod."""
    pod = node.bind("a", 4, 1, card=1)
    monkeypatch.setattr(node.occupancy.resources, "get", lambda *_: None)
    assert inside(node.run(pod)["main"])["cards"][0]["uuid"] == UUIDS[1]


def test_a_restarted_container_is_looked_at_again(node: NodeFixture) -> None:
    once, main = container_json("once", 6, 2), container_json("main", 4, 1)
    pod = node.bind("a", init=[once], containers=[main])
    given = node.run(pod)
    for container, units in (("once", 6), ("main", 4), ("once", 6)):
        start(node, pod, container)
        assert inside(given[container])["container"] == container
        assert inside(given[container])["cards"][0]["units"] == units


def test_a_swap_that_cannot_be_written_waits(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extender must know of it before the card is used."""
    pod = node.bind("a", 4, 1, card=0)
    prefers(node, UUIDS[1])
    node.admit(pod)
    with monkeypatch.context() as away:
        away.setattr(node.cluster, "annotate", raising(Unavailable("no answer")))
        node.waits(pod, "could not be reported: no ans")
    start(node, pod)
    assert node.actual("a") == (UUIDS[1],)


def test_swap_without_room(node: NodeFixture) -> None:
    node.bind("b", 20, 1, card=1)
    pod = node.bind("a", 20, 1, card=0)
    prefers(node, UUIDS[1])
    node.admit(pod)
    uid = pod["metadata"]["uid"]
    with pytest.raises(CannotStartYetError, match="has 9 units and 99 cores left"):
        node.devices.start(uid, "main")
    wait_until(node.events, "an event")
    assert {(e[0], e[1]) for e in node.events()} == {("a", "VcudaWaiting")}
    node.end_pod("b")
    node.wait_gone("b")
    node.devices.start(uid, "main")
    assert node.actual("a") is not None


FORBIDDEN = {names.UUIDS: UUIDS[0]}


@pytest.mark.parametrize("annotations", [{}, FORBIDDEN], ids=["no room", "forbidden"])
def test_what_waits_is_not_reported(
    node: NodeFixture, annotations: dict[str, str]
) -> None:
    """Reported, it would be where it is meant to be, and start."""
    if not annotations:
        node.bind("b", 20, 1, card=1)
    pod = node.bind("a", 20, 1, card=0, annotations=annotations)
    prefers(node, UUIDS[1])
    node.admit(pod)
    for name in ("later", "last"):
        node.serving.reporter.catch_up()
        # The watch tells in order: once this one is seen, so is what came before.
        node.bind(name, 1, 1)
        node.waits(pod, "kubelet chose card")
    assert node.actual("a") is None


def test_a_container_over_two_cards_keeps_its_pod_waiting(node: NodeFixture) -> None:
    """Started, another container would have the whole pod reported where it is."""
    pod = node.bind("a", containers=[container_json("x", 4, 1), container_json("y", 8)])
    admission = node.serving.parts.device_chooser
    prefer, allocate = admission.prefer, admission.allocate

    def two_cards(asked: DeviceQuestion) -> list[str]:
        chosen, other = prefer(asked), ids_of(UUIDS[1], asked.available)
        return chosen if asked.size < 8 else [*chosen[:4], *other[:4]]

    def anyway(cards: Cards, resource: str, ids: Sequence[str]) -> Assignment:
        return allocate(cards, resource, ids_of(UUIDS[0], ids))

    admission.prefer = two_cards  # type: ignore[method-assign]
    admission.allocate = anyway  # type: ignore[method-assign]
    node.admit(pod)
    admission.allocate = allocate  # type: ignore[method-assign]
    for container in ("x", "y", "x"):
        with pytest.raises(CannotStartYetError, match="y has parts of several cards"):
            node.start_one(pod, container)
    assert node.actual("a") is None


def test_two_swapped_pods(node: NodeFixture) -> None:
    first, second = node.bind("a", 20, 1, card=0), node.bind("b", 20, 1, card=1)
    prefers(node, UUIDS[1])
    node.admit(first)
    prefers(node, UUIDS[0])
    node.admit(second)
    for name, pod, uuid in (("a", first, UUIDS[1]), ("b", second, UUIDS[0])):
        given = node.start_one(pod)
        assert visible(given) == (uuid,)
        assert inside(given)["cards"][0]["uuid"] == uuid
        assert node.actual(name) == (uuid,)


def test_ids_of_several_cards(node: NodeFixture) -> None:
    pod = node.bind("a", 40, 1, card=None)
    node.serving.parts.device_chooser.prefer = lambda *_: []  # type: ignore[method-assign]
    assert "are of 2 cards" in node.refuse(pod)


def test_ids_nobody_knows(node: NodeFixture) -> None:
    with pytest.raises(DeniedError, match="no card of this node has aaaaaaaa-m0029"):
        node.allocate(M, ["aaaaaaaa-m0029"])


def test_planned_card_has_too_few_left(node: NodeFixture) -> None:
    """kubelet still holds the card for a pod the API server has forgotten."""
    ghost = node.bind("ghost", 20, 1, card=0)
    node.run(ghost)
    node.cluster.delete(Kind.PODS, "default", "ghost", grace_period_s=0)
    node.wait_gone("ghost")
    pod = node.bind("a", 20, 1, card=0)
    assert visible(node.run(pod)["main"]) == (UUIDS[1],)
    assert node.actual("a") == (UUIDS[1],)


def test_half_admitted_pod_stays_together(node: NodeFixture) -> None:
    pod = node.bind("a", 4, 1, card=0)
    prefer = node.serving.parts.device_chooser.prefer
    asked: list[str] = []

    def once_elsewhere(question: DeviceQuestion) -> list[str]:
        asked.append(question.resource)
        if len(asked) == 1:
            return ids_of(UUIDS[1], question.available)[: question.size]
        return prefer(question)

    node.serving.parts.device_chooser.prefer = once_elsewhere  # type: ignore[method-assign]
    assert visible(node.run(pod)["main"]) == (UUIDS[1],)
    assert set(asked) == {M, C}


def test_allocate_asks_nobody(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubelet waits for Allocate, and forgets what is in flight when listed."""
    asked: list[int] = []
    by_allocate: list[int] = []

    def watch(thing: object, name: str) -> None:
        def call(*args: Any, **how: Any) -> Any:
            asked.append(get_ident())
            return real(*args, **how)

        real = getattr(thing, name)
        monkeypatch.setattr(thing, name, call)

    def alone(*question: Any) -> object:
        before = asked.count(get_ident())
        answer = allocate(*question)
        by_allocate.append(asked.count(get_ident()) - before)
        return answer

    for name in ("get", "annotate", "event", "list_page"):
        watch(node.cluster, name)
    watch(node.occupancy.resources, "list")
    allocate = node.serving.parts.device_chooser.allocate
    monkeypatch.setattr(node.serving.parts.device_chooser, "allocate", alone)
    node.run(node.bind("a", 4, 1, card=0))
    assert asked
    assert by_allocate == [0, 0]


@pytest.mark.parametrize("planned", [True, False])
def test_whole_cards_of_an_init_container(node: NodeFixture, planned: bool) -> None:
    """They stay the pod's, though the container after it uses but one of them."""
    once, main = container_json("once", 4, 200), container_json("main", 2)
    pod = node.bind("a", card=None, init=[once], containers=[main])
    if planned:
        record = read_node_pod(pod).record
        assert isinstance(record.request, PodRequest)
        both = [Card(UUIDS[index], index, 29) for index in (0, 1)]
        shares = tuple(share_whole_cards(record.request.claims[0], both))
        placed = encode_placement(Placement(record.pod, NODE, shares), AT)
        node.plan("a", placed)
    given = node.run(pod)
    assert set(visible(given["once"])) == {UUIDS[0], UUIDS[1]}
    node.serving.reporter.catch_up()
    other = node.bind("b", 2, None, card=None)
    assert "Insufficient" in node.refuse(other)
    assert node.actual("a") == (None if planned else UUIDS[:2])
