"""Cases of the alerts on what pods do with their shares."""

from tests.monitoring.alertcases import (
    CARD,
    WHO,
    Case,
    Series,
    card,
    one,
    share,
    summed,
)

USED = "DCGM_CUSTOM_PROCESS_MEM_USED"
ALLOTTED = "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"
SM = "DCGM_CUSTOM_PROCESS_SM_UTIL"
OVER_SHARE = "vcuda_container_over_share"
MIB = 2**20
OVER, IDLE = "VcudaMemoryOverAllocation", "VcudaIdleAllocation"
NOBODYS, DRIFT = "VcudaUnattributedMemory", "VcudaDrift"


def memory(
    used: int,
    allotted: int = 1024,
    mode: str = "share",
    *,
    over: bool = True,
    **labels: str,
) -> Series:
    """What is used and allotted; ``over`` is the exporter's word."""
    return summed(
        share(USED, f"{used}x20", AllocateMode=mode, **labels),
        share(ALLOTTED, f"{allotted}x20", AllocateMode=mode, **labels),
        share(OVER_SHARE, f"{int(over)}x20", AllocateMode=mode, **labels),
    )


OVER_CASES = (
    Case(
        OVER,
        "a tenth too much",
        3,
        memory(1126),
        "a/bert-0 (main) uses 110% of its share",
        {"NodeName": "n", **WHO, "severity": "warning"},
    ),
    Case(
        OVER,
        "its namesake in another namespace has room",
        3,
        summed(memory(1126), memory(0, 8192, over=False, NamespaceName="b")),
        "a/bert-0 (main) uses 110% of its share",
        {"NodeName": "n", **WHO, "severity": "warning"},
    ),
    Case(OVER, "it asked for cores and no memory", 20, memory(1126, 0)),
    Case(OVER, "for a moment", 1, memory(1126)),
    Case(OVER, "the last few MiB", 20, memory(1060, over=False)),
    Case(OVER, "CUDA's contexts", 20, memory(1500, over=False)),
    Case(OVER, "a whole card of its own", 20, memory(1126, mode="exclusive")),
    Case(
        OVER,
        "processes outside Kubernetes have no share",
        20,
        {one(USED, CARD): "4000x20"},
    ),
)

HELD = share(ALLOTTED, "1024x300")
IDLE_LABELS = {
    "NodeName": "n",
    "UUID": "GPU-0",
    **WHO,
    "severity": "info",
}
IDLE_SAYS = "a/bert-0 (main) has held 1024 MiB for two hours without using it"


def both(allotted: str, busy: str, **labels: str) -> Series:
    return summed(share(ALLOTTED, allotted, **labels), share(SM, busy, **labels))


IDLE_CASES = (
    Case(IDLE, "two hours", 125, both("1024x300", "0x300"), IDLE_SAYS, IDLE_LABELS),
    Case(
        IDLE,
        "the exporter has a new pod meanwhile",
        180,
        summed(
            both("1024x100", "0x100", instance="10.0.0.7:9400"),
            both("_x101 1024x200", "_x101 0x200", instance="10.0.0.8:9400"),
        ),
        IDLE_SAYS,
        IDLE_LABELS,
    ),
    Case(IDLE, "a young pod", 150, both("_x60 1024x300", "_x60 0x300")),
    Case(IDLE, "busy once", 125, both("1024x300", "0x60 5 0x300")),
    Case(IDLE, "nobody can tell", 250, HELD),
    Case(IDLE, "it was allotted no memory", 125, both("0x300", "0x300")),
    Case(IDLE, "it had none two hours ago", 125, both("0x60 1024x300", "0x300")),
    Case(IDLE, "it has none any more", 125, both("1024x60 0x300", "0x300")),
    Case(IDLE, "known for minutes only", 250, both("1024x300", "_x240 0x60")),
)


def drift(actual: int) -> Series:
    who = {"NamespaceName": "a", "PodName": "bert-0"}
    misplaced = one("vcuda_pod_misplaced", NodeName="n", what="actual", **who)
    return {
        one(
            "vcuda_placement_disagreements", NodeName="n", what="actual"
        ): f"{actual}x20",
        one("vcuda_placement_disagreements", NodeName="n", what="kubelet"): "0x20",
        **({misplaced: "1x20"} if actual else {}),
    }


DRIFT_LABELS = {"NodeName": "n", "what": "actual", "severity": "warning"}
DRIFT_SAYS = "1 pods of n are not on their recorded cards (by actual)"
BYTES = "vcuda_card_unattributed_memory_bytes"

OTHER_CASES = (
    Case(
        NOBODYS,
        "600 MiB",
        16,
        card(BYTES, f"{600 * MIB}x20"),
        "600MiB of card 0 of n belong to no running pod",
        {**CARD, "severity": "warning"},
    ),
    Case(NOBODYS, "600 MiB for a moment", 14, card(BYTES, f"{600 * MIB}x20")),
    Case(NOBODYS, "the driver's own", 20, card(BYTES, f"{400 * MIB}x20")),
    Case(DRIFT, "a pod is elsewhere", 11, drift(1), DRIFT_SAYS, DRIFT_LABELS),
    Case(DRIFT, "for a moment", 9, drift(1)),
    Case(DRIFT, "all are where they should be", 20, drift(0)),
)

CASES = (*OVER_CASES, *IDLE_CASES, *OTHER_CASES)
