"""What the driver says of memory limits, over the stub driver."""

from pathlib import Path

import pytest

from gpushare.cards.limits import DriverLimits
from gpushare.domain.model import CardUUID
from tests.gpushare.cards.nvml_fixture import P4, TITAN, pair
from tests.nvml.driver import NOT_SUPPORTED, stub_card

ONE, TWO = CardUUID(P4.uuid), CardUUID(TITAN.uuid)


def test_a_driver_with_limits(tmp_path: Path) -> None:
    mig = stub_card(2, mig=True)
    with pair(tmp_path, P4, TITAN, mig) as (driver, source):
        source.cards()
        driver.set_version("615.38.02")
        limits, third = DriverLimits(), CardUUID(mig.uuid)
        assert limits.version() == "615.38.02"
        assert limits.refused([ONE, third]) == {ONE: "", third: "it is in MIG mode"}
        driver.fail(TITAN.uuid, "DeviceGetMemoryLimits", NOT_SUPPORTED)
        driver.lose(P4.uuid)
        told = limits.refused([ONE, TWO])
        assert "GPU is lost" in told[ONE]
        assert told[TWO].startswith("NVML answers for its memory limits: ")


@pytest.mark.parametrize("opened", [True, False])
def test_a_driver_without_them(tmp_path: Path, *, opened: bool) -> None:
    with pair(tmp_path, P4, old=True) as (_, source):
        if opened:
            source.cards()
        limits = DriverLimits()
        assert bool(limits.version()) == opened
        why = "the driver's NVML has no memory limits" if opened else "unloaded"
        assert why in limits.refused([ONE])[ONE]
