"""The Bitfusion quota beside the real resources."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.kubelet.plugin import CardCountFile, QuotaPlugin
from gpushare.cards.source import FoundCards
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpushare.kubelet.pods import DeviceId
from gpusharectl.demo.devices import Devices
from tests.builders import container_json
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

Q = names.BITFUSION_GPU


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFixture]:
    cards = (found_card(0), found_card(1))
    with NodeFixture(tmp_path, *cards, settings={"bitfusion_quota": True}) as found:
        wait_for(found.devices, 200)
        yield found


def wait_for(devices: Devices, count: int) -> None:
    wait_until(lambda: devices.allocatable().get(Q) == count, f"{count} of {Q}")


def asking(units: int, cores: int, counted: int) -> Json:
    """A container as the webhook leaves it."""
    container = container_json("main", units, cores)
    container["resources"]["limits"][Q] = str(counted)
    return container


def told(node: NodeFixture) -> list[tuple[str, bool]]:
    """What kubelet is told: ids, each with whether it is healthy."""
    service = node.serving.registrars[-1].plugin
    assert isinstance(service, QuotaPlugin)
    return list(service.devices())


def test_no_card_makes_them_sick(node: NodeFixture) -> None:
    """kubelet mixes them, so a sick one would have pods of other cards refused."""
    before = told(node)
    ids = [name for name, _ in before]
    assert (ids[0], ids[-1], len(set(ids))) == ("quota-00000", "quota-00199", 200)
    assert not [device_id for device_id in ids if DeviceId.parse(device_id)]
    node.cards.failures[UUIDS[0]] = "it does not answer"
    node.serving.parts.offer.set_cordoned([UUIDS[1]])
    wait_until(node.devices.allocatable, "a", accept=lambda seen: seen[C] == 100)
    assert told(node) == before
    assert (node.devices.allocatable()[Q], node.devices.capacity()[Q]) == (200, 200)


def test_a_card_that_vanishes_takes_none_along(node: NodeFixture) -> None:
    before = told(node)
    node.cards.found = FoundCards((found_card(1),))
    wait_until(node.devices.allocatable, "a", accept=lambda seen: seen[C] == 100)
    assert told(node) == before
    node.restart()
    wait_until(node.devices.capacity, "one", accept=lambda seen: seen[C] == 100)
    wait_for(node.devices, 200)
    assert told(node) == before
    node.cards.found = FoundCards((found_card(0), found_card(1), found_card(2)))
    wait_for(node.devices, 300)
    assert told(node)[:200] == before


@pytest.mark.parametrize("text", ["", "two\n", "1001", "99999999999", "\xb2"])
def test_a_broken_file_is_told_and_counted_anew(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "quota-cards"
    path.write_text(text)
    most = CardCountFile(path)
    (record,) = caplog.records
    assert record.file == str(path)  # type: ignore[attr-defined]
    assert most.with_now(2) == 2
    assert CardCountFile(path).with_now(1) == 2


def test_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    most = CardCountFile(tmp_path / "file" / "quota-cards")
    assert (most.with_now(2), most.with_now(1)) == (2, 2)
    assert "cannot be kept" in caplog.text


def test_a_pod_gets_its_card_and_nothing_more(node: NodeFixture) -> None:
    """The answer for it is empty, so it cannot contradict the others'."""
    asked = [asking(14, 50, 50)]
    given = node.run(node.bind("half", containers=asked, card=1))["main"]
    assert visible(given) == (UUIDS[1],)
    assert inside(given)["cards"][0]["units"] == 14
    (held,) = node.occupancy.listed(60).held_by(("default", "half")).values()
    assert {resource: len(ids) for resource, ids in held.items()} == {C: 50, M: 14}
    bare = node.bind("bare", containers=[asking(14, 50, 50)], card=1)
    bare["spec"]["containers"][0]["resources"] = {"limits": {Q: "50"}}
    only = node.admit(bare)["main"]
    assert (only.envs, only.mounts, only.devices) == ({}, {}, {})
