"""The dashboard of the cluster: capacity, allotment, use, pods and the extender."""

from exporter.telemetry import fields
from monitoring.boards.board import (
    MIB,
    PERCENT,
    RATIO,
    SECONDS,
    Board,
    Query,
    bars,
    lines,
    number,
    rows_of,
)
from monitoring.queries import (
    ALLOTTED,
    HEALTHY,
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
    ours,
    used_of_allotted,
)

_ALLOTTED_MIB = "vcuda_card_memory_allocated_bytes / 2^20"
_TOTAL = ours(fields.FB_TOTAL)
_IN_USE = ours(fields.FB_USED)
_BUSY = ours(fields.GPU_UTIL)
_PODS = 'PodName!=""'
_OF_ALLOTTED = used_of_allotted(by(POD, USED, _PODS), by(POD, ALLOTTED))


_NOW = (
    number("Cards", "Cards that exporters see.", f"count({booked('vcuda_card_info')})"),
    number(
        "Sick cards",
        "Cards that the device plugin or the exporter of their node calls sick.",
        f"sum(1 - {HEALTHY})",
        bad_from=1,
    ),
    number("Memory", "Memory of all cards.", f"sum({_TOTAL})", unit=MIB),
    number(
        "Allotted",
        "The part of all memory that is allotted to pods.",
        f"sum({_ALLOTTED_MIB}) / sum({_TOTAL})",
        unit=RATIO,
    ),
    number(
        "Used",
        "The part of all memory that is in use.",
        f"sum({_IN_USE}) / sum({_TOTAL})",
        unit=RATIO,
    ),
    number(
        "Largest free block",
        "The most that one pod can still get on one card.",
        f"max({LARGEST_FREE}) * {UNIT_MIB}",
        unit=MIB,
    ),
    number(
        "Waiting pods",
        "Pods that ask for cards and have no node. gpusharectl why shows the reasons.",
        f"max({PENDING})",
        bad_from=1,
    ),
    number(
        "Alerts",
        "Firing alerts of this project; empty if none fires or none is loaded.",
        'count(ALERTS{alertname=~"Vcuda.+", alertstate="firing"})',
        bad_from=1,
    ),
)


_OVER_TIME = (
    lines(
        "Memory: allotted and used",
        "If used is above allotted, a pod takes more than its share.",
        Query(f"sum({_TOTAL})", "total"),
        Query(f"sum({_ALLOTTED_MIB})", "allotted"),
        Query(f"sum({_IN_USE})", "used"),
        unit=MIB,
    ),
    lines(
        "Compute: allotted and used",
        "Cores are hundredths of a card.",
        Query(
            f"sum({booked('vcuda_card_placed_cores')})"
            f" / (100 * count({booked(UNITS)}))",
            "allotted cores",
        ),
        Query(f"avg({_BUSY}) / 100", "busy"),
        unit=RATIO,
        top=1,
    ),
    lines(
        "Free memory: total, and largest on one card",
        "If they are far apart, the cluster is fragmented.",
        Query(f"{free_units()} * {UNIT_MIB}", "total free"),
        Query(f"max({LARGEST_FREE}) * {UNIT_MIB}", "largest block"),
        Query(f"max by (NodeName) ({LARGEST_FREE}) * {UNIT_MIB}", "{{NodeName}}"),
        unit=MIB,
    ),
    lines(
        "Waiting pods, and refusals",
        "A refusal is one node that one filter call refuses for a pod.",
        Query(f"max({PENDING})", "waiting pods"),
        Query(
            "sum by (reason)"
            " (increase(vcuda_extender_refusals_total[$__rate_interval]))",
            "{{reason}}",
        ),
    ),
)


_POD = "{{NamespaceName}}/{{PodName}}"
_POD_BARS = (
    bars(
        "Most memory",
        "The ten pods that use the most.",
        Query(f"topk(10, {by(POD, USED, _PODS)})", _POD),
        unit=MIB,
    ),
    bars(
        "Busiest",
        "The ten pods with the highest utilization, in percent of whole cards.",
        Query(f"topk(10, {by(POD, SM, _PODS)})", _POD),
        unit=PERCENT,
    ),
    bars(
        "Most of their share",
        "Memory used divided by memory allotted. Above 100 % a pod takes other "
        "pods' memory.",
        Query(f"topk(10, {_OF_ALLOTTED})", _POD),
        unit=RATIO,
    ),
    bars(
        "Idle for longest",
        "Pods with a share of a card on which none of their programs works.",
        Query(
            f"topk(10, min by ({POD})"
            " (time() - vcuda_container_last_busy_timestamp_seconds))",
            _POD,
        ),
        unit=SECONDS,
    ),
)


_NODES = rows_of(
    "Nodes",
    "Allotted is from the node's exporter; the extender's value is beside it.",
    Query(f"count by (NodeName) ({booked('vcuda_card_info')})", "Cards"),
    Query(f"sum by (NodeName) (1 - {HEALTHY})", "Sick"),
    Query(f"sum by (NodeName) ({_TOTAL})", "Memory (MiB)"),
    Query(f"sum by (NodeName) ({_ALLOTTED_MIB})", "Allotted (MiB)"),
    Query(f"sum by (NodeName) ({_IN_USE})", "Used (MiB)"),
    Query(
        f"max by (NodeName) ({LARGEST_FREE}) * {UNIT_MIB}", "Largest free block (MiB)"
    ),
    Query(
        f"sum by (NodeName) ({booked(PLACED)}) * {UNIT_MIB}",
        "Allotted by extender (MiB)",
    ),
    Query(f"avg by (NodeName) ({_BUSY})", "Busy (%)"),
    keys=["NodeName"],
)


_EXTENDER = (
    lines(
        "The extender's answers, 99th percentile",
        "kube-scheduler waits for these answers.",
        Query(
            "histogram_quantile(0.99, sum by (le, verb)"
            " (rate(vcuda_extender_request_seconds_bucket"
            "[$__rate_interval])))",
            "{{verb}}",
        ),
        unit=SECONDS,
    ),
    lines(
        "Binds",
        "conflict: the card was taken after filter. The pod is tried again.",
        Query(
            "sum by (outcome) (increase(vcuda_extender_binds_total[$__rate_interval]))",
            "{{outcome}}",
        ),
    ),
    lines(
        "Plan and node disagree",
        "If a value is not 0, run gpusharectl inspect -o wide.",
        Query(
            "max by (NodeName, what) (vcuda_placement_disagreements)",
            "{{NodeName}} {{what}}",
        ),
        Query(
            "max(vcuda_extender_pods_without_placement)",
            "bound without the extender",
        ),
    ),
    lines(
        "Age of the extender's data",
        "Time since the API server last sent anything of this kind.",
        Query(
            "max by (instance, kind) (vcuda_extender_ledger_age_seconds)",
            "{{instance}} {{kind}}",
        ),
        unit=SECONDS,
    ),
)


CLUSTER_BOARD = Board(
    "cluster",
    "GPU sharing / Cluster",
    "The cluster's cards: capacity, allotment, use and waiting pods.",
    (),
    {
        "Now": _NOW,
        "Over time": _OVER_TIME,
        "Pods": _POD_BARS,
        "Nodes": (_NODES,),
        "Extender": _EXTENDER,
    },
)
