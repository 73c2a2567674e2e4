"""Cases of the alerts on scheduling, and on what pods do with their shares."""

from functools import partial

from tests.monitoring.alertcases import (
    CARD,
    CRITICAL,
    INFO,
    WARNING,
    WHO,
    About,
    Series,
    booked,
    card,
    merged,
    of_instances,
    series_of,
    share,
)

DAY = 86400


def extender(
    name: str, values: str, instance: str = "cp-1:39998", **more: str
) -> Series:
    return {series_of(name, job="gpushare-extender", instance=instance, **more): values}


def pending(values: str, instance: str = "cp-1:39998") -> Series:
    return extender("vcuda_extender_pods_pending", values, instance)


def largest(**nodes: int) -> Series:
    name = "vcuda_node_largest_free_units"
    return {
        series_of(name, NodeName=node): f"{units}x20" for node, units in nodes.items()
    }


def cards(*placed: int, cordoned: int = 0, unknown: int = 0, cores: int = 1) -> Series:
    """Four cards of 29 units, on two nodes; one number of placed units is for all."""
    values_by_metric = {
        "vcuda_card_units": (29,) * 4,
        "vcuda_card_placed_units": placed if len(placed) == 4 else placed * 4,
        "vcuda_card_placed_cores": (cores,) * 4,
        "vcuda_card_unknown_units": (unknown,) * 4,
        "vcuda_card_cordoned": (cordoned,) * 4,
        "vcuda_card_healthy": (1,) * 4,
    }
    return merged(
        *(
            booked(name, f"{value}x20", f"GPU-{index}", f"n-{index // 2}")
            for name, values in values_by_metric.items()
            for index, value in enumerate(values)
        )
    )


def torn(units: int = 14) -> About:
    says = f"Free units would fill a card, but at most {units} of them are on one card"
    return About("VcudaFragmented", says, INFO)


PENDING = About("VcudaPending", "Pods wait for a card: 2", WARNING)
ONE_PENDING = About("VcudaPending", "Pods wait for a card: 1", WARNING)
NOTHING = About(
    "VcudaNothingFree",
    "No card of the cluster has room for a pod of one unit and one core",
    INFO,
)
TORN = torn()
UNANSWERING = {
    series_of("vcuda_card_healthy", CARD, UUID="GPU-0", NodeName="n-0"): "0x20"
}
WITHOUT = About(
    "VcudaPodWithoutPlacement", "Pods were bound without the extender: 1", WARNING
)
OVER_PLACED = About(
    "VcudaOverPlaced",
    "A card of n-0 has less than the 30 units that are placed on it",
    WARNING,
    NodeName="n-0",
    UUID="GPU-1",
)
booked_there = partial(booked, uuid="GPU-1", node="n-0")
UNREAD = About(
    "VcudaClaimNotUnderstood",
    "ResourceClaims that the extender cannot read: 1",
    WARNING,
)
UNREAD_CLAIMS = "vcuda_extender_claims_not_understood"
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
REGISTERED = series_of("vcuda_plugin_registered", LISTENS)
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


USED = "DCGM_CUSTOM_PROCESS_MEM_USED"
ALLOTTED = "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"
SM = "DCGM_CUSTOM_PROCESS_SM_UTIL"
MIB = 2**20
BYTES = "vcuda_card_unattributed_memory_bytes"


def memory(
    used: int,
    allotted: int = 1024,
    mode: str = "share",
    *,
    over: bool = True,
    **labels: str,
) -> Series:
    """What is used and allotted; ``over`` is the exporter's word."""
    labels["AllocateMode"] = mode
    return merged(
        share(USED, f"{used}x20", **labels),
        share(ALLOTTED, f"{allotted}x20", **labels),
        share("vcuda_container_over_share", f"{int(over)}x20", **labels),
    )


def both(allotted: str, busy: str, **labels: str) -> Series:
    return merged(share(ALLOTTED, allotted, **labels), share(SM, busy, **labels))


def drift(actual: int) -> Series:
    name = "vcuda_placement_disagreements"
    misplaced = series_of(
        "vcuda_pod_misplaced",
        NodeName="n",
        what="actual",
        NamespaceName="a",
        PodName="bert-0",
    )
    return {
        series_of(name, NodeName="n", what="actual"): f"{actual}x20",
        series_of(name, NodeName="n", what="kubelet"): "0x20",
        **({misplaced: "1x20"} if actual else {}),
    }


