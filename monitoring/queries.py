"""Pieces of PromQL that dashboards and alerts share.

The extender runs more than once in most clusters, and every one of them shows the same
books: what it says of a card is taken once per card, never summed as it comes.
"""

UNIT_MIB = 256
"""MiB of one unit of ``baidu.com/vcuda-memory``."""
CARD = "NodeName, UUID"
"""What tells cards apart, in the extender's series as in the exporter's."""
POD = "NamespaceName, PodName"
CONTAINER = "NodeName, NamespaceName, PodName, ContainerName"

PLACED = "vcuda_card_placed_units"
UNITS = "vcuda_card_units"
USED = "DCGM_CUSTOM_PROCESS_MEM_USED"
ALLOTTED = "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED"
SM = "DCGM_CUSTOM_PROCESS_SM_UTIL"
PENDING = "vcuda_extender_pods_pending"
LARGEST_FREE = "vcuda_node_largest_free_units"


def booked(metric: str) -> str:
    """Take one of the extender's gauges of a card once per card."""
    return f"max by ({CARD}) ({metric})"


def ours(metric: str, matchers: str = "") -> str:
    """Choose our exporter's series of a metric that dcgm-exporter has, too.

    Beside it every card would count twice; its series have no NodeName.
    """
    more = f", {matchers}" if matchers else ""
    return f'{metric}{{NodeName!=""{more}}}'


def healthy() -> str:
    """Tell for each card whether all who know it call it well: 1, or 0."""
    return f"min by ({CARD}) (vcuda_card_healthy)"


def healthy_by_books() -> str:
    """Tell for each card what its node's device plugin made known of it.

    The exporter has a metric of the same name, by what it was answered itself. Only
    its series have the card's index.
    """
    return f'min by ({CARD}) (vcuda_card_healthy{{gpu=""}})'


def healthy_by_exporter() -> str:
    """Tell for each card whether it answers the exporter."""
    return f'min by ({CARD}, gpu) (vcuda_card_healthy{{gpu!=""}})'


def used_of_allotted(used: str, allotted: str) -> str:
    """Divide, except where nothing was allotted: such a share cannot be exceeded."""
    return f"{used}\n/ ({allotted} > 0)"


def free_units() -> str:
    """Give the units that are free in all: on cards that are well and not cordoned."""
    free = " - ".join(
        booked(one) for one in (UNITS, PLACED, "vcuda_card_unknown_units")
    )
    is_open = f"(1 - {booked('vcuda_card_cordoned')})"
    return f"sum(clamp_min({free}, 0) * {healthy_by_books()} * {is_open})"


def by(labels: str, metric: str, matchers: str = "") -> str:
    """Sum a metric of containers by some of its labels."""
    chosen = f"{{{matchers}}}" if matchers else ""
    return f"sum by ({labels}) ({metric}{chosen})"
