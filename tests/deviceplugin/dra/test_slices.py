"""The node's cards as devices of ResourceSlices, and who keeps them there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from deviceplugin.dra.slices import (
    CORDONED,
    DEVICES_PER_SLICE,
    FULL,
    SICK,
    build_slices,
    order_cards,
    slice_device,
    slice_devices,
)
from deviceplugin.settings import DeviceOrder
from gpushare.domain.model import Amount, Card, CardUUID
from gpushare.kube import names
from gpushare.kube.cluster import Json, Kind, ListPage
from gpushare.kube.errors import NotFound, Unavailable
from gpushare.kube.resource_claims.allocated import name_device
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.deviceplugin.dra.dra_fixture import DraNode, memory_of
from tests.deviceplugin.node_fixture import NODE, UUIDS, because, found_card
from tests.testbed.waiting import wait_until

CARD = Card(UUIDS[0], 0, 94, model="Tesla P4")
LONG = CardUUID("u" * 65)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DraNode]:
    """Two cards of 29 and 19 units."""
    with DraNode(tmp_path, found_card(0), found_card(1, 19)) as made:
        wait_until(made.published, "devices")
        yield made


def taints(device: Json) -> list[str]:
    return [taint["key"] for taint in device.get("taints", ())]


def test_a_card_as_a_device() -> None:
    """Several claims share it, in units and cores; the forms are the API server's."""
    assert slice_device(CARD, CARD.capacity) == {
        "name": name_device(CARD.uuid),
        "allowMultipleAllocations": True,
        "attributes": {
            "uuid": {"string": CARD.uuid},
            "model": {"string": "Tesla P4"},
            "parent": {"string": ""},
            "index": {"int": 0},
        },
        "capacity": {
            "memory": {
                "value": "24064Mi",
                "requestPolicy": {
                    "default": "256Mi",
                    "validRange": {"min": "0", "step": "256Mi"},
                },
            },
            "cores": {
                "value": "100",
                "requestPolicy": {
                    "default": "1",
                    "validRange": {"min": "1", "step": "1"},
                },
            },
        },
    }
    # As the API server writes 23552Mi.
    assert memory_of(slice_device(CARD, Amount(100, 92))) == "23Gi"


@pytest.mark.parametrize(
    ("card", "texts"),
    [
        (replace(CARD, model=""), (CARD.uuid, "", "")),
        (replace(CARD, parent="GPU-1"), (CARD.uuid, "Tesla P4", "GPU-1")),
        (replace(CARD, model="m" * 65), (CARD.uuid, "m" * 64, "")),
        (replace(CARD, parent="p" * 65), (CARD.uuid, "Tesla P4", "p" * 64)),
        (replace(CARD, model="m" + "é" * 64), (CARD.uuid, "m" + "é" * 31, "")),
        # A cut UUID could be that of two cards.
        (replace(CARD, uuid=LONG), (name_device(LONG), "Tesla P4", "")),
    ],
    ids=["no model", "instance", "model", "parent", "bytes", "uuid"],
)
def test_every_device_has_every_attribute(
    card: Card, texts: tuple[str, str, str]
) -> None:
    """Of 64 bytes at most: a selector that names a missing one stops all its pods."""
    has = slice_device(card, card.capacity)["attributes"]
    assert [has[key]["string"] for key in ("uuid", "model", "parent")] == [*texts]
    assert has["index"] == {"int": 0}


@pytest.mark.parametrize(
    ("card", "left", "keys"),
    [
        (CARD, Amount(2, 1), []),
        (CARD, Amount(100, 0), [FULL]),
        (CARD, Amount(100, -3), [FULL]),
        (CARD, Amount(1, 94), [FULL]),
        (replace(CARD, healthy=False), Amount(100, 94), [SICK]),
        (replace(CARD, cordoned=True), Amount(100, 0), [CORDONED, FULL]),
    ],
)
def test_no_new_claims(card: Card, left: Amount, keys: list[str]) -> None:
    """A taint says why; the least capacity that the API server accepts stays."""
    device = slice_device(card, left)
    assert taints(device) == keys
    assert memory_of(device) == (
        f"{max(1, left.units) * 256}Mi" if left.units < 9 else "24064Mi"
    )
    assert int(device["capacity"]["cores"]["value"]) == max(2, left.cores)


@pytest.mark.parametrize(
    ("left", "most"),
    [(Amount(100, 94), None), (Amount(100, 90), "99"), (Amount(99, 90), None)],
    ids=["nobody", "memory alone", "memory and a core"],
)
def test_a_card_in_use_is_no_whole_card(left: Amount, most: str | None) -> None:
    """Also of one whose pods have memory and no core, claims get 99 cores at most."""
    policy = slice_device(CARD, left)["capacity"]["cores"]["requestPolicy"]
    assert policy["validRange"].get("max") == most


