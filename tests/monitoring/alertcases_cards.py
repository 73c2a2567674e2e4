"""Cases of the alerts on cards."""

from tests.monitoring.alertcases import CARD, Case, Series, booked, card, summed

CRITICAL = {**CARD, "severity": "critical"}
WARNING = {**CARD, "severity": "warning"}
SEEN = card("vcuda_card_info", "1x60", healthy="true")


def xid(number: int, values: str, seen: Series = SEEN) -> Series:
    return summed(seen, card("vcuda_xid_errors_total", values, xid=str(number)))


def fires(
    name: str, rule: str, at: int, series: Series, says: str, **more: str
) -> Case:
    return Case(name, rule, at, series, says, {**CARD, **more})


DBE = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
SBE = "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"
AGG = "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"
ROWS = "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"
HEAT = "DCGM_FI_DEV_THERMAL_VIOLATION"
POWER = "DCGM_FI_DEV_POWER_VIOLATION"
XID, APP = "VcudaGpuXid", "VcudaGpuXidApp"
OF = "card 0 of n"
BAD = f"Memory errors that cannot be corrected on {OF}"
SOME = f"Memory errors on {OF}"


def of_kind(alert: str, number: int, words: str, **labels: str) -> tuple[Case, ...]:
    """The same of each kind of XID; ``words`` is the summary before ``OF``."""

    def told(rule: str, at: int, series: Series) -> Case:
        its = {"xid": str(number), **labels}
        return fires(alert, f"{number} {rule}", at, series, words, **its)

    def silent(rule: str, at: int, series: Series) -> Case:
        return Case(alert, f"{number} {rule}", at, series)

    gone = card("vcuda_card_info", "1x9", healthy="true")
    anew = summed(
        SEEN,
        card("vcuda_xid_errors_total", "2x9", xid=str(number), instance="a"),
        card("vcuda_xid_errors_total", "_x10 0x20", xid=str(number), instance="b"),
    )
    return (
        told("the first one of its kind", 11, xid(number, "_x10 1x20")),
        told("another one of its kind", 14, xid(number, "1x10 2x20")),
        told("the first one of a counter that was 0", 12, xid(number, "0x10 1x20")),
        told("while the card goes", 14, xid(number, "_x10 1x20", gone)),
        silent("ten minutes later it is no news", 20, xid(number, "_x10 1x20")),
        silent("old ones are none to a new Prometheus", 1, xid(number, "3x20")),
        silent("nor a little later", 4, xid(number, "3x20")),
        silent("none yet", 11, xid(number, "0x20")),
        silent("an exporter begins anew with its zeros", 11, anew),
    )


CRITICALLY = {"severity": "critical"}
XIDS = (
    *of_kind(XID, 79, f"XID 79 on {OF}", **CRITICALLY, page="true"),
    # One of which nobody knows what it means pages nobody.
    *of_kind(XID, 62, f"XID 62 on {OF}", **CRITICALLY),
    *of_kind(APP, 31, f"A program failed on {OF}: XID 31", severity="info"),
    Case(XID, "a program's fault", 11, xid(31, "_x10 1x20")),
    Case(APP, "a card's fault", 11, xid(79, "_x10 1x20")),
)

LOST = "VcudaGpuLost"
BY_BOOKS = {"NodeName": "n", "UUID": "GPU-0", "severity": "critical", "by": "books"}
BY_EXPORTER = {**CRITICAL, "by": "exporter"}
HEALTHY = card("vcuda_card_healthy", "1x20")
SICK = card("vcuda_card_healthy", "0x20")
BOOKED_SICK = booked("vcuda_card_healthy", "0x20")
GONE = "A card of n is sick or lost, says its device plugin"
MUTE = f"No answer to the exporter: {OF}"

