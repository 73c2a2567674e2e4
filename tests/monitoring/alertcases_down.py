"""Cases of the alerts on an extender or a device plugin that does not answer."""

from tests.monitoring.alertcases import Case, one
from tests.monitoring.alertcases_scheduling import webhooks

CRITICAL = {"severity": "critical"}
EXTENDER, PLUGIN = "gpushare-extender", "gpushare-device-plugin"
LABEL = "app_kubernetes_io_name"


def of(alert: str, app: str, what: str, port: int) -> tuple[Case, ...]:
    """The same of each of them; ``what`` is what it is called."""
    answers = f"The {what} of n (10.0.0.5:{port}) does not answer"
    target = {"instance": f"10.0.0.5:{port}", "node": "n"}
    by_job = {"job": app, **target}
    by_label = {"job": "kubernetes-pods", LABEL: app, **target}
    both = {"job": app, LABEL: app, **target}
    named = {"NodeName": "n", **CRITICAL}
    return (
        *(
            Case(alert, rule, 3, {one("up", its): "0x20"}, answers, {**its, **named})
            for rule, its in (
                ("found by the operator", by_job),
                ("found by its annotations", by_label),
                ("found by both marks, once", both),
            )
        ),
        Case(
            alert,
            "one of two",
            3,
            {
                one("up", by_job): "0x20",
                one("up", by_job, instance="10.0.0.6:1", node="m"): "1x20",
            },
            answers,
            {**by_job, **named},
        ),
        Case(alert, "for a moment", 1, {one("up", by_job): "0x20"}),
        Case(alert, "it answers", 20, {one("up", by_job): "1x20"}),
        Case(alert, "another's", 20, {one("up", by_job, job="node-exporter"): "0x20"}),
    )


SECOND = {"job": "gpushare-scheduler", "instance": "10.0.0.5:39998", "node": "n"}

WEBHOOK = "VcudaWebhookDown"
SILENT = "No replica of the webhook answers"


def configured(name: str) -> dict[str, str]:
    """A configuration that the API server has, as kube-state-metrics tells it."""
    return {**configurations(name, "1x60"), **NODES}


def configurations(name: str, value: str) -> dict[str, str]:
    metric = "kube_mutatingwebhookconfiguration_info"
    return {one(metric, mutatingwebhookconfiguration=name): value}


NODES = {one("kube_node_info", node="n"): "1x60"}
"""What kube-state-metrics tells besides, as long as it is there."""


WITHOUT_PODS = (
    Case(WEBHOOK, "its last pods went", 8, webhooks("1x3 stale"), SILENT, CRITICAL),
    Case(
        WEBHOOK,
        "its last pods went, found by their labels",
        8,
        webhooks("_x60", "1x3 stale", "1x3 stale"),
        SILENT,
        CRITICAL,
    ),
    Case(WEBHOOK, "its last pods went just now", 5, webhooks("1x3 stale")),
    Case(WEBHOOK, "it was taken out long ago", 45, webhooks("1x3 stale")),
    Case(
        WEBHOOK,
        "its pods are others now",
        20,
        webhooks("1x3 stale", "_x4 1x30"),
    ),
    Case(
        WEBHOOK,
        "no pods since long, and it is asked still",
        45,
        configured("gpushare-webhook"),
        SILENT,
        CRITICAL,
    ),
    Case(WEBHOOK, "another's is asked", 45, configured("istio-sidecar-injector")),
    Case(
        WEBHOOK,
        "no pods since lately, and it is asked still",
        8,
        {**webhooks("1x3 stale"), **configured("gpushare-webhook")},
        SILENT,
        CRITICAL,
    ),
    Case(
        WEBHOOK,
        "it was taken away, and another's is asked still",
        8,
        {**webhooks("1x3 stale"), **configured("istio-sidecar-injector")},
    ),
    *(
        Case(
            WEBHOOK,
            f"it was taken away {minute - 3} minutes ago, the only one",
            minute,
            {
                **webhooks("1x4 stale"),
                **configurations("gpushare-webhook", "1x2 stale"),
                **NODES,
            },
        )
        for minute in (8, 20, 34, 35)
    ),
    Case(
        WEBHOOK,
        "its last pods went, and kube-state-metrics with them",
        8,
        {
            **webhooks("1x3 stale"),
            **configurations("gpushare-webhook", "1x3 stale"),
            one("kube_node_info", node="n"): "1x3 stale",
        },
        SILENT,
        CRITICAL,
    ),
    Case(
        WEBHOOK,
        "it answers, and is asked",
        45,
        {**webhooks("1x60"), **configured("gpushare-webhook")},
    ),
)

CASES = (
    *WITHOUT_PODS,
    *of("VcudaExtenderDown", EXTENDER, "extender", 39998),
    Case(
        "VcudaExtenderDown",
        "in the second scheduler's pod",
        3,
        {one("up", SECOND): "0x20"},
        "The extender of n (10.0.0.5:39998) does not answer",
        {**SECOND, "NodeName": "n", **CRITICAL},
    ),
    *of("VcudaPluginDown", PLUGIN, "device plugin", 39997),
    *(
        case
        for alert, metric, what in (
            ("VcudaNoExtender", "vcuda_extender_ready", "extender"),
            ("VcudaNoPlugin", "vcuda_plugin_registered", "device plugin"),
        )
        for case in (
            Case(alert, "none", 3, {}, f"No {what} answers at all", CRITICAL),
            Case(alert, "for a moment", 1, {}),
            Case(alert, "one, however it is", 20, {one(metric): "0x20"}),
        )
    ),
)
