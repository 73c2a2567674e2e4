"""``bitfusion.io/gpu`` for quotas: counted by kubelet, and nothing comes of it."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceplugin import kubelet
from deviceplugin.cards import Found
from gpushare.kube import names
from gpushare.kube.cluster import Json
from gpusharectl.demo.devices import Devices
from tests.builders import container_json
from tests.deviceplugin.house import UUIDS, C, House, M, found_card, inside, visible
from tests.testbed.waiting import wait_until

Q = names.BITFUSION_GPU
SOCKET = "bitfusion.io_gpu.sock"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    cards = (found_card(0), found_card(1))
    with House(tmp_path, *cards, settings={"bitfusion_quota": True}) as found:
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
    with House(tmp_path) as plain:
        assert plain.devices.capacity().keys() == {C, M}
        assert not (tmp_path / "device-plugins" / SOCKET).exists()


def test_a_hundred_for_each_card_that_is_well(house: House) -> None:
    """As many as cores; a sick card's are still there, and not to be had."""
    house.cards.failures[UUIDS[0]] = "it does not answer"
    wait_for(house.devices, 100)
    assert house.devices.capacity()[Q] == 200
    house.cards.failures.clear()
    wait_for(house.devices, 200)


def test_a_cordoned_cards_are_counted(house: House) -> None:
    """As its cores are: what runs there goes on, over a restart of kubelet too."""
    house.serving.offer.set_cordoned([UUIDS[0]])
    house.cards.failures[UUIDS[1]] = "it does not answer"
    wait_for(house.devices, 100)


def test_a_card_that_vanishes_stays_counted_as_sick(house: House) -> None:
    """kubelet fails pods whose device ids are no more."""
    house.cards.found = Found((found_card(1),))
    wait_for(house.devices, 100)
    assert house.devices.capacity()[Q] == 200


def test_a_pod_gets_its_card_and_nothing_more(house: House) -> None:
    """The answer for it is empty, so it cannot contradict the others'."""
    asked = [asking(14, 50, 50)]
    given = house.run(house.bind("half", containers=asked, card=1))["main"]
    assert visible(given) == (UUIDS[1],)
    assert inside(given)["cards"][0]["units"] == 14
    (held,) = house.serving.admission._whose.look().held(("default", "half")).values()
    assert {resource: len(ids) for resource, ids in held.items()} == {C: 50, M: 14}
    bare = house.bind("bare", containers=[asking(14, 50, 50)], card=1)
    del bare["spec"]["containers"][0]["resources"]["limits"][C]
    del bare["spec"]["containers"][0]["resources"]["limits"][M]
    del bare["spec"]["containers"][0]["resources"]["requests"]
    only = house.admit(bare)["main"]
    assert (only.envs, only.mounts, only.devices) == ({}, {}, {})


def test_more_than_there_is_kubelet_refuses(house: House) -> None:
    """In its own words: it has counted."""
    first = house.bind("all", containers=[asking(1, 1, 200)])
    house.admit(first)
    more = house.bind("more", containers=[asking(1, 1, 1)])
    assert f"requested number of devices unavailable for {Q}" in house.refuse(more)


def test_it_is_registered_again_after_kubelets_restart(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Which removes all sockets and forgets all plugins; this one like the others."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(kubelet, "_LOOK_S", 0.05)
    house.devices.close()
    with Devices(house.folder) as after:
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


def test_it_ends_with_the_others(house: House) -> None:
    """Its socket is gone, and kubelet knows."""
    socket = house.folder / "device-plugins" / SOCKET
    assert socket.stat().st_mode & 0o777 == 0o600
    house.end()
    assert not socket.exists()
    wait_for(house.devices, 0)
