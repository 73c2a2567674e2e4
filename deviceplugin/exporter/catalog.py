"""Every metric of the exporter that no driver tells: the other table beside ``fields``.

Those of containers and allotments bear the names of seed 002 and its likes
(``DCGM_CUSTOM_``), all others are ours (``vcuda_``), in Prometheus' base units.
docs/monitoring.md has a row for each.
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
        """What Prometheus takes it for."""
        return "counter" if self.name.endswith("_total") else "gauge"


FB_ALLOCATED = OwnField(
    "DCGM_CUSTOM_DEV_FB_ALLOCATED",
    "card",
    "Share of the card's memory that is allotted (0 to 1).",
)
DEV_FB_TOTAL = OwnField(
    "DCGM_CUSTOM_DEV_FB_TOTAL", "card", "Card memory in all, as found (MiB)."
)
ALLOCATE_MODE = OwnField(
    "DCGM_CUSTOM_ALLOCATE_MODE",
    "card",
    "How the card is allotted: 0 not at all, 1 to one pod alone, 2 shared (0 to 2).",
)
CARD_INFO = OwnField(
    "vcuda_card_info", "card", "1 for each card that was found.", ("healthy",)
)
CARD_HEALTHY = OwnField(
    "vcuda_card_healthy", "card", "1 while the card answers, 0 while it does not."
)
CARD_ALLOCATED = OwnField(
    "vcuda_card_memory_allocated_bytes", "card", "Card memory allotted to pods (bytes)."
)
CARD_UNATTRIBUTED = OwnField(
    "vcuda_card_unattributed_memory_bytes",
    "card",
    "Card memory in use that no known process accounts for (bytes).",
)
SM_SOURCE = OwnField(
    "vcuda_sm_util_source",
    "card",
    "1 for the way in which the containers' share of the card's time is known.",
    ("source",),
)
XIDS = OwnField(
    "vcuda_xid_errors_total",
    "card",
    "Faults reported since the exporter began, by XID.",
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
    "Share of the card's time that they moved memory (%).",
)
ENCODE = OwnField(
    "DCGM_CUSTOM_PROCESS_ENCODE_UTIL",
    "container",
    "Share of the encoder's time that they used (%).",
)
DECODE = OwnField(
    "DCGM_CUSTOM_PROCESS_DECODE_UTIL",
    "container",
    "Share of the decoder's time that they used (%).",
)
MEM_USED = OwnField(
    "DCGM_CUSTOM_PROCESS_MEM_USED",
    "container",
    "Card memory that the container's processes use (MiB).",
)
MEM_ALLOCATED = OwnField(
    "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED",
    "container",
    "Card memory allotted to the container (MiB).",
)
CP_ALLOCATED = OwnField(
    "DCGM_CUSTOM_CONTAINER_CP_ALLOCATED",
    "container",
    "Share of the card's compute allotted to the container (0 to 1).",
)
CORE_LIMIT = OwnField(
    "vcuda_container_core_limit_ratio",
    "container",
    "Share of the card's compute that the container asked for (0 to 1).",
)
CORE_USE = OwnField(
    "vcuda_container_core_use_ratio",
    "container",
    "What it uses of that share (1 is all of it; more is possible).",
)
LAST_BUSY = OwnField(
    "vcuda_container_last_busy_timestamp_seconds",
    "container",
    "When it was last seen at work on the card, at the earliest when it was first "
    "seen (seconds since 1970).",
)
OVER_SHARE = OwnField(
    "vcuda_container_over_share",
    "container",
    "1 while the container uses more card memory than its share.",
)

DISAGREEMENTS = OwnField(
    "vcuda_placement_disagreements",
    "node",
    "Pods whose cards are other than planned, by who says so.",
    ("what",),
)
MISPLACED = OwnField(
    "vcuda_pod_misplaced",
    "node",
    "1 for each such pod.",
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
    "1 when the file of metrics is in force, 0 when it is broken and an older one is.",
)
TROUBLE = OwnField(
    "vcuda_exporter_trouble",
    "node",
    "1 for each thing that keeps something off this page; the log says why.",
    ("about",),
)
DURATION = OwnField(
    "vcuda_collect_duration_seconds",
    "node",
    "How long the last round of a group took.",
    ("group",),
)
SUCCESS = OwnField(
    "vcuda_collector_success",
    "node",
    "1 when every card answered in the group's last round.",
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
    "Containers over their share that an event was written about.",
)
EVICTIONS = OwnField("vcuda_watchdog_evictions_total", "node", "Pods evicted for it.")

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
