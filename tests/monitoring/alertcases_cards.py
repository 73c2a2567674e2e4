"""Cases of the alerts on cards; NVIDIA's dcgm-exporter may run beside ours."""

from tests.monitoring.alertcases import (
    CARD,
    CRITICAL,
    INFO,
    WARNING,
    About,
    Case,
    Series,
    booked,
    card,
    merged,
    of_instances,
    series_of,
)

SEEN = card("vcuda_card_info", "1x60", healthy="true")
DBE = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
SBE = "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"
AGG = "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"
ROWS = "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"
FAILURE = "DCGM_FI_DEV_ROW_REMAP_FAILURE"
RETIRED = "DCGM_FI_DEV_RETIRED_PENDING"
HEAT = "DCGM_FI_DEV_THERMAL_VIOLATION"
POWER = "DCGM_FI_DEV_POWER_VIOLATION"
GPU_TEMP = "DCGM_FI_DEV_GPU_TEMP"
USED, TOTAL = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_TOTAL"
OF = "card 0 of n"
DCGM = {"NodeName": "", "hostname": "n", "job": "nvidia-dcgm-exporter"}
"""How NVIDIA's own exporter tells of the same card: without NodeName."""


def xid(number: int, values: str, seen: Series = SEEN) -> Series:
    return merged(seen, card("vcuda_xid_errors_total", values, xid=str(number)))


def of_kind(alert: About, number: int) -> tuple[Case, ...]:
    """The same of each kind of XID."""
    gone = card("vcuda_card_info", "1x9", healthy="true")
    anew = merged(
        SEEN,
        card("vcuda_xid_errors_total", "2x9", xid=str(number), instance="a"),
        card("vcuda_xid_errors_total", "_x10 0x20", xid=str(number), instance="b"),
    )
    fires = (
        ("the first one of its kind", 11, xid(number, "_x10 1x20")),
        ("another one of its kind", 14, xid(number, "1x10 2x20")),
        ("the first one of a counter that was 0", 12, xid(number, "0x10 1x20")),
        ("while the card goes", 14, xid(number, "_x10 1x20", gone)),
    )
    silent = (
        ("ten minutes later it is no news", 20, xid(number, "_x10 1x20")),
        ("old ones are none to a new Prometheus", 1, xid(number, "3x20")),
        ("nor a little later", 4, xid(number, "3x20")),
        ("none yet", 11, xid(number, "0x20")),
        ("an exporter begins anew with its zeros", 11, anew),
    )
    return (
        *(alert.fires(f"{number} {rule}", *case) for rule, *case in fires),
        *(alert.silent(f"{number} {rule}", *case) for rule, *case in silent),
    )


PAGED = About("VcudaGpuXid", f"XID 79 on {OF}", CARD, CRITICAL, xid="79", page="true")
# One of which nobody knows what it means pages nobody.
UNKNOWN = About("VcudaGpuXid", f"XID 62 on {OF}", CARD, CRITICAL, xid="62")
APP_SAYS = f"A program failed on {OF}: XID 31"
APP = About("VcudaGpuXidApp", APP_SAYS, CARD, INFO, xid="31")
XIDS = (
    *of_kind(PAGED, 79),
    *of_kind(UNKNOWN, 62),
    *of_kind(APP, 31),
    PAGED.silent("a program's fault", 11, xid(31, "_x10 1x20")),
    APP.silent("a card's fault", 11, xid(79, "_x10 1x20")),
)

HEALTHY = card("vcuda_card_healthy", "1x20")
SICK = card("vcuda_card_healthy", "0x20")
BOOKED_SICK = booked("vcuda_card_healthy", "0x20")
BOOKED_HEALTHY = booked("vcuda_card_healthy", "1x20")
MUTE = About(
    "VcudaGpuLost", f"No answer to the exporter: {OF}", CARD, CRITICAL, by="exporter"
)
GONE = About(
    "VcudaGpuLost",
    "A card of n is sick or lost, says its device plugin",
    CRITICAL,
    NodeName="n",
    UUID="GPU-0",
    by="books",
)
BAD = About(
    "VcudaEcc", f"Memory errors that cannot be corrected on {OF}", CARD, CRITICAL
)
SOME = About("VcudaEcc", f"Memory errors on {OF}", CARD, WARNING)
LONG_AGO = merged(
    *(card(name, "2x40") for name in (DBE, AGG, ROWS, SBE)),
    *(card(name, "0x40") for name in (FAILURE, RETIRED)),
)
FAULTS = (
    MUTE.fires("the exporter alone says so", 3, SICK),
    MUTE.fires(
        "the exporter says so, the books call it well", 3, merged(SICK, BOOKED_HEALTHY)
    ),
    GONE.fires("the books alone say so", 3, merged(HEALTHY, BOOKED_SICK)),
    GONE.fires("both say so: one alert", 3, merged(SICK, BOOKED_SICK)),
    MUTE.fires(
        "one of two MIG instances",
        3,
        of_instances(card, "vcuda_card_healthy", "1x20", "0x20"),
        "No answer to the exporter: card 0 instance 8 of n",
        GPU_I_UUID="MIG-1",
        GPU_I_ID="8",
    ),
    GONE.fires(
        "the books say so of one of two MIG instances",
        3,
        merged(
            of_instances(card, "vcuda_card_healthy", "0x20", "1x20"),
            of_instances(booked, "vcuda_card_healthy", "0x20", "1x20"),
        ),
        GPU_I_UUID="MIG-0",
    ),
    GONE.silent("for a moment", 1, SICK),
    GONE.silent("it is well", 20, merged(HEALTHY, BOOKED_HEALTHY)),
    BAD.fires("a double-bit error", 15, card(DBE, "0x5 1x20")),
    BAD.fires("a row cannot be remapped", 1, card(FAILURE, "1x20")),
    BAD.fires("one of its life", 15, card(AGG, "0x5 1x20")),
    BAD.fires("a row is remapped", 15, card(ROWS, "0x5 1x20")),
    SOME.fires("single-bit errors", 20, card(SBE, "0x5 12x20")),
    SOME.fires("pages wait to be retired", 1, card(RETIRED, "1x20")),
    SOME.silent("a few single-bit errors", 20, card(SBE, "0x5 4x20")),
    SOME.silent("errors of long ago, and none", 20, LONG_AGO),
)


