"""Cases of NVIDIA's dcgm-exporter beside ours: a card is told of once, by ours."""

from tests.monitoring.alertcases import CARD, Case, Series, card, one, summed
from tests.monitoring.alertcases_cards import (
    AGG,
    BAD,
    DBE,
    GPU_TEMP,
    HEAT,
    OF,
    POWER,
    ROWS,
    SBE,
    fires,
)

DCGM = {"NodeName": "", "hostname": "n", "job": "nvidia-dcgm-exporter"}
"""How NVIDIA's own exporter tells of the same card: without NodeName."""


def twice(name: str, values: str) -> Series:
    return summed(card(name, values), {one(name, CARD, DCGM): values})


CASES = (
    fires(
        "VcudaHot",
        "once, of a card that dcgm-exporter tells of too",
        6,
        twice(GPU_TEMP, "86x20"),
        f"86 °C: {OF}",
        severity="warning",
    ),
    fires(
        "VcudaEcc",
        "a double-bit error, once",
        15,
        twice(DBE, "0x5 1x20"),
        BAD,
        severity="critical",
    ),
    *(
        Case("VcudaEcc", f"dcgm-exporter's {name}", 15, {one(name, CARD, DCGM): values})
        for name, values in (
            (AGG, "0x5 1x20"),
            (ROWS, "0x5 1x20"),
            (SBE, "0x5 12x20"),
            ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1x20"),
            ("DCGM_FI_DEV_RETIRED_PENDING", "1x20"),
        )
    ),
    *(
        Case(
            "VcudaThrottled", f"dcgm-exporter's {name}", 11, {one(name, CARD, DCGM): v}
        )
        for name, v in ((HEAT, "0+6000000000x20"), (POWER, "0+36000000000x20"))
    ),
    Case(
        "VcudaCardNearlyFull",
        "by dcgm-exporter",
        11,
        {
            one("DCGM_FI_DEV_FB_USED", CARD, DCGM): "7400x20",
            one("DCGM_FI_DEV_FB_TOTAL", CARD, DCGM): "7611x20",
        },
    ),
)