def test_claims_are_not_subtracted() -> None:
    """What classic pods hold is; cards keep their order."""
    other = replace(CARD, uuid=UUIDS[1], index=1)
    found = slice_devices([CARD, other], {CARD.uuid: (20, 90)})
    assert [memory_of(device) for device in found] == ["1Gi", "24064Mi"]
    assert [device["capacity"]["cores"]["value"] for device in found] == ["80", "100"]


@pytest.mark.parametrize(
    ("order", "wanted"),
    [("index", [0, 1, 2]), ("fullest", [1, 0, 2]), ("emptiest", [0, 2, 1])],
)
def test_kube_scheduler_tries_the_first(order: DeviceOrder, wanted: list[int]) -> None:
    """Cards with as many units left stay in their order."""
    cards = [replace(CARD, uuid=UUIDS[number], index=number) for number in range(3)]
    found = order_cards(cards, {UUIDS[1]: (10, 20)}, order)
    assert [card.index for card in found] == wanted


def test_the_order_follows_claims(tmp_path: Path) -> None:
    """Unlike the values: of a card that a claim fills, less is left."""
    made = DraNode(
        tmp_path, found_card(0), found_card(1), settings={"dra_order": "fullest"}
    )
    with made as node:
        wait_until(node.published, "devices")
        first, second = (card["name"] for card in node.published())
        node.prepare(node.claim("c", 1, units=8))
        node.serving.driver.publisher.publish()
        assert [card["name"] for card in node.published()] == [second, first]


def test_many_cards_are_several_slices_of_one_pool() -> None:
    cards = [
        replace(CARD, uuid=CardUUID(f"GPU-{number:04d}"), index=number)
        for number in range(DEVICES_PER_SLICE + 1)
    ]
    made = build_slices("n", "uid", slice_devices(cards, {}), 7)
    assert [len(body["spec"]["devices"]) for body in made] == [DEVICES_PER_SLICE, 1]
    pool = {"name": "n", "generation": 7, "resourceSliceCount": 2}
    assert [body["spec"]["pool"] for body in made] == [pool, pool]
    # kube-scheduler takes the slices by name.
    assert sorted(body["metadata"]["name"] for body in made) == [
        body["metadata"]["name"] for body in made
    ]
    assert len(build_slices("n", "uid", [], 1)) == 1


