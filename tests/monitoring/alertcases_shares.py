"""Cases of the alerts on what pods do with their shares."""

from tests.monitoring.alertcases import (
    CARD,
    INFO,
    WARNING,
    WHO,
    About,
    Series,
    card,
    merged,
    one,
    share,
)

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
    misplaced = one(
        "vcuda_pod_misplaced",
        NodeName="n",
        what="actual",
        NamespaceName="a",
        PodName="bert-0",
    )
    return {
        one(name, NodeName="n", what="actual"): f"{actual}x20",
        one(name, NodeName="n", what="kubelet"): "0x20",
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
    OVER.fires("a tenth too much", 3, memory(1126)),
    OVER.fires(
        "its namesake in another namespace has room", 3, merged(memory(1126), NAMESAKE)
    ),
    OVER.silent("it asked for cores and no memory", 20, memory(1126, 0)),
    OVER.silent("for a moment", 1, memory(1126)),
    OVER.silent("the last few MiB", 20, memory(1060, over=False)),
    OVER.silent("CUDA's contexts", 20, memory(1500, over=False)),
    OVER.silent("a whole card of its own", 20, memory(1126, mode="exclusive")),
    OVER.silent(
        "processes outside Kubernetes have no share", 20, {one(USED, CARD): "4000x20"}
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
