"""Cases of the alerts on an extender, a device plugin or a webhook that is down."""

from tests.monitoring.alertcases import CRITICAL, WARNING, About, Case, Series, one

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
        one("up", by_job): "0x20",
        one("up", by_job, instance="10.0.0.6:1", node="m"): "1x20",
    }
    return (
        *(
            down.fires(rule, 3, {one("up", its): "0x20"}, **its)
            for rule, its in (
                ("found by the operator", by_job),
                ("found by its annotations", by_label),
                ("found by both marks, once", both),
            )
        ),
        down.fires("one of two", 3, two, **by_job),
        down.silent("for a moment", 1, {one("up", by_job): "0x20"}),
        down.silent("it answers", 20, {one("up", by_job): "1x20"}),
        down.silent("another's", 20, {one("up", by_job, job="node-exporter"): "0x20"}),
    )


def none_of(alert: str, metric: str, what: str) -> tuple[Case, ...]:
    none = About(alert, f"No {what} answers at all", CRITICAL)
    return (
        none.fires("none", 3, {}),
        none.silent("for a moment", 1, {}),
        none.silent("one, however it is", 20, {one(metric): "0x20"}),
    )


def webhooks(*values: str) -> Series:
    """One series each; the first found by its job, the others by a label."""
    first, *others = values
    found = {one("up", job="gpushare-webhook", instance="10.0.0.1:8080"): first}
    label = {"job": "pods", LABEL: "gpushare-webhook"}
    for number, value in enumerate(others):
        found[one("up", instance=f"10.1.0.{number}:8080", **label)] = value
    return found


def configurations(name: str, value: str) -> Series:
    metric = "kube_mutatingwebhookconfiguration_info"
    return {one(metric, mutatingwebhookconfiguration=name): value}


NODES = {one("kube_node_info", node="n"): "1x60"}
"""What kube-state-metrics tells besides, as long as it is there."""


def configured(name: str) -> Series:
    """A configuration that the API server has, as kube-state-metrics tells it."""
    return {**configurations(name, "1x60"), **NODES}


def expiring(days: int, replica: int) -> Series:
    """The webhook's certificate as one replica sees it."""
    name = "vcuda_webhook_certificate_not_after_timestamp_seconds"
    instance = f"10.0.0.{replica}:8080"
    return {one(name, file="server", instance=instance): f"{days * DAY}x20"}


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
    one("kube_node_info", node="n"): "1x3 stale",
}
WEBHOOK = About("VcudaWebhookDown", "No replica of the webhook answers", CRITICAL)
ENDING = About(
    "VcudaWebhookCertificateEnds",
    "The webhook's certificate expires in 59d 0h 0m 0s",
    WARNING,
)
ONE_ENDS = {**expiring(59, 1), **expiring(300, 2)}

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
    EXTENDER.fires("in the second scheduler's pod", 3, {one("up", SECOND): "0x20"}),
    *of("VcudaPluginDown", "gpushare-device-plugin", "device plugin", 39997),
    *none_of("VcudaNoExtender", "vcuda_extender_ready", "extender"),
    *none_of("VcudaNoPlugin", "vcuda_plugin_registered", "device plugin"),
)
