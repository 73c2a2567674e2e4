"""The driver's sockets, its registration, and the health that it tells."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import pytest

from deviceplugin.dra import driver
from deviceplugin.dra.driver import _Server
from deviceplugin.dra.prepared import PreparedResourceClaims
from deviceplugin.kubelet.registration import identify_socket
from gpushare.cards.source import FoundCards
from gpushare.kube.cluster import Kind, ListPage
from gpushare.kube.errors import NotFound
from gpushare.kube.names import DRA_DRIVER
from gpushare.kube.proto import drahealth_pb2 as health
from tests.deviceplugin.dra.dra_fixture import DraNode, device_of, env_of
from tests.deviceplugin.node_fixture import (
    NODE,
    UUIDS,
    NodeFixture,
    because,
    found_card,
)
from tests.testbed.waiting import wait_until

STUCK = "prepared claims are left, and kubelet cannot end their pods"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DraNode]:
    with DraNode(tmp_path, found_card(0), found_card(1)) as made:
        yield made


@contextmanager
def driver_alone(node: DraNode) -> Iterator[None]:
    """The driver runs, and no card has been found."""
    node.end()
    stop, made = Event(), node.assembled()
    thread = Thread(target=made.driver.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)


def test_registration(node: DraNode) -> None:
    """What kubelet needs to know; only root may connect."""
    info = node.kubelet_finds()
    assert (info.type, info.name) == ("DRAPlugin", DRA_DRIVER)
    assert info.endpoint == str(node.folder / "plugins" / DRA_DRIVER / "dra.sock")
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1alpha1.DRAResourceHealth",
    ]
    for path in (node.registry_socket, Path(info.endpoint)):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_removed_socket_comes_back(node: DraNode) -> None:
    """As when a kubelet's folder is emptied."""
    claim = node.claim("c")
    before = Path(node.kubelet_finds().endpoint)
    node.registry_socket.unlink()
    wait_until(node.registry_socket.exists, "the socket")
    assert not node.prepare_one(claim).error
    before.unlink()
    wait_until(before.exists, "the other socket")
    assert not node.prepare_one(claim).error


def test_the_end_leaves_no_socket(node: DraNode) -> None:
    """kubelet learns by it that the driver has ended; slices stay, as they should."""
    endpoint = Path(node.kubelet_finds().endpoint)
    wait_until(node.published, "devices")
    node.end()
    assert not node.registry_socket.exists()
    assert not endpoint.exists()
    assert node.slices()
    node.start()
    assert node.kubelet_finds().endpoint == str(endpoint)


def test_health_is_told_at_each_change(node: DraNode) -> None:
    """In one stream, which kubelet leaves open."""
    well, sick = (health.HEALTHY, ""), (health.UNHEALTHY, "XID 79")
    told = node.health()
    assert next(told) == {device_of(0): well, device_of(1): well}
    node.cards.failures[UUIDS[1]] = "XID 79"
    assert next(told) == {device_of(0): well, device_of(1): sick}


