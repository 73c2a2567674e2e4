"""The whole cluster: what there is, what is promised, what is used, who waits."""

from deviceplugin.telemetry import fields
from monitoring.boards.board import Board, Section
from monitoring.boards.extender import extender_panels
from monitoring.panels import (
    MIB,
    PERCENT,
    RATIO,
    SECONDS,
    Panel,
    Query,
    bars,
    lines,
    number,
    rows_of,
)
from monitoring.queries import (
    ALLOTTED,
    LARGEST_FREE,
    PENDING,
    PLACED,
    POD,
    SM,
    UNIT_MIB,
    UNITS,
    USED,
    booked,
    by,
    free_units,
    healthy,
    ours,
    used_of_allotted,
)

_ALLOTTED_MIB = "vcuda_card_memory_allocated_bytes / 2^20"
_TOTAL = ours(fields.FB_TOTAL)
_IN_USE = ours(fields.FB_USED)
_BUSY = ours(fields.GPU_UTIL)
_PODS = 'PodName!=""'
_OF_ALLOTTED = used_of_allotted(by(POD, USED, _PODS), by(POD, ALLOTTED))


def _now() -> tuple[Panel, ...]:
    return (
        number("Cards", f"count({booked('vcuda_card_info')})", "That exporters see."),
        number(
            "Sick cards",
            f"sum(1 - {healthy()})",
            "That their node's device plugin or exporter calls sick.",
            bad_from=1,
        ),
        number("Memory", f"sum({_TOTAL})", "Of all cards.", MIB),
        number(
            "Allotted",
            f"sum({_ALLOTTED_MIB}) / sum({_TOTAL})",
            "Part of all memory that pods were promised.",
            RATIO,
        ),
        number(
            "Used",
            f"sum({_IN_USE}) / sum({_TOTAL})",
            "Part of all memory that is really in use.",
            RATIO,
        ),
        number(
            "Largest free block",
            f"max({LARGEST_FREE}) * {UNIT_MIB}",
            "The most that one pod could still get, on one card.",
            MIB,
        ),
        number(
            "Pods that wait",
            f"max({PENDING})",
            "They ask for cards and have no node. gpusharectl why tells each reason.",
            bad_from=1,
        ),
        number(
            "Alerts",
            'count(ALERTS{alertname=~"Vcuda.+", alertstate="firing"})',
            "Of ours that are firing; empty where none is, or none are loaded.",
            bad_from=1,
        ),
    )


def _over_time() -> tuple[Panel, ...]:
    return (
        lines(
            "Memory: allotted beside used",
            (
                Query(f"sum({_TOTAL})", "all"),
                Query(f"sum({_ALLOTTED_MIB})", "allotted"),
                Query(f"sum({_IN_USE})", "used"),
            ),
            "Used above allotted: somebody takes more than was promised.",
            MIB,
        ),
        lines(
            "Compute: allotted beside used",
            (
                Query(
                    f"sum({booked('vcuda_card_placed_cores')})"
                    f" / (100 * count({booked(UNITS)}))",
                    "allotted cores",
                ),
                Query(f"avg({_BUSY}) / 100", "busy"),
            ),
            "Cores are hundredths of a card.",
            RATIO,
            top=1,
        ),
        lines(
            "Free: in all, and at most on one card",
            (
                Query(f"{free_units()} * {UNIT_MIB}", "free in all"),
                Query(f"max({LARGEST_FREE}) * {UNIT_MIB}", "largest block"),
                Query(
                    f"max by (NodeName) ({LARGEST_FREE}) * {UNIT_MIB}",
                    "{{NodeName}}",
                ),
            ),
            "Far apart: the cluster is fragmented.",
            MIB,
        ),
        lines(
            "Pods that wait, and refusals",
            (
                Query(f"max({PENDING})", "pods that wait"),
                Query(
                    "sum by (reason)"
                    " (increase(vcuda_extender_refusals_total[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            "A refusal is one node's answer to one look at a pod.",
        ),
    )


def _who() -> tuple[Panel, ...]:
    pod = "{{NamespaceName}}/{{PodName}}"
    return (
        bars(
            "Most memory",
            (Query(f"topk(10, {by(POD, USED, _PODS)})", pod),),
            "The ten pods that use the most.",
            MIB,
        ),
        bars(
            "Busiest",
            (Query(f"topk(10, {by(POD, SM, _PODS)})", pod),),
            "The ten pods that take the most time of their cards; of whole cards.",
            PERCENT,
        ),
        bars(
            "Most of their share",
            (
                Query(
                    f"topk(10, {_OF_ALLOTTED})",
                    pod,
                ),
            ),
            "Memory used over memory allotted; above 100 % they take others'.",
            RATIO,
        ),
        bars(
            "Idle for longest",
            (
                Query(
                    f"topk(10, min by ({POD})"
                    " (time() - vcuda_container_last_busy_timestamp_seconds))",
                    pod,
                ),
            ),
            "They hold a share of a card that nothing runs on.",
            SECONDS,
        ),
    )


def _nodes() -> tuple[Panel, ...]:
    node = "NodeName"
    columns = (
        Query(f"count by ({node}) ({booked('vcuda_card_info')})", "Cards"),
        Query(f"sum by ({node}) (1 - {healthy()})", "Sick"),
        Query(f"sum by ({node}) ({_TOTAL})", "Memory (MiB)"),
        Query(f"sum by ({node}) ({_ALLOTTED_MIB})", "Allotted (MiB)"),
        Query(f"sum by ({node}) ({_IN_USE})", "Used (MiB)"),
        Query(
            f"max by ({node}) ({LARGEST_FREE}) * {UNIT_MIB}",
            "Largest free block (MiB)",
        ),
        Query(f"sum by ({node}) ({booked(PLACED)}) * {UNIT_MIB}", "In books (MiB)"),
        Query(f"avg by ({node}) ({_BUSY})", "Busy (%)"),
    )
    what = "Allotted is by the exporter on the node, in books is by the extender."
    return (rows_of("Nodes", columns, what, keys=[node]),)


CLUSTER_BOARD = Board(
    "cluster",
    "GPU sharing / Cluster",
    "What the cluster's cards have, what is allotted of it, what is used, who waits.",
    (),
    (
        Section("Now", _now),
        Section("Over time", _over_time),
        Section("Who", _who),
        Section("Nodes", _nodes),
        Section("Extender", extender_panels),
    ),
)
