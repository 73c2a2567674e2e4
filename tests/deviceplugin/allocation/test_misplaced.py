"""When kubelet chooses otherwise: swaps, waiting, doubled ids, ids nobody knows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import get_ident

import pytest

from deviceplugin.allocation.preferred import Assigned
from deviceplugin.cards.devices import Cards, card_key
from deviceplugin.pods import node_pod
from gpushare.domain.model import Card, CardUUID, Placement, PodRequest
from gpushare.domain.placement import whole_shares
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Kind
from gpusharectl.demo.devices import CannotStartYetError
from tests.builders import AT, container_json
from tests.deviceplugin.node_fixture import (
    NODE,
    UUIDS,
    C,
    M,
    NodeFixture,
    found_card,
    inside,
    visible,
)
from tests.testbed.waiting import wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFixture]:
    with NodeFixture(tmp_path, found_card(0), found_card(1)) as made:
        yield made


def prefers(node: NodeFixture, uuid: CardUUID) -> None:
    """Let kubelet choose this card's ids, whatever was planned and preferred."""
    real = node.serving.admission.prefer

    def prefer(
        cards: Cards,
        resource: str,
        available: Sequence[str],
        must: Sequence[str],
        size: int,
    ) -> list[str]:
        real(cards, resource, available, must, size)
        return [one for one in available if one.startswith(card_key(uuid))][:size]

    node.serving.admission.prefer = prefer  # type: ignore[method-assign]


def test_swap_with_room(node: NodeFixture) -> None:
    """Another card than planned, which has room: it starts, and the card is told."""
    pod = node.bind("a", 20, 1, card=0)
    prefers(node, UUIDS[1])
    given = node.run(pod)["main"]
    assert visible(given) == (UUIDS[1],)
    assert inside(given)["cards"][0]["uuid"] == UUIDS[1]
    actual = node.actual("a")
    assert actual is not None
    assert actual.cards() == (UUIDS[1],)


def test_swap_without_room(node: NodeFixture) -> None:
    """Another card, without room: it waits, an event says why, and then it starts."""
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
    wait_until(lambda: node.serving.pods.find(("default", "b")) is None, "b to be gone")
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
        with pytest.raises(CannotStartYetError, match="kubelet chose card"):
            node.devices.start(pod["metadata"]["uid"], "main")
    assert node.actual("a") is None


def test_a_container_over_two_cards_keeps_its_pod_waiting(node: NodeFixture) -> None:
    """Started, another container would have the whole pod reported where it is."""
    pod = node.bind("a", containers=[container_json("x", 4, 1), container_json("y", 8)])
    prefer, allocate = (
        node.serving.admission.prefer,
        node.serving.admission.allocate,
    )

    def two_cards(
        cards: Cards,
        resource: str,
        available: Sequence[str],
        must: Sequence[str],
        size: int,
    ) -> list[str]:
        chosen = prefer(cards, resource, available, must, size)
        other = [one for one in available if one.startswith(card_key(UUIDS[1]))]
        return chosen if size < 8 else [*chosen[:4], *other[:4]]

    def anyway(cards: Cards, resource: str, ids: Sequence[str]) -> Assigned:
        on_first = [one for one in ids if one.startswith(card_key(UUIDS[0]))]
        return allocate(cards, resource, on_first)

    node.serving.admission.prefer = two_cards  # type: ignore[method-assign]
    node.serving.admission.allocate = anyway  # type: ignore[method-assign]
    node.admit(pod)
    node.serving.admission.allocate = allocate  # type: ignore[method-assign]
    for container in ("x", "y", "x"):
        with pytest.raises(CannotStartYetError, match="y has parts of several cards"):
            node.devices.start(pod["metadata"]["uid"], container)
    assert node.actual("a") is None


def test_two_swapped_pods(node: NodeFixture) -> None:
    """Each on the other's card: both cards are theirs in truth, so both start."""
    first, second = node.bind("a", 20, 1, card=0), node.bind("b", 20, 1, card=1)
    prefers(node, UUIDS[1])
    node.admit(first)
    prefers(node, UUIDS[0])
    node.admit(second)
    for pod in (first, second):
        node.devices.start(pod["metadata"]["uid"], "main")
    for name, uuid in (("a", UUIDS[1]), ("b", UUIDS[0])):
        actual = node.actual(name)
        assert actual is not None
        assert actual.cards() == (uuid,)


def test_ids_of_several_cards(node: NodeFixture) -> None:
    """That no turn explains: refused, and kubelet fails the pod."""
    pod = node.bind("a", 40, 1, card=None)
    node.serving.admission.prefer = lambda *_: []  # type: ignore[method-assign]
    assert "are of 2 cards" in node.refuse(pod)


def test_devices_that_another_pod_holds(node: NodeFixture) -> None:
    """kubelet may forget what it gave away (contracts 2.7); we do not."""
    pod = node.bind("a", 20, 1, card=0)
    node.run(pod)
    held = node.serving.reporter.resources.list(60).held(("default", "a"))
    second = node.bind("b", 5, 1, card=0)
    node.run(second)
    with pytest.raises(Exception, match="default/a holds"):
        node.serving.admission.allocate(
            node.serving.offer.cards(), M, sorted(held["main"][M])[:5]
        )


