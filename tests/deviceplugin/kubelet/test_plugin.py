"""The Bitfusion quota beside the real resources."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin.cards.devices import DeviceId
from deviceplugin.cards.source import Found
from deviceplugin.kubelet.plugin import CardCountFile, QuotaPlugin
from gpushare.kube import names
from gpushare.kube.cluster import Json
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
SOCKET = "bitfusion.io_gpu.sock"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeFixture]:
    cards = (found_card(0), found_card(1))
    with NodeFixture(tmp_path, *cards, settings={"bitfusion_quota": True}) as found:
        wait_for(found.devices, 200)
        yield found


def wait_for(devices: Devices, count: int) -> None:
    wait_until(
        devices.allocatable,
        f"{count} of {Q}",
        accept=lambda seen: seen.get(Q) == count,
    )


def asking(units: int, cores: int, counted: int) -> Json:
    """A container as the webhook leaves it."""
    container = container_json("main", units, cores)
    container["resources"]["limits"][Q] = str(counted)
    return container


def test_without_the_option_nobody_counts_it(tmp_path: Path) -> None:
    """What was never registered is never told."""
    with NodeFixture(tmp_path) as plain:
        assert plain.devices.capacity().keys() == {C, M}
        assert not (tmp_path / "device-plugins" / SOCKET).exists()


def told(node: NodeFixture) -> list[tuple[str, bool]]:
    """What kubelet is told: ids, each with whether it is healthy."""
    (service,) = [
        one._plugin
        for one in node.serving.registrars
        if isinstance(one._plugin, QuotaPlugin)
    ]
    return list(service.devices())


def test_no_card_makes_them_sick(node: NodeFixture) -> None:
    """kubelet mixes them, so a sick one would have pods of other cards refused."""
    before = told(node)
    node.cards.failures[UUIDS[0]] = "it does not answer"
    node.serving.offer.set_cordoned([UUIDS[1]])
    wait_until(node.devices.allocatable, "a", accept=lambda seen: seen[C] == 100)
    assert told(node) == before
    assert (node.devices.allocatable()[Q], node.devices.capacity()[Q]) == (200, 200)


def test_their_ids_name_no_card(node: NodeFixture) -> None:
    """They are numbers, the same for ever, and short enough for kubelet's list."""
    ids = [name for name, _ in told(node)]
    assert (ids[0], ids[-1], len(set(ids))) == ("quota-00000", "quota-00199", 200)
    assert not [one for one in ids if DeviceId.parse(one)]


def test_a_card_that_vanishes_takes_none_along(node: NodeFixture) -> None:
    """Not while the plugin runs, and not when it starts anew, as after a reboot."""
    before = told(node)
    node.cards.found = Found((found_card(1),))
    wait_until(node.devices.allocatable, "a", accept=lambda seen: seen[C] == 100)
    assert told(node) == before
    node.end()
    node.start()
    wait_until(node.devices.capacity, "one", accept=lambda seen: seen[C] == 100)
    wait_for(node.devices, 200)
    assert told(node) == before


def test_a_card_that_comes_brings_a_hundred(node: NodeFixture) -> None:
    """And those before keep their ids."""
    before = told(node)
    node.cards.found = Found((found_card(0), found_card(1), found_card(2)))
    wait_for(node.devices, 300)
    assert told(node)[:200] == before


@pytest.mark.parametrize("text", ["", "two\n", "1001", "99999999999", "\xb2"])
def test_a_broken_file_is_told_and_counted_anew(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It stops nobody."""
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
    """The number holds as long as the process."""
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
    (held,) = node.serving.admission._finder.listed().held(("default", "half")).values()
    assert {resource: len(ids) for resource, ids in held.items()} == {C: 50, M: 14}
    bare = node.bind("bare", containers=[asking(14, 50, 50)], card=1)
    del bare["spec"]["containers"][0]["resources"]["limits"][C]
    del bare["spec"]["containers"][0]["resources"]["limits"][M]
    del bare["spec"]["containers"][0]["resources"]["requests"]
    only = node.admit(bare)["main"]
    assert (only.envs, only.mounts, only.devices) == ({}, {}, {})


def test_more_than_there_is_kubelet_refuses(node: NodeFixture) -> None:
    """In its own words: it has counted."""
    first = node.bind("all", containers=[asking(1, 1, 200)])
    node.admit(first)
    more = node.bind("more", containers=[asking(1, 1, 1)])
    assert f"requested number of devices unavailable for {Q}" in node.refuse(more)


def test_it_is_registered_again_after_kubelets_restart(
    node: NodeFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Which removes all sockets and forgets all plugins; this one like the others."""
    caplog.set_level(logging.INFO)
    node.devices.close()
    with Devices(node.folder) as after:
        wait_for(after, 200)
        wait_until(
            after.allocatable,
            "the others",
            accept=lambda seen: (seen.get(C), seen.get(M)) == (200, 58),
        )
    said = [
        one.resource for one in caplog.records if one.message == "registration ended"
    ]
    assert Q in said


def test_it_ends_with_the_others(node: NodeFixture) -> None:
    """Its socket is gone, and kubelet knows."""
    socket = node.folder / "device-plugins" / SOCKET
    assert socket.stat().st_mode & 0o777 == 0o600
    node.end()
    assert not socket.exists()
    wait_for(node.devices, 0)