FAULTS = (
    Case(LOST, "the exporter alone says so", 3, SICK, MUTE, BY_EXPORTER),
    Case(
        LOST,
        "the exporter says so, the books call it well",
        3,
        summed(SICK, booked("vcuda_card_healthy", "1x20")),
        MUTE,
        BY_EXPORTER,
    ),
    Case(
        LOST,
        "the books alone say so",
        3,
        summed(HEALTHY, BOOKED_SICK),
        GONE,
        BY_BOOKS,
    ),
    Case(LOST, "both say so: one alert", 3, summed(SICK, BOOKED_SICK), GONE, BY_BOOKS),
    Case(LOST, "for a moment", 1, SICK),
    Case(LOST, "it is well", 20, summed(HEALTHY, booked("vcuda_card_healthy", "1x20"))),
    Case("VcudaEcc", "a double-bit error", 15, card(DBE, "0x5 1x20"), BAD, CRITICAL),
    Case(
        "VcudaEcc",
        "a row cannot be remapped",
        1,
        card("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1x20"),
        BAD,
        CRITICAL,
    ),
    Case("VcudaEcc", "one of its life", 15, card(AGG, "0x5 1x20"), BAD, CRITICAL),
    Case("VcudaEcc", "a row is remapped", 15, card(ROWS, "0x5 1x20"), BAD, CRITICAL),
    Case("VcudaEcc", "single-bit errors", 20, card(SBE, "0x5 12x20"), SOME, WARNING),
    Case(
        "VcudaEcc",
        "pages wait to be retired",
        1,
        card("DCGM_FI_DEV_RETIRED_PENDING", "1x20"),
        SOME,
        WARNING,
    ),
    Case("VcudaEcc", "a few single-bit errors", 20, card(SBE, "0x5 4x20")),
    Case(
        "VcudaEcc",
        "errors of long ago, and none",
        20,
        summed(
            *(card(name, "2x40") for name in (DBE, AGG, ROWS, SBE)),
            card("DCGM_FI_DEV_ROW_REMAP_FAILURE", "0x40"),
            card("DCGM_FI_DEV_RETIRED_PENDING", "0x40"),
        ),
    ),
)

GPU_TEMP = "DCGM_FI_DEV_GPU_TEMP"
SLOWED = "Slowed down for"


def full(used: int) -> Series:
    return summed(
        card("DCGM_FI_DEV_FB_USED", f"{used}x20"),
        card("DCGM_FI_DEV_FB_TOTAL", "7611x20"),
    )


def until_a_moment_ago(name: str, each: int) -> Series:
    """A counter that rises by ``each`` a minute, until the twelfth.

    Five minutes before the thirteenth it has no sample: Prometheus 2 would count it
    and Prometheus 3 would not, whose ranges are open to the left.
    """
    return card(name, f"0+{each}x7 _ {9 * each}+{each}x3 {12 * each}x20")


CONDITION = (
    Case("VcudaHot", "for long", 6, card(GPU_TEMP, "86x20"), f"86 °C: {OF}", WARNING),
    Case("VcudaHot", "for a moment", 4, card(GPU_TEMP, "86x20")),
    Case("VcudaHot", "warm", 20, card(GPU_TEMP, "85x20")),
    fires(
        "VcudaThrottled",
        "for heat, a tenth of the time",
        11,
        card(HEAT, "0+6000000000x20"),
        f"{SLOWED} heat 10% of the time: {OF}",
        severity="warning",
        cause="heat",
    ),
    fires(
        "VcudaThrottled",
        "for heat, until a moment ago",
        13,
        until_a_moment_ago(HEAT, 6_000_000_000),
        f"{SLOWED} heat 7.5% of the time: {OF}",
        severity="warning",
        cause="heat",
    ),
    fires(
        "VcudaThrottled",
        "for power, until a moment ago",
        13,
        until_a_moment_ago(POWER, 54_000_000_000),
        f"{SLOWED} power 67.5% of the time: {OF}",
        severity="warning",
        cause="power",
    ),
    Case(
        "VcudaThrottled",
        "for a moment",
        4,
        summed(card(HEAT, "0+6000000000x20"), card(POWER, "0+54000000000x20")),
    ),
    fires(
        "VcudaThrottled",
        "for power, most of the time",
        11,
        card(POWER, "0+36000000000x20"),
        f"{SLOWED} power 60% of the time: {OF}",
        severity="warning",
        cause="power",
    ),
    Case(
        "VcudaThrottled",
        "a little of both",
        20,
        summed(card(HEAT, "0+600000000x20"), card(POWER, "0+18000000000x20")),
    ),
    Case(
        "VcudaCardNearlyFull",
        "for long",
        11,
        full(7400),
        f"97.23% of the memory is in use: {OF}",
        WARNING,
    ),
    Case("VcudaCardNearlyFull", "for a moment", 9, full(7400)),
    Case("VcudaCardNearlyFull", "with room", 20, full(7000)),
    Case(
        "VcudaCardNearlyFull",
        "nobody knows of how much",
        20,
        card("DCGM_FI_DEV_FB_USED", "7400x20"),
    ),
)

CASES = (*XIDS, *FAULTS, *CONDITION)