def full(used: int) -> Series:
    return merged(card(USED, f"{used}x20"), card(TOTAL, "7611x20"))


def until_a_moment_ago(name: str, each: int) -> Series:
    """A counter that rises by ``each`` a minute, until the twelfth.

    Five minutes before the thirteenth it has no sample: Prometheus 2 would count it
    and Prometheus 3 would not, whose ranges are open to the left.
    """
    return card(name, f"0+{each}x7 _ {9 * each}+{each}x3 {12 * each}x20")


def slowed(cause: str, share: str) -> About:
    says = f"Slowed down for {cause} {share} of the time: {OF}"
    return About("VcudaThrottled", says, CARD, WARNING, cause=cause)


HOT = About("VcudaHot", f"86 °C: {OF}", CARD, WARNING)
SLOWED = About("VcudaThrottled")
HOT_MINUTE, SLOW_MINUTE = "0+6000000000x20", "0+36000000000x20"
FULL_SAYS = f"97.23% of the memory is in use: {OF}"
FULL = About("VcudaCardNearlyFull", FULL_SAYS, CARD, WARNING)
CONDITION = (
    HOT.fires("for long", 6, card(GPU_TEMP, "86x20")),
    HOT.silent("for a moment", 4, card(GPU_TEMP, "86x20")),
    HOT.silent("warm", 20, card(GPU_TEMP, "85x20")),
    slowed("heat", "10%").fires(
        "for heat, a tenth of the time", 11, card(HEAT, HOT_MINUTE)
    ),
    slowed("heat", "7.5%").fires(
        "for heat, until a moment ago", 13, until_a_moment_ago(HEAT, 6_000_000_000)
    ),
    slowed("power", "67.5%").fires(
        "for power, until a moment ago", 13, until_a_moment_ago(POWER, 54_000_000_000)
    ),
    SLOWED.silent(
        "for a moment",
        4,
        merged(card(HEAT, HOT_MINUTE), card(POWER, "0+54000000000x20")),
    ),
    slowed("power", "60%").fires(
        "for power, most of the time", 11, card(POWER, SLOW_MINUTE)
    ),
    SLOWED.silent(
        "a little of both",
        20,
        merged(card(HEAT, "0+600000000x20"), card(POWER, "0+18000000000x20")),
    ),
    FULL.fires("for long", 11, full(7400)),
    FULL.silent("for a moment", 9, full(7400)),
    FULL.silent("with room", 20, full(7000)),
    FULL.silent("nobody knows of how much", 20, card(USED, "7400x20")),
)


def dcgm(name: str, values: str) -> Series:
    return {series_of(name, CARD, DCGM): values}


def twice(name: str, values: str) -> Series:
    return merged(card(name, values), dcgm(name, values))


BESIDE = (
    HOT.fires(
        "once, of a card that dcgm-exporter tells of too", 6, twice(GPU_TEMP, "86x20")
    ),
    BAD.fires("a double-bit error, once", 15, twice(DBE, "0x5 1x20")),
    *(
        SOME.silent(f"dcgm-exporter's {name}", 15, dcgm(name, values))
        for name, values in (
            (AGG, "0x5 1x20"),
            (ROWS, "0x5 1x20"),
            (SBE, "0x5 12x20"),
            (FAILURE, "1x20"),
            (RETIRED, "1x20"),
        )
    ),
    *(
        SLOWED.silent(f"dcgm-exporter's {name}", 11, dcgm(name, values))
        for name, values in ((HEAT, HOT_MINUTE), (POWER, SLOW_MINUTE))
    ),
    FULL.silent(
        "by dcgm-exporter", 11, merged(dcgm(USED, "7400x20"), dcgm(TOTAL, "7611x20"))
    ),
)
CASES = (*XIDS, *FAULTS, *CONDITION, *BESIDE)
