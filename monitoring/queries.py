"""Pieces of PromQL that dashboards and alerts share.

In most clusters several extenders run, and each shows the same ledger. So a metric of
the extender about a card is taken once per card, and never summed over extenders.
"""

UNIT_MIB = 256
"""MiB of one unit of ``baidu.com/vcuda-memory``."""
CARD = "NodeName, UUID, GPU_I_UUID"
"""The labels that identify a card, for the extender and the exporter.

Only MIG instances have the last one, their own UUID; ``UUID`` is their card's.
"""
ITS_UUID = "{{ or $labels.GPU_I_UUID $labels.UUID }}"
"""In an alert's text: the UUID by which gpushare knows the card."""
ITS_NUMBER = "{{ $labels.gpu }}{{ with $labels.GPU_I_ID }} instance {{ . }}{{ end }}"
"""In an alert's text: the card's number, with that of a MIG instance's GPU instance."""
POD = "NamespaceName, PodName"
CONTAINER = "NodeName, NamespaceName, PodName, ContainerName"

PLACED = "vcuda_card_placed_units"
UNITS = "vcuda_card_units"
USED = "DCGM_CUSTOM_PROCESS_MEM_USED"
ALLOTTED = "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"
SM = "DCGM_CUSTOM_PROCESS_SM_UTIL"
PENDING = "vcuda_extender_pods_pending"
LARGEST_FREE = "vcuda_node_largest_free_units"

HEALTHY = f"min by ({CARD}) (vcuda_card_healthy)"
"""1 for each card that all sources call healthy, otherwise 0."""
HEALTHY_BY_BOOKS = f'min by ({CARD}) (vcuda_card_healthy{{gpu=""}})'
"""The health of each card as its node's device plugin published it.

The exporter has a metric of the same name from its own queries. Only the exporter's
series have the card's index.
"""
HEALTHY_BY_EXPORTER = f'min by ({CARD}, gpu, GPU_I_ID) (vcuda_card_healthy{{gpu!=""}})'
"""For each card whether it answers the exporter."""


def booked(metric: str) -> str:
    """Return one of the extender's gauges of a card, once per card."""
    return f"max by ({CARD}) ({metric})"


def ours(metric: str) -> str:
    """Select our exporter's series of a metric that dcgm-exporter has too.

    dcgm-exporter's series have no NodeName. With them every card would count twice.
    """
    return f'{metric}{{NodeName!=""}}'


def used_of_allotted(used: str, allotted: str) -> str:
    """Return the quotient, without shares of 0, which cannot be exceeded."""
    return f"{used}\n/ ({allotted} > 0)"


def free_units() -> str:
    """Return how many units are free on open cards that have a free core."""
    free = " - ".join(
        booked(metric) for metric in (UNITS, PLACED, "vcuda_card_unknown_units")
    )
    is_open = f"(1 - {booked('vcuda_card_cordoned')})"
    has_cores = f"({booked('vcuda_card_placed_cores')} < bool 100)"
    card = f"clamp_min({free}, 0) * {HEALTHY_BY_BOOKS} * {is_open} * {has_cores}"
    return f"sum({card})"


def by(labels: str, metric: str, matchers: str = "") -> str:
    """Return the sum of a metric of containers by some of its labels."""
    chosen = f"{{{matchers}}}" if matchers else ""
    return f"sum by ({labels}) ({metric}{chosen})"
