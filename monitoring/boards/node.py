"""The dashboard of one node: its cards, its containers and its exporter."""

from exporter.telemetry import fields
from monitoring.boards.board import Board, Choice, Section
from monitoring.panels import (
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
from monitoring.queries import ALLOTTED, CARD, LARGEST_FREE, SM, UNIT_MIB, USED

_NODE = 'NodeName=~"$node"'
_CARD = "card {{gpu}} {{GPU_I_ID}}"
_PER_CARD = f"{CARD}, gpu, GPU_I_ID"


def _of(metric: str) -> str:
    return f"{metric}{{{_NODE}}}"


def _each(metric: str) -> str:
    return f"max by ({_PER_CARD}) ({_of(metric)})"


_ALLOTTED_MIB = f"{_of('vcuda_card_memory_allocated_bytes')} / 2^20"


def _now() -> tuple[Panel, ...]:
    total = f"sum({_of(fields.FB_TOTAL)})"
    return (
        number(
            "Cards",
            f"count({_each('vcuda_card_info')})",
            "Cards that the node's exporter sees.",
        ),
        number(
            "Sick cards",
            f"sum(1 - min by ({CARD}) ({_of('vcuda_card_healthy')}))",
            "Cards that the device plugin calls sick get no new pods. Cards that only "
            "do not answer the exporter still get new pods.",
            bad_from=1,
        ),
        number("Memory", total, "Memory of all its cards.", MIB),
        number(
            "Allotted",
            f"sum({_ALLOTTED_MIB}) / {total}",
            "The part of the memory that is allotted to pods.",
            RATIO,
        ),
        number(
            "Used",
            f"sum({_of(fields.FB_USED)}) / {total}",
            "The part of the memory that is in use.",
            RATIO,
        ),
        number(
            "Largest free block",
            f"max({_of(LARGEST_FREE)}) * {UNIT_MIB}",
            "The most that one pod can still get on one card of the node.",
            MIB,
        ),
        number(
            "Power",
            f"sum({_of(fields.POWER_USAGE)})",
            "Power of all its cards.",
            "watt",
        ),
        number(
            "Hottest",
            f"max({_of(fields.GPU_TEMP)})",
            "The highest temperature of its cards.",
            "celsius",
            bad_from=85,
        ),
    )


def _cards() -> tuple[Panel, ...]:
    return (
        bars(
            "Memory by card",
            (
                Query(f"max by ({_PER_CARD}) ({_ALLOTTED_MIB})", f"{_CARD} allotted"),
                Query(_each(fields.FB_USED), f"{_CARD} used"),
                Query(_each(fields.FB_TOTAL), f"{_CARD} total"),
            ),
            "For each card: what is allotted, and what is in use.",
            MIB,
        ),
        lines(
            "Memory in use",
            (Query(_each(fields.FB_USED), _CARD),),
            "As the driver reports it.",
            MIB,
        ),
        lines(
            "Busy",
            (Query(_each(fields.GPU_UTIL), _CARD),),
            "The part of the time in which a program ran on the card.",
            PERCENT,
            span=THIRD,
            top=100,
        ),
        lines(
            "Temperature",
            (Query(_each(fields.GPU_TEMP), _CARD),),
            "Above 85 °C most cards reduce their clock.",
            "celsius",
            span=THIRD,
        ),
        lines(
            "Power",
            (Query(_each(fields.POWER_USAGE), _CARD),),
            "As each card measures it.",
            "watt",
            span=THIRD,
        ),
    )


def _containers() -> tuple[Panel, ...]:
    keys = ["gpu", "NamespaceName", "PodName", "ContainerName"]

    def column(metric: str, name: str) -> Query:
        return Query(f"sum by ({', '.join(keys)}) ({_of(metric)})", name)

    columns = (
        column(ALLOTTED, "Allotted (MiB)"),
        column(USED, "Used (MiB)"),
        column("DCGM_CUSTOM_CONTAINER_CP_ALLOCATED", "Cores (of 1)"),
        column(SM, "Busy (% of the card)"),
        column("vcuda_container_core_use_ratio", "Busy (of its cores)"),
        column("vcuda_container_over_share", "Over its share"),
    )
    what = "Empty: unknown, or nothing allotted. Rows without names: not in Kubernetes."
    return (rows_of("Containers", columns, what, keys=keys),)


def _exporter() -> tuple[Panel, ...]:
    return (
        lines(
            "Duration of each round of readings",
            (Query(_of("vcuda_collect_duration_seconds"), "{{group}}"),),
            "A card that hangs makes its rounds longer.",
            SECONDS,
            span=THIRD,
        ),
        lines(
            "Rounds in which every card answered",
            (Query(_of("vcuda_collector_success"), "{{group}}"),),
            "1 if every card answered, otherwise 0.",
            PLAIN,
            span=THIRD,
            top=1,
        ),
        lines(
            "Problems",
            (
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
            ),
            "What the exporter cannot read, pods on other cards than planned, faults.",
            PLAIN,
            span=THIRD,
        ),
    )


NODE_BOARD = Board(
    "node",
    "GPU sharing / Node",
    "The cards of one node, and the containers on them.",
    (Choice("node", "Node", "NodeName", "vcuda_card_info"),),
    (
        Section("Now", _now),
        Section("Cards", _cards),
        Section("Containers", _containers),
        Section("Exporter", _exporter),
    ),
)
