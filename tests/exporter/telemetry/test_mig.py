"""What the driver tells of MIG instances: less than of a card, and nothing twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.telemetry import fields
from exporter.telemetry.base import ProcessUse, SmSource
from gpushare.domain.model import CardUUID
from tests.gpushare.cards.nvml_fixture import OTHER, Watch, watch
from tests.nvml.driver import stub_card, stub_instance

H100 = stub_card(0, model="NVIDIA H100", memory_mib=81559, mig=True)
ONE = stub_instance(H100, 0, gi=9, used_mib=512, model="NVIDIA H100 MIG 1g.10gb")
TWO = stub_instance(H100, 1, gi=3, model="NVIDIA H100 MIG 2g.20gb")


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[Watch]:
    """A card in MIG mode and a full one, both hard at work."""
    with watch(tmp_path, H100, OTHER) as found:
        found.driver.set_instances(ONE, TWO)
        found.driver.values("*", gpu_util=50, power=30000, temperature=40)
        found.driver.values("*", gpm=1, gpm_sm=50)
        found.telemetry.cards()
        yield found


def test_what_is_not_told_is_absent(cut: Watch) -> None:
    """Never 0, which would be an idle, cold card without any use of power."""
    wanted = {fields.FB_USED, fields.FB_TOTAL}
    silent = {fields.GPU_UTIL, fields.POWER_USAGE, fields.GPU_TEMP}
    for group in (fields.MEMORY, *{f.group for f in fields.FIELDS if f.name in silent}):
        told = cut.telemetry.read(group, wanted | silent)[CardUUID(ONE.uuid)]
        assert told.values == {fields.FB_USED: 512.0, fields.FB_TOTAL: 4864.0}
        assert (told.unsupported, told.failure) == (silent, "")


def test_profiling_is_of_the_instance(cut: Watch) -> None:
    """Sampled by its card and its number; the whole card's would be another."""
    cut.driver.values(ONE.uuid, gpm_sm=80)
    cut.driver.values(TWO.uuid, gpm_sm=None)
    told = cut.telemetry.read(fields.PROFILING, [fields.SM_ACTIVE])
    assert {uuid: says.values for uuid, says in told.items()} == {
        CardUUID(ONE.uuid): {fields.SM_ACTIVE: 0.8},
        CardUUID(TWO.uuid): {},
        CardUUID(OTHER.uuid): {fields.SM_ACTIVE: 0.5},
    }
    assert told[CardUUID(TWO.uuid)].unsupported == {fields.SM_ACTIVE}


def test_profiling_of_an_instance_whose_card_is_lost(cut: Watch) -> None:
    """It has failed; the others go on."""
    cut.telemetry.read(fields.PROFILING, [fields.SM_ACTIVE])
    cut.driver.lose(H100.uuid)
    told = cut.telemetry.read(fields.PROFILING, [fields.SM_ACTIVE])
    assert told[CardUUID(ONE.uuid)].failure
    assert told[CardUUID(OTHER.uuid)].values == {fields.SM_ACTIVE: 0.5}


def test_each_process_is_on_its_own_instance(cut: Watch) -> None:
    """With its memory; how busy it is, the driver does not tell."""
    for pid, on in ((11, ONE), (12, ONE), (13, TWO), (14, OTHER)):
        cut.driver.process(on.uuid, pid, 64)
    told = cut.telemetry.processes()
    assert told[CardUUID(ONE.uuid)].processes == (
        ProcessUse(11, 64.0),
        ProcessUse(12, 64.0),
    )
    assert [process.pid for process in told[CardUUID(TWO.uuid)].processes] == [13]
    assert told[CardUUID(ONE.uuid)].sm_source is SmSource.NONE
    assert CardUUID(H100.uuid) not in told