@pytest.mark.parametrize("name", ["aaaaaaaa-m0029", "aaaaaaaa-c0000", "junk", ""])
def test_ids_nobody_knows(node: NodeFixture, name: str) -> None:
    """Refused with the id in the words."""
    with pytest.raises(Exception, match="no card of this node has"):
        node.allocate(M, [name])


def test_planned_card_has_too_few_left(node: NodeFixture) -> None:
    """kubelet still holds the card for a pod the API server has forgotten."""
    ghost = node.bind("ghost", 20, 1, card=0)
    node.run(ghost)
    node.cluster.delete(Kind.PODS, "default", "ghost", grace_period_s=0)
    wait_until(lambda: node.serving.pods.find(("default", "ghost")) is None, "its end")
    pod = node.bind("a", 20, 1, card=0)
    assert visible(node.run(pod)["main"]) == (UUIDS[1],)
    actual = node.actual("a")
    assert actual is not None
    assert actual.cards() == (UUIDS[1],)


def test_half_admitted_pod_stays_together(node: NodeFixture) -> None:
    """What kubelet has given a pod decides where the rest of it is."""
    pod = node.bind("a", 4, 1, card=0)
    prefer = node.serving.admission.prefer
    asked: list[str] = []

    def once_elsewhere(
        cards: Cards,
        resource: str,
        available: Sequence[str],
        must: Sequence[str],
        size: int,
    ) -> list[str]:
        asked.append(resource)
        if len(asked) == 1:
            key = card_key(UUIDS[1])
            return [one for one in available if one.startswith(key)][:size]
        return prefer(cards, resource, available, must, size)

    node.serving.admission.prefer = once_elsewhere  # type: ignore[method-assign]
    assert visible(node.run(pod)["main"]) == (UUIDS[1],)
    assert set(asked) == {M, C}


def test_init_container_hands_its_devices_on(node: NodeFixture) -> None:
    """kubelet picks of them at random, and does not ask us where they suffice."""
    pod = node.bind(
        "a",
        card=1,
        init=[container_json("once", 8, 40)],
        containers=[container_json("x", 3, 20), container_json("y", 7, 30)],
    )
    given = node.run(pod)
    assert {visible(one) for one in given.values()} == {(UUIDS[1],)}
    assert node.actual("a") is None


def test_allocate_asks_nobody(
    node: NodeFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubelet waits for Allocate, and forgets what is in flight when listed."""
    asked: list[tuple[str, int]] = []
    allocating: set[int] = set()

    def watched(thing: object, name: str) -> None:
        real = getattr(thing, name)

        def call(*args: object, **how: object) -> object:
            asked.append((name, get_ident()))
            return real(*args, **how)

        monkeypatch.setattr(thing, name, call)

    for name in ("get", "annotate", "event", "list_page"):
        watched(node.cluster, name)
    watched(node.serving.reporter.resources, "list")
    allocate = node.serving.admission.allocate

    def alone(cards: Cards, resource: str, ids: Sequence[str]) -> object:
        before = len(asked)
        answer = allocate(cards, resource, ids)
        mine = [one for one, thread in asked[before:] if thread == get_ident()]
        assert not mine
        allocating.add(get_ident())
        return answer

    monkeypatch.setattr(node.serving.admission, "allocate", alone)
    node.run(node.bind("a", 4, 1, card=0))
    assert allocating
    assert "list" in {name for name, _ in asked}


@pytest.mark.parametrize("planned", [True, False])
def test_whole_cards_of_an_init_container(node: NodeFixture, planned: bool) -> None:
    """They stay the pod's, though the container after it uses but one of them."""
    pod = node.bind(
        "a",
        card=None,
        placement=None,
        init=[container_json("once", 4, 200)],
        containers=[container_json("main", 2)],
    )
    if planned:
        placed = place_on_both(pod)
        node.cluster.annotate(Kind.PODS, "default", "a", {names.PLACEMENT: placed})
        wait_until(
            lambda: node.serving.pods.find(("default", "a")).placement, "the plan"
        )
    given = node.run(pod)
    assert set(visible(given["once"])) == {UUIDS[0], UUIDS[1]}
    node.serving.reporter.catch_up()
    other = node.bind("b", 2, None, card=None)
    assert "Insufficient" in node.refuse(other)
    actual = node.actual("a")
    assert (actual is None) == planned
    if actual is not None:
        assert set(actual.cards()) == {UUIDS[0], UUIDS[1]}


def place_on_both(pod: Json) -> str:
    """What the extender writes for it."""
    record = node_pod(pod).record
    assert isinstance(record.request, PodRequest)
    cards = [Card(UUIDS[index], index, 29) for index in (0, 1)]
    shares = tuple(whole_shares(record.request.claims[0], cards))
    return encode_placement(Placement(record.pod, NODE, shares), AT)
