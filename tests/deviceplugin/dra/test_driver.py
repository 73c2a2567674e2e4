"""The driver's sockets, its registration, and the health that it tells."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.kube.names import DRA_DRIVER
from gpushare.kube.proto import drahealth_pb2 as health
from tests.deviceplugin.dra.dra_fixture import DraNode, device_of
from tests.deviceplugin.node_fixture import UUIDS, NodeFixture, found_card
from tests.testbed.waiting import wait_until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DraNode]:
    with DraNode(tmp_path, found_card(0), found_card(1)) as made:
        yield made


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
    well = (health.HEALTHY, "")
    assert node.health(1) == [{device_of(0): well, device_of(1): well}]
    node.cards.failures[UUIDS[1]] = "XID 79"
    offer = node.serving.parts.offer
    wait_until(lambda: not offer.cards.all[1].healthy, "the card to be sick")
    sick = (health.UNHEALTHY, "XID 79")
    assert node.health(1) == [{device_of(0): well, device_of(1): sick}]


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
        lines = [one for one in list(caplog.records) if one.message == "card is sick"]
        return [(one.pods, one.claims) for one in lines]  # type: ignore[attr-defined]

    wait_until(told, "the log line")
    assert told() == [("default/by-claim, default/classic", "default/c")]


def test_off_by_default(tmp_path: Path) -> None:
    """No socket, no slice, and none of the rights that these need."""
    with NodeFixture(tmp_path) as node:
        assert node.serving.driver is None
        assert not (tmp_path / "plugins_registry").exists()
