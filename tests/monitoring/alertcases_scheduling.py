"""Cases of the alerts on scheduling, and on those who do it."""

from tests.monitoring.alertcases import (
    CARD,
    Case,
    Series,
    booked,
    one,
    summed,
)

WARNING = {"severity": "warning"}
CRITICAL = {"severity": "critical"}
INFO = {"severity": "info"}
DAY = 86400


def extender(
    name: str, values: str, instance: str = "cp-1:39998", **more: str
) -> Series:
    return {one(name, job="gpushare-extender", instance=instance, **more): values}


def pending(values: str, instance: str = "cp-1:39998") -> Series:
    return extender("vcuda_extender_pods_pending", values, instance)


def largest(**nodes: int) -> Series:
    name = "vcuda_node_largest_free_units"
    return {one(name, NodeName=node): f"{units}x20" for node, units in nodes.items()}


def cards(*placed: int, cordoned: int = 0, unknown: int = 0) -> Series:
    """Four cards of 29 units, on two nodes; one number of placed units is for all."""
    each = placed if len(placed) == 4 else placed * 4
    said = {
        "vcuda_card_units": (29,) * 4,
        "vcuda_card_placed_units": each,
        "vcuda_card_unknown_units": (unknown,) * 4,
        "vcuda_card_cordoned": (cordoned,) * 4,
        "vcuda_card_healthy": (1,) * 4,
    }
    return summed(
        *(
            booked(name, f"{value}x20", f"GPU-{index}", f"n-{index // 2}")
            for name, values in said.items()
            for index, value in enumerate(values)
        )
    )


def webhooks(*values: str) -> Series:
    """One series each; the first found by its job, the others by a label."""
    first, *others = values
    found = {one("up", job="gpushare-webhook", instance="10.0.0.1:8080"): first}
    for number, value in enumerate(others):
        label = {"app_kubernetes_io_name": "gpushare-webhook"}
        found[one("up", job="pods", instance=f"10.1.0.{number}:8080", **label)] = value
    return found


def expiring(days: int, replica: int) -> Series:
    """The webhook's certificate as one replica sees it."""
    name = "vcuda_webhook_certificate_not_after_timestamp_seconds"
    instance = f"10.0.0.{replica}:8080"
    return {one(name, file="server", instance=instance): f"{days * DAY}x20"}


SECOND = {
    "job": "gpushare-extender",
    "instance": "10.0.0.2:39998",
    "node": "cp-2",
    "NodeName": "cp-2",
}
NAME = "VcudaFragmented"
TORN = "Free units would fill a card, but at most 14 of them are on one card"
WAIT = "Pods wait for a card: 2"
READY = "vcuda_extender_ready"
LISTENS = {
    "resource": "baidu.com/vcuda-memory",
    "instance": "10.0.0.5:39997",
    "job": "gpushare-device-plugin",
    "node": "n",
}
ENDS = "vcuda_certificate_not_after_timestamp_seconds"