OVER = About(
    "VcudaMemoryOverAllocation",
    "a/bert-0 (main) uses 110% of its share",
    WHO,
    WARNING,
    NodeName="n",
)
NAMESAKE = memory(0, 8192, over=False, NamespaceName="b")
NOT_HELD = About(
    "VcudaNotHeld",
    "a/bert-0 (main) is not held to its share",
    WHO,
    WARNING,
    NodeName="n",
)
HELD = "vcuda_container_held"
IDLE = About(
    "VcudaIdleAllocation",
    "a/bert-0 (main) has held 1024 MiB for two hours without using it",
    WHO,
    INFO,
    NodeName="n",
    UUID="GPU-0",
)
NEW_EXPORTER = merged(
    both("1024x100", "0x100", instance="10.0.0.7:9400"),
    both("_x101 1024x200", "_x101 0x200", instance="10.0.0.8:9400"),
)
NOBODYS = About(
    "VcudaUnattributedMemory",
    "600MiB of card 0 of n belong to no running pod",
    CARD,
    WARNING,
)
DRIFT = About(
    "VcudaDrift",
    "1 pods of n are not on their recorded cards (by actual)",
    WARNING,
    NodeName="n",
    what="actual",
)

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
    TORN.silent("all cores are placed", 20, merged(cards(15, cores=100), largest(a=0))),
    TORN.silent(
        "it is kept for pods nobody has found",
        20,
        merged(cards(15, unknown=13), largest(a=1)),
    ),
    WITHOUT.fires("one", 6, extender(LOST, "1x20")),
    WITHOUT.silent("one that is soon found", 4, extender(LOST, "1x20")),
    WITHOUT.silent("none", 20, extender(LOST, "0x20")),
    OVER_PLACED.fires("one unit too much", 6, cards(29, 30, 0, 29)),
    OVER_PLACED.fires(
        "one of two MIG instances, of which the other has room",
        6,
        merged(
            of_instances(booked_there, "vcuda_card_units", "29x20", "58x20"),
            of_instances(booked_there, "vcuda_card_placed_units", "30x20", "0x20"),
        ),
        GPU_I_UUID="MIG-0",
    ),
    OVER_PLACED.fires(
        "two extenders tell the same, which is one card",
        6,
        merged(
            cards(29, 30, 0, 29),
            {
                series_of(
                    "vcuda_card_placed_units", NodeName="n-0", UUID="GPU-1", job="b"
                ): ("30x20")
            },
        ),
    ),
    OVER_PLACED.silent("all of it", 20, cards(29)),
    OVER_PLACED.silent("two answers for one claim, of which one goes", 4, cards(30)),
    UNREAD.fires("one", 6, extender(UNREAD_CLAIMS, "1x20")),
    UNREAD.silent("none", 20, extender(UNREAD_CLAIMS, "0x20")),
    NOT_READY.fires("one of two", 6, ONE_READY),
    NOT_READY.silent("it starts", 4, extender(READY, "0x4 1x9")),
    DEAF.fires("for long", 6, {REGISTERED: "0x20"}),
    DEAF.silent("it starts", 4, {REGISTERED: "0x20"}),
    DEAF.silent("kubelet listens", 20, {REGISTERED: "1x20"}),
    ENDING.fires("in 59 days", 0, ends(59, "10.0.0.2:39998", node="cp-2")),
    ENDING.silent("in 61 days", 1, ends(61)),
    OVER.fires("a tenth too much", 3, memory(1126)),
    OVER.fires(
        "its namesake in another namespace has room", 3, merged(memory(1126), NAMESAKE)
    ),
    NOT_HELD.fires("the library does not count it", 6, share(HELD, "0x20")),
    NOT_HELD.fires(
        "it is held on another card",
        6,
        merged(share(HELD, "0x20"), share(HELD, "1x20", UUID="GPU-1")),
    ),
    NOT_HELD.silent("for some rounds", 20, share(HELD, "0 0 0 0 1x16")),
    NOT_HELD.silent("it is not known", 20, share(HELD, "_x20")),
    OVER.silent("it asked for cores and no memory", 20, memory(1126, 0)),
    OVER.silent("for a moment", 1, memory(1126)),
    OVER.silent("the last few MiB", 20, memory(1060, over=False)),
    OVER.silent("CUDA's contexts", 20, memory(1500, over=False)),
    OVER.silent("a whole card of its own", 20, memory(1126, mode="exclusive")),
    OVER.silent(
        "processes outside Kubernetes have no share",
        20,
        {series_of(USED, CARD): "4000x20"},
    ),
    IDLE.fires("two hours", 125, both("1024x300", "0x300")),
    IDLE.fires("the exporter has a new pod meanwhile", 180, NEW_EXPORTER),
    IDLE.silent("a young pod", 150, both("_x60 1024x300", "_x60 0x300")),
    IDLE.silent("busy once", 125, both("1024x300", "0x60 5 0x300")),
    IDLE.silent("nobody can tell", 250, share(ALLOTTED, "1024x300")),
    IDLE.silent("it was allotted no memory", 125, both("0x300", "0x300")),
    IDLE.silent("it had none two hours ago", 125, both("0x60 1024x300", "0x300")),
    IDLE.silent("it has none any more", 125, both("1024x60 0x300", "0x300")),
    IDLE.silent("known for minutes only", 250, both("1024x300", "_x240 0x60")),
    NOBODYS.fires("600 MiB", 16, card(BYTES, f"{600 * MIB}x20")),
    NOBODYS.silent("600 MiB for a moment", 14, card(BYTES, f"{600 * MIB}x20")),
    NOBODYS.silent("the driver's own", 20, card(BYTES, f"{400 * MIB}x20")),
    DRIFT.fires("a pod is elsewhere", 11, drift(1)),
    DRIFT.silent("for a moment", 9, drift(1)),
    DRIFT.silent("all are where they should be", 20, drift(0)),
)
