"""Cases of the alerts on scheduling, and on the extender that does it."""

from tests.monitoring.alertcases import (
    CARD,
    CRITICAL,
    INFO,
    WARNING,
    About,
    Series,
    booked,
    merged,
    one,
)

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
    said = {
        "vcuda_card_units": (29,) * 4,
        "vcuda_card_placed_units": placed if len(placed) == 4 else placed * 4,
        "vcuda_card_unknown_units": (unknown,) * 4,
        "vcuda_card_cordoned": (cordoned,) * 4,
        "vcuda_card_healthy": (1,) * 4,
    }
    return merged(
        *(
            booked(name, f"{value}x20", f"GPU-{index}", f"n-{index // 2}")
            for name, values in said.items()
            for index, value in enumerate(values)
        )
    )


def torn(units: int = 14) -> About:
    says = f"Free units would fill a card, but at most {units} of them are on one card"
    return About("VcudaFragmented", says, INFO)


PENDING = About("VcudaPending", "Pods wait for a card: 2", WARNING)
ONE_PENDING = About("VcudaPending", "Pods wait for a card: 1", WARNING)
NOTHING = About(
    "VcudaNothingFree", "No card of the cluster has room for one unit", INFO
)
TORN = torn()
UNANSWERING = {one("vcuda_card_healthy", CARD, UUID="GPU-0", NodeName="n-0"): "0x20"}
WITHOUT = About(
    "VcudaPodWithoutPlacement", "Pods were bound without the extender: 1", WARNING
)
LOST = "vcuda_extender_pods_without_placement"
SECOND = {
    "job": "gpushare-extender",
    "instance": "10.0.0.2:39998",
    "node": "cp-2",
    "NodeName": "cp-2",
}
NOT_READY = About(
    "VcudaExtenderNotReady",
    "The extender of cp-2 (10.0.0.2:39998) does not answer filter",
    SECOND,
    CRITICAL,
)
READY = "vcuda_extender_ready"
ONE_READY = merged(
    extender(READY, "1x20"), extender(READY, "0x20", "10.0.0.2:39998", node="cp-2")
)
LISTENS = {
    "resource": "baidu.com/vcuda-memory",
    "instance": "10.0.0.5:39997",
    "job": "gpushare-device-plugin",
    "node": "n",
}
DEAF = About(
    "VcudaPluginDeaf",
    "Not registered with kubelet: the device plugin of n (10.0.0.5:39997): "
    "baidu.com/vcuda-memory",
    LISTENS,
    WARNING,
    NodeName="n",
)
REGISTERED = one("vcuda_plugin_registered", LISTENS)
ENDING = About(
    "VcudaCertificateEnds",
    "A certificate of the extender expires in 59d 0h 0m 0s",
    SECOND,
    WARNING,
    file="server",
)


def ends(days: int, *instance: str, **more: str) -> Series:
    name = "vcuda_certificate_not_after_timestamp_seconds"
    return extender(name, f"{days * DAY}x20", *instance, file="server", **more)


CASES = (
    PENDING.fires(
        "only one of the extenders sees them",
        11,
        merged(pending("2x20"), pending("0x20", "cp-2:39998")),
    ),
    ONE_PENDING.fires("a single one", 11, pending("1x20")),
    PENDING.silent("for a moment", 9, pending("2x20")),
    PENDING.silent("one after another comes and goes", 15, pending("1x5 0 1x9")),
    NOTHING.fires("on no node", 11, largest(a=0, b=0)),
    NOTHING.silent("for a moment", 9, largest(a=0, b=0)),
    NOTHING.silent("a little on one", 20, largest(a=0, b=1)),
    TORN.fires("a half of each", 16, merged(cards(15), largest(a=14))),
    TORN.silent("for a moment", 14, merged(cards(15), largest(a=14))),
    torn(8).fires(
        "a card that is well by the books does not answer the exporter",
        16,
        merged(cards(21), largest(a=8), UNANSWERING),
    ),
    torn(10).fires(
        "a card with more than all of it placed takes nothing from the others",
        16,
        merged(cards(19, 19, 20, 60), largest(a=10)),
    ),
    TORN.silent("nor gives", 20, merged(cards(19, 20, 20, 60), largest(a=10))),
    TORN.silent("more than half of one", 20, merged(cards(14), largest(a=15))),
    TORN.silent("one is free", 20, merged(cards(15), largest(a=14, b=29))),
    TORN.silent("nearly full", 20, merged(cards(26), largest(a=3))),
    TORN.silent(
        "it is on closed cards", 20, merged(cards(15, cordoned=1), largest(a=0))
    ),
    TORN.silent(
        "it is kept for pods nobody has found",
        20,
        merged(cards(15, unknown=13), largest(a=1)),
    ),
    WITHOUT.fires("one", 6, extender(LOST, "1x20")),
    WITHOUT.silent("one that is soon found", 4, extender(LOST, "1x20")),
    WITHOUT.silent("none", 20, extender(LOST, "0x20")),
    NOT_READY.fires("one of two", 6, ONE_READY),
    NOT_READY.silent("it starts", 4, extender(READY, "0x4 1x9")),
    DEAF.fires("for long", 6, {REGISTERED: "0x20"}),
    DEAF.silent("it starts", 4, {REGISTERED: "0x20"}),
    DEAF.silent("kubelet listens", 20, {REGISTERED: "1x20"}),
    ENDING.fires("in 59 days", 0, ends(59, "10.0.0.2:39998", node="cp-2")),
    ENDING.silent("in 61 days", 1, ends(61)),
)