CASES = (
    Case(
        "VcudaPending",
        "only one of the extenders sees them",
        11,
        summed(pending("2x20"), pending("0x20", "cp-2:39998")),
        WAIT,
        WARNING,
    ),
    Case(
        "VcudaPending",
        "a single one",
        11,
        pending("1x20"),
        WAIT.replace("2", "1"),
        WARNING,
    ),
    Case("VcudaPending", "for a moment", 9, pending("2x20")),
    Case("VcudaPending", "one after another comes and goes", 15, pending("1x5 0 1x9")),
    Case(
        "VcudaNothingFree",
        "on no node",
        11,
        largest(a=0, b=0),
        "No card of the cluster has room for one unit",
        INFO,
    ),
    Case("VcudaNothingFree", "for a moment", 9, largest(a=0, b=0)),
    Case("VcudaNothingFree", "a little on one", 20, largest(a=0, b=1)),
    Case(NAME, "a half of each", 16, summed(cards(15), largest(a=14)), TORN, INFO),
    Case(NAME, "for a moment", 14, summed(cards(15), largest(a=14))),
    Case(
        NAME,
        "a card that is well by the books does not answer the exporter",
        16,
        summed(
            cards(21),
            largest(a=8),
            {one("vcuda_card_healthy", CARD, UUID="GPU-0", NodeName="n-0"): "0x20"},
        ),
        TORN.replace("14", "8"),
        INFO,
    ),
    Case(
        NAME,
        "a card with more than all of it placed takes nothing from the others",
        16,
        summed(cards(19, 19, 20, 60), largest(a=10)),
        TORN.replace("14", "10"),
        INFO,
    ),
    Case(NAME, "nor gives", 20, summed(cards(19, 20, 20, 60), largest(a=10))),
    Case(NAME, "more than half of one", 20, summed(cards(14), largest(a=15))),
    Case(NAME, "one is free", 20, summed(cards(15), largest(a=14, b=29))),
    Case(NAME, "nearly full", 20, summed(cards(26), largest(a=3))),
    Case(
        NAME, "it is on closed cards", 20, summed(cards(15, cordoned=1), largest(a=0))
    ),
    Case(
        NAME,
        "it is kept for pods nobody has found",
        20,
        summed(cards(15, unknown=13), largest(a=1)),
    ),
    Case(
        "VcudaPodWithoutPlacement",
        "one",
        6,
        extender("vcuda_extender_pods_without_placement", "1x20"),
        "Pods were bound without the extender: 1",
        WARNING,
    ),
    Case(
        "VcudaPodWithoutPlacement",
        "one that is soon found",
        4,
        extender("vcuda_extender_pods_without_placement", "1x20"),
    ),
    Case(
        "VcudaPodWithoutPlacement",
        "none",
        20,
        extender("vcuda_extender_pods_without_placement", "0x20"),
    ),
    Case(
        "VcudaExtenderNotReady",
        "one of two",
        6,
        summed(
            extender(READY, "1x20"),
            extender(READY, "0x20", "10.0.0.2:39998", node="cp-2"),
        ),
        "The extender of cp-2 (10.0.0.2:39998) does not answer filter",
        {**SECOND, **CRITICAL},
    ),
    Case("VcudaExtenderNotReady", "it starts", 4, extender(READY, "0x4 1x9")),
    Case(
        "VcudaPluginDeaf",
        "for long",
        6,
        {one("vcuda_plugin_registered", LISTENS): "0x20"},
        "Not registered with kubelet: the device plugin of n (10.0.0.5:39997): "
        "baidu.com/vcuda-memory",
        {**LISTENS, "NodeName": "n", **WARNING},
    ),
    Case(
        "VcudaPluginDeaf",
        "it starts",
        4,
        {one("vcuda_plugin_registered", LISTENS): "0x20"},
    ),
    Case(
        "VcudaPluginDeaf",
        "kubelet listens",
        20,
        {one("vcuda_plugin_registered", LISTENS): "1x20"},
    ),
    Case(
        "VcudaCertificateEnds",
        "in 59 days",
        0,
        extender(ENDS, f"{59 * DAY}x20", "10.0.0.2:39998", file="server", node="cp-2"),
        "A certificate of the extender expires in 59d 0h 0m 0s",
        {**SECOND, "file": "server", **WARNING},
    ),
    Case(
        "VcudaCertificateEnds",
        "in 61 days",
        1,
        extender(ENDS, f"{61 * DAY}x20", file="server"),
    ),
    Case(
        "VcudaWebhookDown",
        "both replicas are",
        3,
        webhooks("0x20", "0x20"),
        "No replica of the webhook answers",
        CRITICAL,
    ),
    Case("VcudaWebhookDown", "one of two answers", 10, webhooks("0x20", "1x20")),
    Case("VcudaWebhookDown", "both start anew", 1, webhooks("0x20", "0x20")),
    Case("VcudaWebhookDown", "there is none", 10, {}),
    Case(
        "VcudaWebhookCertificateEnds",
        "in 59 days on one of two",
        0,
        {**expiring(59, 1), **expiring(300, 2)},
        "The webhook's certificate expires in 59d 0h 0m 0s",
        WARNING,
    ),
    Case("VcudaWebhookCertificateEnds", "in 61 days", 1, expiring(61, 1)),
)
