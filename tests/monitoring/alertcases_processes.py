"""Cases of the alerts on an exporter, extender, device plugin or webhook."""

from tests.monitoring.alertcases import (
    CRITICAL,
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

LABEL = "app_kubernetes_io_name"
DAY = 86400


def of(alert: str, app: str, what: str, port: int) -> tuple[Case, ...]:
    """The same of each of them; ``what`` is what it is called."""
    target = {"instance": f"10.0.0.5:{port}", "node": "n"}
    by_job = {"job": app, **target}
    by_label = {"job": "kubernetes-pods", LABEL: app, **target}
    both = {"job": app, LABEL: app, **target}
    answers = f"The {what} of n (10.0.0.5:{port}) does not answer"
    down = About(alert, answers, CRITICAL, NodeName="n")
    two = {
        series_of("up", by_job): "0x20",
        series_of("up", by_job, instance="10.0.0.6:1", node="m"): "1x20",
    }
    return (
        *(
            down.fires(rule, 3, {series_of("up", its): "0x20"}, **its)
            for rule, its in (
                ("found by the operator", by_job),
                ("found by its annotations", by_label),
                ("found by both marks, once", both),
            )
        ),
        down.fires("one of two", 3, two, **by_job),
        down.silent("for a moment", 1, {series_of("up", by_job): "0x20"}),
        down.silent("it answers", 20, {series_of("up", by_job): "1x20"}),
        down.silent(
            "another's", 20, {series_of("up", by_job, job="node-exporter"): "0x20"}
        ),
    )


def none_of(alert: str, metric: str, what: str) -> tuple[Case, ...]:
    none = About(alert, f"No {what} answers at all", CRITICAL)
    return (
        none.fires("none", 3, {}),
        none.silent("for a moment", 1, {}),
        none.silent("one, however it is", 20, {series_of(metric): "0x20"}),
    )


def webhooks(*values: str) -> Series:
    """One series each; the first found by its job, the others by a label."""
    first, *others = values
    series = {series_of("up", job="gpushare-webhook", instance="10.0.0.1:8080"): first}
    label = {"job": "pods", LABEL: "gpushare-webhook"}
    for number, value in enumerate(others):
        series[series_of("up", instance=f"10.1.0.{number}:8080", **label)] = value
    return series


def configurations(name: str, value: str) -> Series:
    metric = "kube_mutatingwebhookconfiguration_info"
    return {series_of(metric, mutatingwebhookconfiguration=name): value}


NODES = {series_of("kube_node_info", node="n"): "1x60"}
"""What kube-state-metrics tells besides, as long as it is there."""


def configured(name: str) -> Series:
    """A configuration that the API server has, as kube-state-metrics tells it."""
    return {**configurations(name, "1x60"), **NODES}


def expiring(days: int, replica: int) -> Series:
    """The webhook's certificate as one replica sees it."""
    name = "vcuda_webhook_certificate_not_after_timestamp_seconds"
    instance = f"10.0.0.{replica}:8080"
    return {series_of(name, file="server", instance=instance): f"{days * DAY}x20"}


SECOND = {"job": "gpushare-scheduler", "instance": "10.0.0.5:39998", "node": "n"}
EXTENDER = About(
    "VcudaExtenderDown",
    "The extender of n (10.0.0.5:39998) does not answer",
    SECOND,
    CRITICAL,
    NodeName="n",
)
OURS, ISTIO = configured("gpushare-webhook"), configured("istio-sidecar-injector")
WENT = webhooks("1x3 stale")
TAKEN_AWAY = {
    **webhooks("1x4 stale"),
    **configurations("gpushare-webhook", "1x2 stale"),
    **NODES,
}
ALL_WENT = {
    **WENT,
    **configurations("gpushare-webhook", "1x3 stale"),
    series_of("kube_node_info", node="n"): "1x3 stale",
}
WEBHOOK = About("VcudaWebhookDown", "No replica of the webhook answers", CRITICAL)
ENDING = About(
    "VcudaWebhookCertificateEnds",
    "The webhook's certificate expires in 59d 0h 0m 0s",
    WARNING,
)
ONE_ENDS = {**expiring(59, 1), **expiring(300, 2)}


def of_node(name: str, values: str, **labels: str) -> Series:
    return {series_of(name, NodeName="n", **labels): values}


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
    WEBHOOK.fires("its last pods went", 8, WENT),
    WEBHOOK.fires(
        "its last pods went, found by their labels",
        8,
        webhooks("_x60", "1x3 stale", "1x3 stale"),
    ),
    WEBHOOK.silent("its last pods went just now", 5, WENT),
    WEBHOOK.silent("it was taken out long ago", 45, WENT),
    WEBHOOK.silent("its pods are others now", 20, webhooks("1x3 stale", "_x4 1x30")),
    WEBHOOK.fires("no pods since long, and it is asked still", 45, OURS),
    WEBHOOK.silent("another's is asked", 45, ISTIO),
    WEBHOOK.fires("no pods since lately, and it is asked still", 8, {**WENT, **OURS}),
    WEBHOOK.silent(
        "it was taken away, and another's is asked still", 8, {**WENT, **ISTIO}
    ),
    *(
        WEBHOOK.silent(
            f"it was taken away {minute - 3} minutes ago, the only one",
            minute,
            TAKEN_AWAY,
        )
        for minute in (8, 20, 34, 35)
    ),
    WEBHOOK.fires("its last pods went, and kube-state-metrics with them", 8, ALL_WENT),
    WEBHOOK.silent("it answers, and is asked", 45, {**webhooks("1x60"), **OURS}),
    WEBHOOK.fires("both replicas are", 3, webhooks("0x20", "0x20")),
    WEBHOOK.silent("one of two answers", 10, webhooks("0x20", "1x20")),
    WEBHOOK.silent("both start anew", 1, webhooks("0x20", "0x20")),
    WEBHOOK.silent("there is none", 10, {}),
    ENDING.fires("in 59 days on one of two", 0, ONE_ENDS),
    ENDING.silent("in 61 days", 1, expiring(61, 1)),
    *of("VcudaExtenderDown", "gpushare-extender", "extender", 39998),
    EXTENDER.fires(
        "in the second scheduler's pod", 3, {series_of("up", SECOND): "0x20"}
    ),
    *of("VcudaPluginDown", "gpushare-device-plugin", "device plugin", 39997),
    *none_of("VcudaNoExtender", "vcuda_extender_ready", "extender"),
    *none_of("VcudaNoPlugin", "vcuda_plugin_registered", "device plugin"),
    *of("VcudaExporterDown", "gpushare-exporter", "exporter", 9400),
    *none_of("VcudaNoExporter", "vcuda_exporter_info", "exporter"),
    UNSEEN.fires("the books have it", 11, UNITS),
    UNSEEN.fires(
        "one of two MIG instances",
        11,
        merged(
            of_instances(booked, "vcuda_card_units", "19x20", "39x20"),
            of_instances(card, "vcuda_card_info", "1x20"),
        ),
        GPU_I_UUID="MIG-1",
    ),
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
