"""Cases of the alerts on the exporter."""

from tests.monitoring.alertcases import (
    CRITICAL,
    EXPORTER,
    WARNING,
    About,
    Series,
    booked,
    card,
    merged,
    one,
)

INFO_OF = {one("vcuda_exporter_info", EXPORTER, NodeName="n", version="1"): "1x60"}
BY_LABEL = {
    "job": "kubernetes-pods",
    "instance": "10.0.0.7:9400",
    "app_kubernetes_io_name": "gpushare-exporter",
}


def of_node(name: str, values: str, **labels: str) -> Series:
    return {one(name, NodeName="n", **labels): values}


def rounds(group: str, well: str, at: str) -> Series:
    return merged(
        of_node("vcuda_collector_success", well, group=group),
        of_node("vcuda_collect_timestamp_seconds", at, group=group),
    )


def stopped(group: str) -> Series:
    return rounds(group, "1x60", "0x60")


def trouble(about: str) -> Series:
    return of_node("vcuda_exporter_trouble", "1x20", about=about)


def blind(group: str) -> About:
    says = f"The exporter of n has no {group}"
    return About("VcudaExporterBlind", says, WARNING, NodeName="n", group=group)


DOWN = About(
    "VcudaExporterDown",
    "The exporter of n (10.0.0.7:9400) does not answer",
    CRITICAL,
    NodeName="n",
    node="n",
)
NONE = About("VcudaNoExporter", "No exporter answers at all", CRITICAL)
UNSEEN = About(
    "VcudaCardUnseen",
    "No exporter reports a card of n",
    WARNING,
    NodeName="n",
    UUID="GPU-0",
)
MEMORY, FAULTS, RETIRED = map(blind, ("memory", "faults", "retired"))
GOES_ON = "0+60x60"
TROUBLE = About(
    "VcudaExporterTrouble",
    "The exporter of n cannot read: pods",
    WARNING,
    NodeName="n",
    about="pods",
)
CONFIG = About(
    "VcudaExporterConfig",
    "The list of metrics of the exporter of n is invalid",
    WARNING,
    NodeName="n",
)
OK = "vcuda_exporter_config_ok"
UNITS = booked("vcuda_card_units", "29x20")

CASES = (
    DOWN.fires("found by the operator", 3, {one("up", EXPORTER): "0x20"}, **EXPORTER),
    DOWN.fires(
        "found by its annotations",
        3,
        {one("up", BY_LABEL, node="n"): "0x20"},
        **BY_LABEL,
    ),
    DOWN.silent("for a moment", 1, {one("up", EXPORTER): "0x20"}),
    DOWN.silent("another's", 20, {one("up", EXPORTER, job="node-exporter"): "0x20"}),
    NONE.fires("none", 3, {}),
    NONE.silent("for a moment", 1, {}),
    NONE.silent("one", 20, INFO_OF),
    UNSEEN.fires("the books have it", 11, UNITS),
    UNSEEN.silent("it starts", 9, UNITS),
    UNSEEN.silent("both have it", 20, merged(UNITS, card("vcuda_card_info", "1x20"))),
    MEMORY.fires("it fails", 6, rounds("memory", "0x60", GOES_ON)),
    MEMORY.fires("it hangs", 9, stopped("memory")),
    FAULTS.fires("a slow one hangs", 11, stopped("faults")),
    RETIRED.fires("the slowest hangs", 31, stopped("retired")),
    RETIRED.silent("the slowest takes its time", 29, stopped("retired")),
    MEMORY.silent("a minute late", 20, rounds("memory", "1x60", "-60+60x60")),
    FAULTS.silent("a slow one takes its time", 9, stopped("faults")),
    MEMORY.silent("once", 20, rounds("memory", "1x9 0 1x40", GOES_ON)),
    TROUBLE.fires("no pods", 11, trouble("pods")),
    TROUBLE.silent("it starts", 9, trouble("pods")),
    TROUBLE.silent("its fields have an alert of their own", 20, trouble("config")),
    CONFIG.fires("a broken file", 6, of_node(OK, "0x20")),
    CONFIG.silent("mended at once", 4, of_node(OK, "0x20")),
    CONFIG.silent("a good one", 20, of_node(OK, "1x20")),
)