def test_health_is_told_again_though_nothing_changes(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubelet takes one that it did not hear for 30 s for unknown."""
    monkeypatch.setattr(driver, "_HEALTH_AGAIN_S", 0.02)
    told = node.health()
    assert next(told) == next(told)


def test_health_of_a_card_that_only_a_claim_still_has(node: DraNode) -> None:
    """After a restart nobody offers it. Before any card is found, it is unknown."""
    node.prepare(node.claim("c", 1))
    node.end()
    node.cards.found = FoundCards((found_card(0),))
    node.start()
    gone = (health.UNHEALTHY, "this node has no such card any more")
    well = (health.HEALTHY, "")
    assert next(node.health()) == {device_of(0): well, device_of(1): gone}
    with driver_alone(node):
        unknown = (health.UNKNOWN, "no card of this node has been found yet")
        assert next(node.health()) == {device_of(1): unknown}
    node.start()


def test_who_is_on_a_sick_card_by_a_claim(
    node: DraNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Its claims, and the pods that use them, beside the classic pods."""
    node.pod_with("by-claim", {"main": "c"})
    node.pod_with("elsewhere", {"main": "other"})
    node.prepare(node.claim("c", 1), node.claim("other", 0))
    node.run(node.bind("classic", 4, 1, card=1))
    node.cards.failures[UUIDS[1]] = "XID 79"

    def told() -> list[tuple[str, str]]:
        lines = [
            line for line in list(caplog.records) if line.message == "card is sick"
        ]
        return [(line.pods, line.claims) for line in lines]  # type: ignore[attr-defined]

    wait_until(told, "the log line")
    assert told() == [("default/by-claim, default/classic", "default/c")]


def test_an_older_driver_takes_nothing_of_a_newer_one(tmp_path: Path) -> None:
    """As when a plugin is replaced: the older one ends while the newer one is there."""
    path = tmp_path / "s"
    with _Server(path) as newer:
        with _Server(path) as older:
            older.start()
            newer.start()
            there = identify_socket(path)
        assert identify_socket(path) == there
        assert newer.is_there()
    assert not list(tmp_path.iterdir())


def switch_off(node: DraNode) -> None:
    node.restart(dra=False)


def test_claims_are_taken_back_while_dra_is_off(
    node: DraNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Else their pods would never end. None is prepared, and no card is offered."""
    claim, late = node.claim("c"), node.claim("late")
    node.prepare(claim)
    wait_until(node.published, "devices")
    switch_off(node)
    for refused in (claim, late):
        assert "DRA is switched off on this node" in node.prepare_one(refused).error
    assert env_of(node.specification(claim))
    assert set(node.unprepare(claim, late).values()) == {""}
    assert not list(node.cdi.glob("*share*"))
    wait_until(lambda: not node.slices(), "the slices to go")
    assert not because(caplog, STUCK)


def test_files_without_a_claim_are_removed_while_dra_is_off(node: DraNode) -> None:
    """Not those of others, and none while a claim is left."""
    claim = node.claim("c")
    node.prepare(claim)
    stale = node.cdi / f"{DRA_DRIVER}-share_gone.json"
    stale.write_text("{}")
    other = node.cdi / "nvidia.json"
    other.write_text("{}")
    switch_off(node)
    node.unprepare(claim)
    assert stale.exists()
    node.restart()
    wait_until(lambda: not stale.exists(), "the file to go")
    assert other.exists()


def test_claims_are_taken_back_before_there_are_cards(node: DraNode) -> None:
    """As after a reboot whose driver of the cards does not load."""
    claim = node.claim("c")
    node.prepare(claim)
    with driver_alone(node):
        assert "no card of this node" in node.prepare_one(claim).error
        assert set(node.unprepare(claim).values()) == {""}
    node.start()


def test_claims_are_taken_back_where_the_api_has_gone(node: DraNode) -> None:
    """Then the driver is not found any more, as if it had never been there."""
    claim = node.claim("c")
    node.prepare(claim)
    node.end()
    lists = node.cluster.list_page

    def no_slices(kind: Kind, **how: Any) -> ListPage:
        if kind is Kind.SLICES:
            raise NotFound("the server could not find the requested resource")
        return lists(kind, **how)

    node.cluster.list_page = no_slices  # type: ignore[method-assign, assignment]
    node.start()
    assert "does not serve resource.k8s.io/v1" in node.prepare_one(claim).error
    assert set(node.unprepare(claim).values()) == {""}
    wait_until(lambda: not node.registry_socket.exists(), "the socket to go")


def test_who_cannot_take_claims_back_says_so(
    node: DraNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Without kubelet's folders, as after an installation without DRA."""
    node.prepare(node.claim("c"))
    node.end()
    node.registry_socket.parent.rmdir()
    node.settings = replace(node.settings, dra=False)
    node.is_found = False
    node.start()
    wait_until(lambda: because(caplog, STUCK), "the log line")
    assert not node.registry_socket.parent.exists()


def set_runtime(node: DraNode, runtime: str) -> None:
    info = {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": runtime}
    status = {"status": {"nodeInfo": info}}
    node.cluster.patch(Kind.NODES, "", NODE, status, subresource="status")


def test_a_runtime_that_may_not_read_specifications(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its containers would start with all cards that their image asks for."""
    with DraNode(tmp_path) as node:
        wait_until(node.published, "devices")
        claim = node.claim("c")
        node.end()
        set_runtime(node, "containerd://1.7.27")
        node.is_found = False
        node.start()
        words = "whether the runtime containerd 1.7.27 reads CDI specifications"
        said = lambda: because(caplog, "DRA is off")  # noqa: E731
        wait_until(lambda: any(words in message for message in said()), "the log line")
        wait_until(lambda: not node.slices(), "no slices")
        set_runtime(node, "containerd://2.1.4")
        assert not node.prepare_one(claim).error
        wait_until(node.published, "devices")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("has_cards", [True, False])
def test_half_a_driver_ends(
    node: DraNode, monkeypatch: pytest.MonkeyPatch, has_cards: bool
) -> None:
    """Then the whole process does, and a new one is complete: it is waited for."""
    node.end()
    made = node.assembled()
    if has_cards:
        made.driver.cards_read.set()
    broken = Mock(side_effect=RuntimeError("a defect"))
    monkeypatch.setattr(PreparedResourceClaims, "restore", broken)
    stop = Event()
    thread = Thread(target=made.driver.run, args=(stop,), daemon=True)
    thread.start()
    try:
        wait_until(lambda: not thread.is_alive(), "the driver to end")
    finally:
        stop.set()
        monkeypatch.undo()
    node.start()


def test_off_by_default(tmp_path: Path) -> None:
    """No socket, no slice, and none of the rights that these need."""
    with NodeFixture(tmp_path) as node:
        assert node.serving.driver.off
        assert not (tmp_path / "plugins_registry").exists()
        assert not node.cluster.list_page(Kind.SLICES, limit=1).items
