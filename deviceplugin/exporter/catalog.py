"""The table of the exporter's metrics that no driver tells. Pure.

``fields`` has the drivers' metrics. Those of containers and allocations have names that
existing dashboards use (``DCGM_CUSTOM_``), all others are ours (``vcuda_``), in
Prometheus' base units. docs/monitoring.md has a row for each.
"""

from dataclasses import dataclass
from typing import Literal

About = Literal["card", "container", "node"]


@dataclass(frozen=True, slots=True)
class OwnField:
    """One metric: whose labels it carries, and which more.

    ``about`` a card or a container means their labels; ``node`` means ``NodeName``
    alone. A counter's name ends with ``_total``.
    """

    name: str
    about: About
    help: str
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["gauge", "counter"]:
        """Its type in Prometheus."""
        return "counter" if self.name.endswith("_total") else "gauge"


FB_ALLOCATED = OwnField(
    "DCGM_CUSTOM_DEV_FB_ALLOCATED",
    "card",
    "Share of the card's memory that is allocated (0 to 1).",
)
DEV_FB_TOTAL = OwnField("DCGM_CUSTOM_DEV_FB_TOTAL", "card", "Total card memory (MiB).")
ALLOCATE_MODE = OwnField(
    "DCGM_CUSTOM_ALLOCATE_MODE",
    "card",
    "Allocation of the card: 0 none, 1 to one pod alone, 2 shared (0 to 2).",
)
CARD_INFO = OwnField(
    "vcuda_card_info", "card", "1 for each card that was found.", ("healthy",)
)
CARD_HEALTHY = OwnField("vcuda_card_healthy", "card", "1 if the card answers, else 0.")
CARD_ALLOCATED = OwnField(
    "vcuda_card_memory_allocated_bytes",
    "card",
    "Card memory allocated to pods (bytes).",
)
CARD_UNATTRIBUTED = OwnField(
    "vcuda_card_unattributed_memory_bytes",
    "card",
    "Card memory in use that belongs to no known process (bytes).",
)
SM_SOURCE = OwnField(
    "vcuda_sm_util_source",
    "card",
    "1 for the source of the containers' share of the card's time.",
    ("source",),
)
XIDS = OwnField(
    "vcuda_xid_errors_total",
    "card",
    "Faults reported since the exporter started, by XID.",
    ("xid",),
)

SM_UTIL = OwnField(
    "DCGM_CUSTOM_PROCESS_SM_UTIL",
    "container",
    "Share of the card's time that the container's processes worked (%).",
)
MEM_COPY = OwnField(
    "DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL",
    "container",
    "Share of the card's time that its processes copied memory (%).",
)
ENCODE = OwnField(
    "DCGM_CUSTOM_PROCESS_ENCODE_UTIL",
    "container",
    "Share of the encoder's time that its processes used (%).",
)
DECODE = OwnField(
    "DCGM_CUSTOM_PROCESS_DECODE_UTIL",
    "container",
    "Share of the decoder's time that its processes used (%).",
)
MEM_USED = OwnField(
    "DCGM_CUSTOM_PROCESS_MEM_USED",
    "container",
    "Card memory that the container's processes use (MiB).",
)
MEM_ALLOCATED = OwnField(
    "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED",
    "container",
    "Card memory allocated to the container (MiB).",
)
CP_ALLOCATED = OwnField(
    "DCGM_CUSTOM_CONTAINER_CP_ALLOCATED",
    "container",
    "Share of the card's compute allocated to the container (0 to 1).",
)
CORE_LIMIT = OwnField(
    "vcuda_container_core_limit_ratio",
    "container",
    "Share of the card's compute that the container asked for (0 to 1).",
)
CORE_USE = OwnField(
    "vcuda_container_core_use_ratio",
    "container",
    "What the container uses of that share (1 is all of it; more is possible).",
)
LAST_BUSY = OwnField(
    "vcuda_container_last_busy_timestamp_seconds",
    "container",
    "When the container last worked on the card, or when it was first seen "
    "(seconds since 1970).",
)
OVER_SHARE = OwnField(
    "vcuda_container_over_share",
    "container",
    "1 while the container uses more card memory than its share.",
)

DISAGREEMENTS = OwnField(
    "vcuda_placement_disagreements",
    "node",
    "Pods whose cards differ from the planned ones, by source.",
    ("what",),
)
MISPLACED = OwnField(
    "vcuda_pod_misplaced",
    "node",
    "1 for each pod whose cards differ from the planned ones.",
    ("NamespaceName", "PodName", "what"),
)
UNSUPPORTED = OwnField(
    "vcuda_exporter_unsupported",
    "node",
    "1 for each metric that a card does not have.",
    ("metric", "UUID"),
)
CONFIG_OK = OwnField(
    "vcuda_exporter_config_ok",
    "node",
    "1 if the file of metrics is valid, 0 if it is not and the one before is used.",
)
TROUBLE = OwnField(
    "vcuda_exporter_trouble",
    "node",
    "1 for each reason why something is missing here; the log has the details.",
    ("about",),
)
DURATION = OwnField(
    "vcuda_collect_duration_seconds",
    "node",
    "Duration of the last round of a group.",
    ("group",),
)
SUCCESS = OwnField(
    "vcuda_collector_success",
    "node",
    "1 if every card answered in the group's last round.",
    ("group",),
)
TIMESTAMP = OwnField(
    "vcuda_collect_timestamp_seconds",
    "node",
    "When the group's last round ended (seconds since 1970).",
    ("group",),
)
INFO = OwnField(
    "vcuda_exporter_info",
    "node",
    "1, with the versions of the exporter and of the driver.",
    ("version", "driver"),
)
REPORTS = OwnField(
    "vcuda_watchdog_reports_total",
    "node",
    "Events written about containers over their share.",
)
EVICTIONS = OwnField(
    "vcuda_watchdog_evictions_total",
    "node",
    "Pods evicted because a container was over its share.",
)

OWN = (
    DEV_FB_TOTAL,
    FB_ALLOCATED,
    ALLOCATE_MODE,
    CARD_INFO,
    CARD_HEALTHY,
    CARD_ALLOCATED,
    CARD_UNATTRIBUTED,
    SM_SOURCE,
    XIDS,
    SM_UTIL,
    MEM_COPY,
    ENCODE,
    DECODE,
    MEM_USED,
    MEM_ALLOCATED,
    CP_ALLOCATED,
    CORE_LIMIT,
    CORE_USE,
    LAST_BUSY,
    OVER_SHARE,
    DISAGREEMENTS,
    MISPLACED,
    UNSUPPORTED,
    CONFIG_OK,
    TROUBLE,
    DURATION,
    SUCCESS,
    TIMESTAMP,
    INFO,
    REPORTS,
    EVICTIONS,
)
"""All of them, in the order of the page."""
