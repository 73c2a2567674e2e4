"""A card in MIG mode over the stub driver: its instances are cards of their own."""

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from deviceplugin.cards.advertised import Offer
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.cards.source import MigInstance
from gpushare.domain.model import CardUUID
from tests.gpushare.cards.nvml_fixture import P4, Pair, card, failures, pair, readings
from tests.nvml.driver import (
    StubCard,
    StubDriver,
    StubInstance,
    stub_card,
    stub_instance,
)

MODEL = "NVIDIA A100-SXM4-40GB"
A100 = stub_card(1, model=MODEL, memory_mib=40960, mig=True)
NOT_FOUND = "it is not found any more"


def instance(place: int, **others: object) -> StubInstance:
    return stub_instance(A100, place, **others)


SMALL = instance(0, used_mib=100)
LARGE = instance(2, gi=1, slices=2, memory_mib=9984, model=f"{MODEL} MIG 2g.10gb")


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Pair]:
    """A full card, and one in MIG mode that has two instances."""
    with pair(tmp_path, P4, A100, root=tmp_path) as (driver, source):
        driver.set_instances(SMALL, LARGE)
        yield driver, source


@pytest.fixture
def driver(both: Pair) -> StubDriver:
    return both[0]


@pytest.fixture
def source(both: Pair) -> NvmlCards:
    return both[1]


def uuids(source: NvmlCards) -> list[str]:
    return [found.uuid for found in source.cards().cards]


def left_out(source: NvmlCards) -> dict[str, str]:
    return {card.name: card.because for card in source.cards().left_out}


def faults(source: NvmlCards) -> list[str | None]:
    """Take all faults that the driver has told so far."""
    found = []
    while (event := source.wait_for_event(0.01)) is not None:
        found.append(event.uuid)
    return found


def test_each_instance_is_a_card(source: NvmlCards) -> None:
    """With its own memory, and its card's place; full cards keep their numbers."""
    found = source.cards()
    full, small, large = found.cards
    assert (full, found.left_out) == (card(P4, 0), ())
    assert (small.uuid, small.index, small.memory_mib) == (SMALL.uuid, 110, 4864)
    assert (large.uuid, large.index, large.memory_mib) == (LARGE.uuid, 112, 9984)
    assert (large.model, large.bus, large.minor) == (LARGE.model, A100.bus, A100.minor)
    assert large.instance == MigInstance(
        CardUUID(A100.uuid), 1, 0, "2g.10gb", 1, A100.model
    )
    assert {u: reading.used_mib for u, reading in readings(source).items()} == {
        P4.uuid: 300,
        SMALL.uuid: 100,
        LARGE.uuid: 0,
    }


def test_units_are_of_the_instances_own_memory(source: NvmlCards) -> None:
    """4864 and 9984 MiB are 19 and 39 units; each has 100 cores and knows its card."""
    offer = Offer(reserve_mib=0)
    offer.set_found(source.cards().cards)
    assert [(card.units, card.parent) for card in offer.cards.all] == [
        (29, ""),
        (19, A100.uuid),
        (39, A100.uuid),
    ]


def test_a_card_without_instances_says_so(
    driver: StubDriver, source: NvmlCards
) -> None:
    driver.set_instances()
    assert uuids(source) == [P4.uuid]
    assert "nvidia-smi mig -cgi" in left_out(source)[A100.uuid]


def test_instances_come_and_go(driver: StubDriver, source: NvmlCards) -> None:
    """One that was destroyed stays offered, as sick; it is no lost card."""
    offer = Offer(reserve_mib=0)
    offer.set_found(source.cards().cards)
    third = instance(3)
    driver.set_instances(SMALL, third)
    offer.set_found(source.cards().cards)
    assert [card.uuid for card in offer.cards.all if card.healthy] == [
        P4.uuid,
        SMALL.uuid,
        third.uuid,
    ]
    assert offer.sick() == {LARGE.uuid: NOT_FOUND}
    assert set(failures(source)) == {P4.uuid, SMALL.uuid, third.uuid}
    driver.set_instances(SMALL, third, LARGE)
    offer.set_found(source.cards().cards)
    assert offer.sick() == {}


