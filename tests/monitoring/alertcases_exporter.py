"""Cases of the alerts on the exporter."""

from tests.monitoring.alertcases import (
    EXPORTER,
    Case,
    Series,
    booked,
    card,
    one,
    summed,
)

WARNING = {"severity": "warning"}
CRITICAL = {"severity": "critical"}

INFO_OF = {one("vcuda_exporter_info", EXPORTER, NodeName="n", version="1"): "1x60"}
BY_LABEL = {
    "job": "kubernetes-pods",
    "instance": "10.0.0.7:9400",
    "app_kubernetes_io_name": "gpushare-exporter",
}
DOWN, BLIND = "VcudaExporterDown", "VcudaExporterBlind"


def of_node(name: str, values: str, **labels: str) -> Series:
    return {one(name, NodeName="n", **labels): values}


def rounds(group: str, well: str, at: str) -> Series:
    return summed(
        of_node("vcuda_collector_success", well, group=group),
        of_node("vcuda_collect_timestamp_seconds", at, group=group),
    )


def blind(group: str) -> dict[str, str]:
    return {"NodeName": "n", "group": group, **WARNING}


GOES_ON = "0+60x60"
STOPPED = "0x60"
NO_MEMORY = "The exporter of n has no memory"
TROUBLE = "vcuda_exporter_trouble"

CASES = (
    Case(
        DOWN,
        "found by the operator",
        3,
        {one("up", EXPORTER): "0x20"},
        "The exporter of n (10.0.0.7:9400) does not answer",
        {**EXPORTER, "NodeName": "n", **CRITICAL},
    ),
    Case(
        DOWN,
        "found by its annotations",
        3,
        {one("up", BY_LABEL, node="n"): "0x20"},
        "The exporter of n (10.0.0.7:9400) does not answer",
        {**BY_LABEL, "node": "n", "NodeName": "n", **CRITICAL},
    ),
    Case(DOWN, "for a moment", 1, {one("up", EXPORTER): "0x20"}),
    Case(DOWN, "another's", 20, {one("up", EXPORTER, job="node-exporter"): "0x20"}),
    Case("VcudaNoExporter", "none", 3, {}, "No exporter answers at all", CRITICAL),
    Case("VcudaNoExporter", "for a moment", 1, {}),
    Case("VcudaNoExporter", "one", 20, INFO_OF),
    Case(
        "VcudaCardUnseen",
        "the books have it",
        11,
        booked("vcuda_card_units", "29x20"),
        "No exporter reports a card of n",
        {"NodeName": "n", "UUID": "GPU-0", **WARNING},
    ),
    Case("VcudaCardUnseen", "it starts", 9, booked("vcuda_card_units", "29x20")),
    Case(
        "VcudaCardUnseen",
        "both have it",
        20,
        summed(booked("vcuda_card_units", "29x20"), card("vcuda_card_info", "1x20")),
    ),
    Case(
        BLIND,
        "it fails",
        6,
        rounds("memory", "0x60", GOES_ON),
        NO_MEMORY,
        blind("memory"),
    ),
    Case(
        BLIND,
        "it hangs",
        9,
        rounds("memory", "1x60", STOPPED),
        NO_MEMORY,
        blind("memory"),
    ),
    Case(
        BLIND,
        "a slow one hangs",
        11,
        rounds("faults", "1x60", STOPPED),
        "The exporter of n has no faults",
        blind("faults"),
    ),
    Case(
        BLIND,
        "the slowest hangs",
        31,
        rounds("retired", "1x60", STOPPED),
        "The exporter of n has no retired",
        blind("retired"),
    ),
    Case(BLIND, "the slowest takes its time", 29, rounds("retired", "1x60", STOPPED)),
    Case(BLIND, "a minute late", 20, rounds("memory", "1x60", "-60+60x60")),
    Case(BLIND, "a slow one takes its time", 9, rounds("faults", "1x60", STOPPED)),
    Case(BLIND, "once", 20, rounds("memory", "1x9 0 1x40", GOES_ON)),
    Case(
        "VcudaExporterTrouble",
        "no pods",
        11,
        of_node(TROUBLE, "1x20", about="pods"),
        "The exporter of n cannot read: pods",
        {"NodeName": "n", "about": "pods", **WARNING},
    ),
    Case(
        "VcudaExporterTrouble", "it starts", 9, of_node(TROUBLE, "1x20", about="pods")
    ),
    Case(
        "VcudaExporterTrouble",
        "its fields have an alert of their own",
        20,
        of_node(TROUBLE, "1x20", about="config"),
    ),
    Case(
        "VcudaExporterConfig",
        "a broken file",
        6,
        of_node("vcuda_exporter_config_ok", "0x20"),
        "The list of metrics of the exporter of n is invalid",
        {"NodeName": "n", **WARNING},
    ),
    Case(
        "VcudaExporterConfig",
        "mended at once",
        4,
        of_node("vcuda_exporter_config_ok", "0x20"),
    ),
    Case(
        "VcudaExporterConfig",
        "a good one",
        20,
        of_node("vcuda_exporter_config_ok", "1x20"),
    ),
)
