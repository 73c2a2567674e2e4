"""The dashboard of a workload: what its pods were allotted and what they use."""

from monitoring.boards.board import (
    MIB,
    PERCENT,
    RATIO,
    SECONDS,
    THIRD,
    Board,
    Choice,
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


_NOW = (
    number(
        "Pods",
        "Pods with a share of a card.",
        f"count(count by (PodName) ({_of(ALLOTTED)}))",
    ),
    number(
        "Allotted", "Memory allotted to these pods.", f"sum({_of(ALLOTTED)})", unit=MIB
    ),
    number("Used", "Memory that these pods use.", f"sum({_of(USED)})", unit=MIB),
    number(
        "Used of allotted",
        "Above 100 % they take memory of other pods.",
        used_of_allotted(f"sum({_of(USED)})", f"sum({_of(ALLOTTED)})"),
        unit=RATIO,
        bad_from=1.05,
    ),
    number(
        "Cores", "Allotted cores, in whole cards.", f"sum({_of(_CORES)})", unit=RATIO
    ),
    number(
        "Busy",
        "Average utilization, in percent of whole cards.",
        f"avg({_of(SM)})",
        unit=PERCENT,
    ),
    number(
        "Idle for",
        "Time since one of their programs last worked.",
        f"min(time() - {_of(_LAST_BUSY)})",
        unit=SECONDS,
    ),
    number(
        "Over their share",
        "Number of containers over their share, by the exporter's watchdog.",
        f"sum({_of(_OVER)})",
        bad_from=1,
    ),
)


_OVER_TIME = (
    lines(
        "Memory: allotted and used",
        "Only the watchdog enforces the share.",
        Query(_each(USED), f"{_WHO} used"),
        Query(_each(ALLOTTED), f"{_WHO} allotted"),
        unit=MIB,
    ),
    lines(
        "Busy, of the whole card",
        "A missing container is unknown, not idle.",
        Query(_each(SM), _WHO),
        unit=PERCENT,
    ),
    lines(
        "Busy, of their cores",
        "Above 100 % a container uses more of the card's time than it asked for.",
        Query(_each(_BUSY_OF_CORES), _WHO),
        unit=RATIO,
    ),
    lines(
        "Memory used of allotted",
        "Above 100 % they take memory of other pods.",
        Query(used_of_allotted(_each(USED), _each(ALLOTTED)), _WHO),
        unit=RATIO,
    ),
    lines(
        "Memory copies",
        "In percent of the whole card.",
        Query(_each("DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL"), _WHO),
        unit=PERCENT,
        span=THIRD,
    ),
    lines(
        "Encoder and decoder",
        "In percent of the whole card.",
        Query(_each("DCGM_CUSTOM_PROCESS_ENCODE_UTIL"), f"{_WHO} encoder"),
        Query(_each("DCGM_CUSTOM_PROCESS_DECODE_UTIL"), f"{_WHO} decoder"),
        unit=PERCENT,
        span=THIRD,
    ),
    lines(
        "Over their share",
        "1 while a container is over its share.",
        Query(_each(_OVER), _WHO),
        span=THIRD,
    ),
)


_PLACE = ["PodName", "ContainerName", "NodeName", "gpu", "modelName"]


def _column(metric: str, name: str) -> Query:
    return Query(f"sum by ({', '.join(_PLACE)}) ({_of(metric)})", name)


_WHERE = (
    rows_of(
        "Where they are",
        "Empty cells are unknown.",
        _column(ALLOTTED, "Allotted (MiB)"),
        _column(USED, "Used (MiB)"),
        _column(_CORES, "Cores (of 1)"),
        _column(SM, "Busy (% of the card)"),
        _column(_BUSY_OF_CORES, "Busy (of its cores)"),
        keys=_PLACE,
    ),
    bars(
        "Idle for",
        "Time since the container last worked.",
        Query(f"time() - max by (PodName, ContainerName) ({_of(_LAST_BUSY)})", _WHO),
        unit=SECONDS,
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
    {"Now": _NOW, "Over time": _OVER_TIME, "Where": _WHERE},
)