@pytest.mark.parametrize("begins_with", [False, True], ids=["on", "off"])
def test_the_mode_changes_at_run_time(
    driver: StubDriver, source: NvmlCards, begins_with: bool
) -> None:
    """What was offered before is sick; what is there now is offered."""
    offer = Offer(reserve_mib=0)
    driver.change(1, mig=begins_with)
    if not begins_with:
        driver.set_instances()
    before = uuids(source)
    offer.set_found(source.cards().cards)
    driver.change(1, mig=not begins_with)
    driver.set_instances(*(() if begins_with else (SMALL, LARGE)))
    found = source.cards()
    offer.set_found(found.cards)
    vanished = set(before) - {P4.uuid}
    assert offer.sick() == dict.fromkeys(vanished, NOT_FOUND)
    whole, cut = {A100.uuid}, {SMALL.uuid, LARGE.uuid}
    assert {card.uuid for card in found.cards} == {P4.uuid} | (
        whole if begins_with else cut
    )


def test_a_lost_card_takes_its_instances(driver: StubDriver, source: NvmlCards) -> None:
    source.cards()
    driver.lose(A100.uuid)
    found = source.cards()
    assert len(found.cards) == 3
    because = "the driver has lost it (GPU is lost)"
    # The driver was opened again meanwhile, so their handles are gone.
    assert failures(source) == {P4.uuid: "", SMALL.uuid: because, LARGE.uuid: because}
    driver.find(A100.uuid)
    source.cards()
    assert set(failures(source).values()) == {""}


def test_compute_instances_that_share_memory(
    driver: StubDriver, source: NvmlCards
) -> None:
    """Each would tell all of the memory of its GPU instance; none is offered."""
    driver.set_instances(SMALL, LARGE, instance(4, gi=1, ci=1))
    assert uuids(source) == [P4.uuid, SMALL.uuid]
    assert "shares the memory of GPU instance 1" in left_out(source)[LARGE.uuid]


def test_an_instance_that_does_not_answer(
    driver: StubDriver, source: NvmlCards
) -> None:
    """It may just be destroyed; the others are found."""
    driver.fail(LARGE.uuid, "DeviceGetUUID", pynvml.NVML_ERROR_INVALID_ARGUMENT)
    assert uuids(source) == [P4.uuid, SMALL.uuid]
    assert f"instance 2 of {A100.uuid}" in left_out(source)


def test_a_fault_of_an_instance(driver: StubDriver, source: NvmlCards) -> None:
    source.cards()
    assert source.reports_faults_of(CardUUID(LARGE.uuid))
    driver.xid(LARGE.uuid, 48)
    driver.xid(P4.uuid, 79)
    assert faults(source) == [LARGE.uuid, P4.uuid]


def test_a_fault_of_the_card_is_one_of_each_instance(
    driver: StubDriver, source: NvmlCards
) -> None:
    source.cards()
    driver.xid(A100.uuid, 79)
    assert faults(source) == [SMALL.uuid, LARGE.uuid]


def test_a_fault_of_an_unknown_instance(driver: StubDriver, source: NvmlCards) -> None:
    """It came between two looks: no other instance is to blame."""
    source.cards()
    third = instance(3)
    driver.set_instances(SMALL, LARGE, third)
    driver.xid(third.uuid, 79)
    assert faults(source) == [A100.uuid]


def capability(root: Path, card: StubCard, below: str, minor: int) -> None:
    folder = root / f"proc/driver/nvidia/capabilities/gpu{card.minor}/mig" / below
    folder.mkdir(parents=True)
    told = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    (folder / "access").write_text(told)


def test_device_nodes_are_those_of_both_instances(
    tmp_path: Path, source: NvmlCards
) -> None:
    """Half of them would let a container see nothing, so it is both or none."""
    capability(tmp_path, A100, "gi1", 21)
    capability(tmp_path, A100, "gi1/ci0", 22)
    capability(tmp_path, A100, "gi7", 66)
    _, small, large = source.cards().cards
    assert small.device_nodes == ()
    assert large.device_nodes == (
        "/dev/nvidia-caps/nvidia-cap21",
        "/dev/nvidia-caps/nvidia-cap22",
    )
