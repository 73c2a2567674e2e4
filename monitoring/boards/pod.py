"""The dashboard of a workload: what its pods were allotted and what they use."""

from monitoring.boards.board import Board, Choice, Section
from monitoring.panels import (
    HALF,
    MIB,
    PERCENT,
    PLAIN,
    RATIO,
    SECONDS,
    THIRD,
    Panel,
    Query,
    bars,
    lines,
    number,
    rows_of,
)
from monitoring.queries import ALLOTTED, SM, USED, used_of_allotted

_PODS = 'NamespaceName=~"$namespace", PodName=~"$pod"'
_KEYS = "NodeName, gpu, PodName, ContainerName"
_WHO = "{{PodName}} {{ContainerName}}"
_CORES = "vcuda_container_core_limit_ratio"
_BUSY_OF_CORES = "vcuda_container_core_use_ratio"
_LAST_BUSY = "vcuda_container_last_busy_timestamp_seconds"
_OVER = "vcuda_container_over_share"


def _of(metric: str) -> str:
    return f"{metric}{{{_PODS}}}"


def _each(metric: str) -> str:
    return f"sum by ({_KEYS}) ({_of(metric)})"


def _now() -> tuple[Panel, ...]:
    return (
        number(
            "Pods",
            f"count(count by (PodName) ({_of(ALLOTTED)}))",
            "Pods with a share of a card.",
        ),
        number(
            "Allotted", f"sum({_of(ALLOTTED)})", "Memory allotted to these pods.", MIB
        ),
        number("Used", f"sum({_of(USED)})", "Memory that these pods use.", MIB),
        number(
            "Used of allotted",
            used_of_allotted(f"sum({_of(USED)})", f"sum({_of(ALLOTTED)})"),
            "Above 100 % they take memory of other pods.",
            RATIO,
            bad_from=1.05,
        ),
        number(
            "Cores", f"sum({_of(_CORES)})", "Allotted cores, in whole cards.", RATIO
        ),
        number(
            "Busy",
            f"avg({_of(SM)})",
            "Average utilization, in percent of whole cards.",
            PERCENT,
        ),
        number(
            "Idle for",
            f"min(time() - {_of(_LAST_BUSY)})",
            "Time since one of their programs last worked.",
            SECONDS,
        ),
        number(
            "Over their share",
            f"sum({_of(_OVER)})",
            "Number of containers over their share, by the exporter's watchdog.",
            bad_from=1,
        ),
    )


def _over_time() -> tuple[Panel, ...]:
    return (
        lines(
            "Memory: allotted and used",
            (
                Query(_each(USED), f"{_WHO} used"),
                Query(_each(ALLOTTED), f"{_WHO} allotted"),
            ),
            "Only the watchdog enforces the share.",
            MIB,
        ),
        lines(
            "Busy, of the whole card",
            (Query(_each(SM), _WHO),),
            "A missing container is unknown, not idle.",
            PERCENT,
        ),
        lines(
            "Busy, of their cores",
            (Query(_each(_BUSY_OF_CORES), _WHO),),
            "Above 100 % a container uses more of the card's time than it asked for.",
            RATIO,
        ),
        lines(
            "Memory used of allotted",
            (Query(used_of_allotted(_each(USED), _each(ALLOTTED)), _WHO),),
            "Above 100 % they take memory of other pods.",
            RATIO,
            span=HALF,
        ),
        lines(
            "Memory copies",
            (Query(_each("DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL"), _WHO),),
            "In percent of the whole card.",
            PERCENT,
            span=THIRD,
        ),
        lines(
            "Encoder and decoder",
            (
                Query(_each("DCGM_CUSTOM_PROCESS_ENCODE_UTIL"), f"{_WHO} encoder"),
                Query(_each("DCGM_CUSTOM_PROCESS_DECODE_UTIL"), f"{_WHO} decoder"),
            ),
            "In percent of the whole card.",
            PERCENT,
            span=THIRD,
        ),
        lines(
            "Over their share",
            (Query(_each(_OVER), _WHO),),
            "1 while a container is over its share.",
            PLAIN,
            span=THIRD,
        ),
    )


def _where() -> tuple[Panel, ...]:
    keys = ["PodName", "ContainerName", "NodeName", "gpu", "modelName"]

    def column(metric: str, name: str) -> Query:
        return Query(f"sum by ({', '.join(keys)}) ({_of(metric)})", name)

    columns = (
        column(ALLOTTED, "Allotted (MiB)"),
        column(USED, "Used (MiB)"),
        column(_CORES, "Cores (of 1)"),
        column(SM, "Busy (% of the card)"),
        column(_BUSY_OF_CORES, "Busy (of its cores)"),
    )
    idle = Query(f"time() - max by (PodName, ContainerName) ({_of(_LAST_BUSY)})", _WHO)
    return (
        rows_of("Where they are", columns, "Empty cells are unknown.", keys=keys),
        bars(
            "Idle for",
            (idle,),
            "Time since the container last worked.",
            SECONDS,
            span=24,
        ),
    )


POD_BOARD = Board(
    "pod",
    "GPU sharing / Pod",
    "What pods were allotted of their cards, and what they use.",
    (
        Choice("namespace", "Namespace", "NamespaceName", ALLOTTED),
        Choice(
            "pod",
            "Pod",
            "PodName",
            f'{ALLOTTED}{{NamespaceName=~"$namespace"}}',
            several=True,
        ),
    ),
    (Section("Now", _now), Section("Over time", _over_time), Section("Where", _where)),
)
