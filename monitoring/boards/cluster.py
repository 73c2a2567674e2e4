"""The dashboard of the cluster: capacity, allotment, use, pods and the extender."""

from exporter.telemetry import fields
from monitoring.boards.board import Board, Section
from monitoring.panels import (
    HALF,
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
        number(
            "Cards", f"count({booked('vcuda_card_info')})", "Cards that exporters see."
        ),
        number(
            "Sick cards",
            f"sum(1 - {healthy()})",
            "Cards that the device plugin or the exporter of their node calls sick.",
            bad_from=1,
        ),
        number("Memory", f"sum({_TOTAL})", "Memory of all cards.", MIB),
        number(
            "Allotted",
            f"sum({_ALLOTTED_MIB}) / sum({_TOTAL})",
            "The part of all memory that is allotted to pods.",
            RATIO,
        ),
        number(
            "Used",
            f"sum({_IN_USE}) / sum({_TOTAL})",
            "The part of all memory that is in use.",
            RATIO,
        ),
        number(
            "Largest free block",
            f"max({LARGEST_FREE}) * {UNIT_MIB}",
            "The most that one pod can still get on one card.",
            MIB,
        ),
        number(
            "Waiting pods",
            f"max({PENDING})",
            "Pods that ask for cards and have no node. gpusharectl why shows the "
            "reasons.",
            bad_from=1,
        ),
        number(
            "Alerts",
            'count(ALERTS{alertname=~"Vcuda.+", alertstate="firing"})',
            "Firing alerts of this project; empty if none fires or none is loaded.",
            bad_from=1,
        ),
    )


def _over_time() -> tuple[Panel, ...]:
    return (
        lines(
            "Memory: allotted and used",
            (
                Query(f"sum({_TOTAL})", "total"),
                Query(f"sum({_ALLOTTED_MIB})", "allotted"),
                Query(f"sum({_IN_USE})", "used"),
            ),
            "If used is above allotted, a pod takes more than its share.",
            MIB,
        ),
        lines(
            "Compute: allotted and used",
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
            "Free memory: total, and largest on one card",
            (
                Query(f"{free_units()} * {UNIT_MIB}", "total free"),
                Query(f"max({LARGEST_FREE}) * {UNIT_MIB}", "largest block"),
                Query(
                    f"max by (NodeName) ({LARGEST_FREE}) * {UNIT_MIB}", "{{NodeName}}"
                ),
            ),
            "If they are far apart, the cluster is fragmented.",
            MIB,
        ),
        lines(
            "Waiting pods, and refusals",
            (
                Query(f"max({PENDING})", "waiting pods"),
                Query(
                    "sum by (reason)"
                    " (increase(vcuda_extender_refusals_total[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            "A refusal is one node that one filter call refuses for a pod.",
        ),
    )


def _pods() -> tuple[Panel, ...]:
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
            "The ten pods with the highest utilization, in percent of whole cards.",
            PERCENT,
        ),
        bars(
            "Most of their share",
            (Query(f"topk(10, {_OF_ALLOTTED})", pod),),
            "Memory used divided by memory allotted. Above 100 % a pod takes other "
            "pods' memory.",
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
            "Pods with a share of a card on which none of their programs works.",
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
            f"max by ({node}) ({LARGEST_FREE}) * {UNIT_MIB}", "Largest free block (MiB)"
        ),
        Query(
            f"sum by ({node}) ({booked(PLACED)}) * {UNIT_MIB}",
            "Allotted by extender (MiB)",
        ),
        Query(f"avg by ({node}) ({_BUSY})", "Busy (%)"),
    )
    what = "Allotted is from the node's exporter; the extender's value is beside it."
    return (rows_of("Nodes", columns, what, keys=[node]),)


def _extender() -> tuple[Panel, ...]:
    return (
        lines(
            "The extender's answers, 99th percentile",
            (
                Query(
                    "histogram_quantile(0.99, sum by (le, verb)"
                    " (rate(vcuda_extender_request_seconds_bucket"
                    "[$__rate_interval])))",
                    "{{verb}}",
                ),
            ),
            "kube-scheduler waits for these answers.",
            SECONDS,
            span=HALF,
        ),
        lines(
            "Binds",
            (
                Query(
                    "sum by (outcome)"
                    " (increase(vcuda_extender_binds_total[$__rate_interval]))",
                    "{{outcome}}",
                ),
            ),
            "conflict: the card was taken after filter. The pod is tried again.",
        ),
        lines(
            "Plan and node disagree",
            (
                Query(
                    "max by (NodeName, what) (vcuda_placement_disagreements)",
                    "{{NodeName}} {{what}}",
                ),
                Query(
                    "max(vcuda_extender_pods_without_placement)",
                    "bound without the extender",
                ),
            ),
            "If a value is not 0, run gpusharectl inspect -o wide.",
        ),
        lines(
            "Age of the extender's data",
            (
                Query(
                    "max by (instance, kind) (vcuda_extender_ledger_age_seconds)",
                    "{{instance}} {{kind}}",
                ),
            ),
            "Time since the API server last sent anything of this kind.",
            SECONDS,
        ),
    )


CLUSTER_BOARD = Board(
    "cluster",
    "GPU sharing / Cluster",
    "The cluster's cards: capacity, allotment, use and waiting pods.",
    (),
    (
        Section("Now", _now),
        Section("Over time", _over_time),
        Section("Pods", _pods),
        Section("Nodes", _nodes),
        Section("Extender", _extender),
    ),
)
