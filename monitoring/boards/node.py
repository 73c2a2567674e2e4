"""The dashboard of one node: its cards, its containers and its exporter."""

from exporter.telemetry import fields
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
from monitoring.queries import ALLOTTED, CARD, LARGEST_FREE, SM, UNIT_MIB, USED

_NODE = 'NodeName=~"$node"'
_CARD = "card {{gpu}} {{GPU_I_ID}}"
_PER_CARD = f"{CARD}, gpu, GPU_I_ID"


def _of(metric: str) -> str:
    return f"{metric}{{{_NODE}}}"


def _each(metric: str) -> str:
    return f"max by ({_PER_CARD}) ({_of(metric)})"


_ALLOTTED_MIB = f"{_of('vcuda_card_memory_allocated_bytes')} / 2^20"


_TOTAL = f"sum({_of(fields.FB_TOTAL)})"
_NOW = (
    number(
        "Cards",
        "Cards that the node's exporter sees.",
        f"count({_each('vcuda_card_info')})",
    ),
    number(
        "Sick cards",
        "Cards that the device plugin calls sick get no new pods. Cards that only "
        "do not answer the exporter still get new pods.",
        f"sum(1 - min by ({CARD}) ({_of('vcuda_card_healthy')}))",
        bad_from=1,
    ),
    number("Memory", "Memory of all its cards.", _TOTAL, unit=MIB),
    number(
        "Allotted",
        "The part of the memory that is allotted to pods.",
        f"sum({_ALLOTTED_MIB}) / {_TOTAL}",
        unit=RATIO,
    ),
    number(
        "Used",
        "The part of the memory that is in use.",
        f"sum({_of(fields.FB_USED)}) / {_TOTAL}",
        unit=RATIO,
    ),
    number(
        "Largest free block",
        "The most that one pod can still get on one card of the node.",
        f"max({_of(LARGEST_FREE)}) * {UNIT_MIB}",
        unit=MIB,
    ),
    number(
        "Power",
        "Power of all its cards.",
        f"sum({_of(fields.POWER_USAGE)})",
        unit="watt",
    ),
    number(
        "Hottest",
        "The highest temperature of its cards.",
        f"max({_of(fields.GPU_TEMP)})",
        unit="celsius",
        bad_from=85,
    ),
)


_CARDS = (
    bars(
        "Memory by card",
        "For each card: what is allotted, and what is in use.",
        Query(f"max by ({_PER_CARD}) ({_ALLOTTED_MIB})", f"{_CARD} allotted"),
        Query(_each(fields.FB_USED), f"{_CARD} used"),
        Query(_each(fields.FB_TOTAL), f"{_CARD} total"),
        unit=MIB,
    ),
    lines(
        "Memory in use",
        "As the driver reports it.",
        Query(_each(fields.FB_USED), _CARD),
        unit=MIB,
    ),
    lines(
        "Busy",
        "The part of the time in which a program ran on the card.",
        Query(_each(fields.GPU_UTIL), _CARD),
        unit=PERCENT,
        span=THIRD,
        top=100,
    ),
    lines(
        "Temperature",
        "Above 85 °C most cards reduce their clock.",
        Query(_each(fields.GPU_TEMP), _CARD),
        unit="celsius",
        span=THIRD,
    ),
    lines(
        "Power",
        "As each card measures it.",
        Query(_each(fields.POWER_USAGE), _CARD),
        unit="watt",
        span=THIRD,
    ),
)


_CONTAINER = ["gpu", "NamespaceName", "PodName", "ContainerName"]


def _column(metric: str, name: str) -> Query:
    return Query(f"sum by ({', '.join(_CONTAINER)}) ({_of(metric)})", name)


_CONTAINERS = rows_of(
    "Containers",
    "Empty: unknown, or nothing allotted. Rows without names: not in Kubernetes.",
    _column(ALLOTTED, "Allotted (MiB)"),
    _column(USED, "Used (MiB)"),
    _column("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", "Cores (of 1)"),
    _column(SM, "Busy (% of the card)"),
    _column("vcuda_container_core_use_ratio", "Busy (of its cores)"),
    _column("vcuda_container_over_share", "Over its share"),
    keys=_CONTAINER,
)


_EXPORTER = (
    lines(
        "Duration of each round of readings",
        "A card that hangs makes its rounds longer.",
        Query(_of("vcuda_collect_duration_seconds"), "{{group}}"),
        unit=SECONDS,
        span=THIRD,
    ),
    lines(
        "Rounds in which every card answered",
        "1 if every card answered, otherwise 0.",
        Query(_of("vcuda_collector_success"), "{{group}}"),
        span=THIRD,
        top=1,
    ),
    lines(
        "Problems",
        "What the exporter cannot read, pods on other cards than planned, faults.",
        Query(_of("vcuda_exporter_trouble"), "cannot read {{about}}"),
        Query(
            f"max by (what) ({_of('vcuda_placement_disagreements')})",
            "misplaced by {{what}}",
        ),
        Query(
            f"sum by (gpu, xid) (increase(vcuda_xid_errors_total"
            f"{{{_NODE}}}[$__rate_interval]))",
            "XID {{xid}} on card {{gpu}}",
        ),
        span=THIRD,
    ),
)


NODE_BOARD = Board(
    "node",
    "GPU sharing / Node",
    "The cards of one node, and the containers on them.",
    (Choice("node", "Node", "NodeName", "vcuda_card_info"),),
    {"Now": _NOW, "Cards": _CARDS, "Containers": (_CONTAINERS,), "Exporter": _EXPORTER},
)