def test_the_slice_belongs_to_the_node(node: DraNode) -> None:
    """It goes with the node, as one that kubelet's own library writes."""
    [body] = node.slices()
    [owner] = body["metadata"]["ownerReferences"]
    uid = node.cluster.get(Kind.NODES, "", NODE)["metadata"]["uid"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", NODE, uid)
    assert owner["controller"] is True
    assert body["spec"]["nodeName"] == NODE
    assert [memory_of(card) for card in node.published()] == ["7424Mi", "4864Mi"]


def test_classic_pods_and_cordons_are_seen(node: DraNode) -> None:
    """Each change is published: it is waited for."""
    node.bind("classic", 10, 20, card=1)
    wait_until(
        lambda: [memory_of(card) for card in node.published()] == ["7424Mi", "2304Mi"],
        "the card's room",
    )
    node.cluster.annotate(Kind.NODES, "", NODE, {names.CORDON: UUIDS[0]})
    wait_until(lambda: taints(node.published()[0]) == [CORDONED], "the taint")
    node.end_pod("classic")
    wait_until(lambda: memory_of(node.published()[1]) == "4864Mi", "the room again")


def test_prepared_claims_leave_the_value(node: DraNode) -> None:
    """kube-scheduler subtracts claims itself."""
    claim = node.claim("c", units=8)
    assert not node.prepare_one(claim).error
    node.serving.driver.publisher.publish()
    assert memory_of(node.published()[0]) == "7424Mi"


def test_wiped_and_changed_slices_come_back(node: DraNode) -> None:
    """kubelet deletes them when it starts; each writing has a higher generation."""
    [before] = node.slices()
    node.cluster.delete(Kind.SLICES, "", before["metadata"]["name"])
    wait_until(node.slices, "the slice")
    [after] = node.slices()
    assert after["spec"]["devices"] == before["spec"]["devices"]
    assert generation(after) > generation(before)
    node.cluster.replace(
        Kind.SLICES, {**after, "spec": {**after["spec"], "devices": []}}
    )
    wait_until(node.published, "the devices")


def test_a_restart_goes_on_with_the_generation(node: DraNode) -> None:
    """kube-scheduler heeds only the newest one of a pool."""
    [before] = node.slices()
    node.restart()
    wait_until(
        lambda: generation(node.slices()[0]) > generation(before), "the next writing"
    )


def test_slices_come_back_when_the_api_server_fails_first(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the cards are the same as in the last writing."""
    lists, failed = node.cluster.list_page, Event()

    def fail_once(kind: Kind, **how: Any) -> ListPage:
        if (kind, how["limit"]) == (Kind.SLICES, 500) and not failed.is_set():
            failed.set()
            raise Unavailable("it starts")
        return lists(kind, **how)

    [before] = node.slices()
    monkeypatch.setattr(node.cluster, "list_page", fail_once)
    node.cluster.delete(Kind.SLICES, "", before["metadata"]["name"])
    wait_until(failed.is_set, "the failure")
    wait_until(node.published, "devices")


class Waits(Event):
    """An event that is waited for at once; it is set after so many waits."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.waited: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        if len(self.waited) == self._most:
            self.set()
        return self.is_set()


def test_slices_that_are_refused_are_written_ever_later(node: DraNode) -> None:
    """Twice as late each time, and 15 s at most; else each look would be a write."""
    publisher = node.serving.driver.publisher
    stop = Waits(15)
    node.cut_off()
    replace(publisher, _disturbed=Event(), _wanted=None).run(stop)
    assert stop.waited[1::2] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert len(set(stop.waited[::2])) == 1


def test_a_slice_that_claims_cannot_share_does_not_stay(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the API server has restarted with its feature gate off."""
    create = node.cluster.create

    def create_unshared(kind: Kind, body: Json, **how: Any) -> Json:
        return create(
            kind, without_sharing(body) if kind is Kind.SLICES else body, **how
        )

    monkeypatch.setattr(node.cluster, "create", create_unshared)
    [before] = node.slices()
    node.cluster.delete(Kind.SLICES, "", before["metadata"]["name"])
    off = lambda: "DRAConsumableCapacity" in node.serving.driver.off  # noqa: E731
    wait_until(off, "the reason")
    assert node.slices() == []


def test_no_slice_before_kubelet_knows_the_driver(tmp_path: Path) -> None:
    """kubelet looks at a pod that came before its driver a minute later only."""
    made = DraNode(tmp_path)
    made.is_found = False
    with made:
        wait_until(made.registry_socket.exists, "the socket")
        # Time enough for a publisher that does not wait.
        Event().wait(0.3)
        assert made.slices() == []
        made.kubelet_finds()
        wait_until(made.published, "devices")


def test_a_slice_too_many_is_removed(node: DraNode) -> None:
    [body] = node.slices()
    node.cluster.create(Kind.SLICES, {**body, "metadata": {"name": "other"}})
    wait_until(lambda: len(node.slices()) == 1, "the other slice to go")
    assert node.slices()[0]["metadata"]["name"] != "other"


def test_nothing_is_written_without_a_change(node: DraNode) -> None:
    publisher = node.serving.driver.publisher
    wait_until(lambda: not publisher._disturbed.is_set(), "the watch to be quiet")
    before = node.slices()
    for _ in range(3):
        publisher.publish()
        publisher._disturbed.set()
    assert node.slices() == before


def generation(body: Json) -> int:
    return int(body["spec"]["pool"]["generation"])


def without_sharing(body: Json) -> Json:
    """A slice as an API server stores it whose gate DRAConsumableCapacity is off."""
    devices = [
        {k: v for k, v in device.items() if k != "allowMultipleAllocations"}
        for device in body["spec"]["devices"]
    ]
    return {**body, "spec": {**body["spec"], "devices": devices}}


class OldApi(Embedded):
    """An API server whose gate DRAConsumableCapacity is off, or without DRA."""

    def __init__(self, *, serves: bool) -> None:
        super().__init__(bookmark_every_s=0.1)
        self._serves = serves
        self.asked = 0
        self.stored = False

    def list_page(self, kind, **how):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN003, ANN201
        self.asked += kind is Kind.SLICES
        if kind is Kind.SLICES and not self._serves:
            raise NotFound("the server could not find the requested resource")
        return super().list_page(kind, **how)

    def create(self, kind: Kind, body: Json, *, dry_run: bool = False) -> Json:
        if kind is not Kind.SLICES:
            return super().create(kind, body)
        self.stored |= not dry_run
        return super().create(kind, without_sharing(body), dry_run=dry_run)


@pytest.mark.parametrize(
    ("serves", "why"),
    [(False, "does not serve resource.k8s.io/v1"), (True, "DRAConsumableCapacity")],
)
def test_the_door_stays_shut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, why: str, *, serves: bool
) -> None:
    """Without consumable capacity a claim would get a whole card for itself.

    Also of a slice that is there for a moment only, so none is, and no socket.
    """
    made = DraNode(tmp_path)
    made.cluster = OldApi(serves=serves)
    made.line._cluster = made.cluster
    made.is_found = False
    with made:
        driver = made.serving.driver
        driver.sockets.registered.set()
        wait_until(lambda: why in driver.off, "the reason")
        asked = made.cluster.asked
        wait_until(lambda: made.cluster.asked > asked + 6, "it to look again")
        said = because(caplog, "DRA is off")
        assert len(said) == 1
        assert why in said[0]
        assert not made.registry_socket.parent.exists()
        assert not made.cluster.stored
