"""The table of the metrics that the exporter computes. Pure.

``telemetry.fields`` has the metrics that are read from the driver. Here, those
of containers and allocations have names that existing dashboards use
(``DCGM_CUSTOM_``). All others begin with ``vcuda_`` and are in Prometheus' base units.
docs/monitoring.md has a row for each.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True, slots=True)
class OwnField:
    """One metric: whose labels it carries, and which more.

    ``about`` a card or a container means their labels; ``node`` means ``NodeName``
    alone. A counter's name ends with ``_total``.
    """

    about: Literal["card", "container", "node"]
    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["gauge", "counter"]:
        """Its type in Prometheus."""
        return "counter" if self.name.endswith("_total") else "gauge"


_card = partial(OwnField, "card")
_container = partial(OwnField, "container")
_node = partial(OwnField, "node")

DEV_FB_TOTAL = _card("DCGM_CUSTOM_DEV_FB_TOTAL", "Total card memory (MiB).")
FB_ALLOCATED = _card(
    "DCGM_CUSTOM_DEV_FB_ALLOCATED",
    "Share of the card's memory that is allocated (0 to 1).",
)
ALLOCATE_MODE = _card(
    "DCGM_CUSTOM_ALLOCATE_MODE",
    "Allocation of the card: 0 none, 1 to one pod alone, 2 shared (0 to 2).",
)
CARD_INFO = _card("vcuda_card_info", "1 for each card that was found.", ("healthy",))
CARD_HEALTHY = _card(
    "vcuda_card_healthy", "1 if the card answers the exporter; XIDs do not count."
)
CARD_ALLOCATED = _card(
    "vcuda_card_memory_allocated_bytes", "Card memory allocated to pods (bytes)."
)
CARD_UNATTRIBUTED = _card(
    "vcuda_card_unattributed_memory_bytes",
    "Card memory in use that belongs to no known process (bytes).",
)
SM_SOURCE = _card(
    "vcuda_sm_util_source",
    "1 for the source of the containers' share of the card's time.",
    ("source",),
)
XIDS = _card(
    "vcuda_xid_errors_total",
    "Faults reported since the exporter started, by XID.",
    ("xid",),
)

SM_UTIL = _container(
    "DCGM_CUSTOM_PROCESS_SM_UTIL",
    "Share of the card's time that the container's processes worked (%).",
)
MEM_COPY = _container(
    "DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL",
    "Share of the card's time that its processes copied memory (%).",
)
ENCODE = _container(
    "DCGM_CUSTOM_PROCESS_ENCODE_UTIL",
    "Share of the encoder's time that its processes used (%).",
)
DECODE = _container(
    "DCGM_CUSTOM_PROCESS_DECODE_UTIL",
    "Share of the decoder's time that its processes used (%).",
)
MEM_USED = _container(
    "DCGM_CUSTOM_PROCESS_MEM_USED",
    "Card memory that the container's processes use (MiB).",
)
MEM_ALLOCATED = _container(
    "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED",
    "Card memory allocated to the container (MiB).",
)
CP_ALLOCATED = _container(
    "DCGM_CUSTOM_CONTAINER_CP_ALLOCATED",
    "Share of the card's compute allocated to the container (0 to 1).",
)
CORE_LIMIT = _container(
    "vcuda_container_core_limit_ratio",
    "Share of the card's compute that the container asked for (0 to 1).",
)
CORE_USE = _container(
    "vcuda_container_core_use_ratio",
    "What the container uses of that share (1 is all of it; more is possible).",
)
LAST_BUSY = _container(
    "vcuda_container_last_busy_timestamp_seconds",
    "When the container last worked on the card, or when it was first seen "
    "(seconds since 1970).",
)
OVER_SHARE = _container(
    "vcuda_container_over_share",
    "1 while the container uses more card memory than its share.",
)
HELD = _container(
    "vcuda_container_held",
    "1 if the container's isolation tier holds it to its share, 0 if it does not.",
)
LAUNCH_DELAY = _container(
    "vcuda_container_launch_delay_seconds",
    "How long each launch of a kernel waits, so that the container keeps to its cores "
    "(seconds).",
)

DISAGREEMENTS = _node(
    "vcuda_placement_disagreements",
    "Pods whose cards differ from the planned ones, by source.",
    ("what",),
)
MISPLACED = _node(
    "vcuda_pod_misplaced",
    "1 for each pod whose cards differ from the planned ones.",
    ("NamespaceName", "PodName", "what"),
)
UNSUPPORTED = _node(
    "vcuda_exporter_unsupported",
    "1 for each metric that a card does not have.",
    ("metric", "UUID"),
)
CONFIG_OK = _node(
    "vcuda_exporter_config_ok",
    "1 if the file of metrics is valid, 0 if it is not and the one before is used.",
)
TROUBLE = _node(
    "vcuda_exporter_trouble",
    "1 for each reason why something is missing here; the log has the details.",
    ("about",),
)
DURATION = _node(
    "vcuda_collect_duration_seconds",
    "Duration of the last round of a group.",
    ("group",),
)
SUCCESS = _node(
    "vcuda_collector_success",
    "1 if every card answered in the group's last round.",
    ("group",),
)
TIMESTAMP = _node(
    "vcuda_collect_timestamp_seconds",
    "When the group's last round ended (seconds since 1970).",
    ("group",),
)
INFO = _node(
    "vcuda_exporter_info",
    "1, with the versions of the exporter and of the driver.",
    ("version", "driver"),
)
REPORTS = _node(
    "vcuda_watchdog_reports_total", "Events written about containers over their share."
)
EVICTIONS = _node(
    "vcuda_watchdog_evictions_total",
    "Pods evicted because a container was over its share.",
)

OWN = tuple(value for value in vars().values() if isinstance(value, OwnField))
"""All of them, in the order of the page."""
