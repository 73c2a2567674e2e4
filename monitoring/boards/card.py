"""One card: who has it, who uses it, and how it is."""

from deviceplugin.telemetry import fields
from monitoring.boards.board import Board, Choice, Section
from monitoring.boards.cardqueries import WHO, most, of, plain
from monitoring.boards.condition import closer_panels, condition_panels
from monitoring.panels import (
    BYTES,
    MIB,
    PERCENT,
    Panel,
    Query,
    lines,
    number,
)
from monitoring.queries import ALLOTTED, CONTAINER, SM, USED


def _now() -> tuple[Panel, ...]:
    return (
        number(
            "Healthy", f"min({of('vcuda_card_healthy')})", "1 while all call it well."
        ),
        number("Memory", most(fields.FB_TOTAL), "As the driver counts it.", MIB),
        number(
            "Allotted",
            most("vcuda_card_memory_allocated_bytes"),
            "Promised to pods.",
            BYTES,
        ),
        number("Used", most(fields.FB_USED), "By whomever.", MIB),
        number(
            "Nobody's",
            most("vcuda_card_unattributed_memory_bytes"),
            "In use, and of no pod that runs: the driver's own, of a pod that is gone, "
            "or of no process that the driver lists.",
            BYTES,
            bad_from=512 * 2**20,
        ),
        number("Busy", most(fields.GPU_UTIL), "Of the last moments.", PERCENT),
        number("Temperature", most(fields.GPU_TEMP), "Now.", "celsius", bad_from=85),
        number(
            "Last XID",
            most(fields.XID_ERRORS),
            "The last fault since the exporter began; 0 for none. It stays.",
            bad_from=1,
        ),
    )


def _shares() -> tuple[Panel, ...]:
    return (
        lines(
            "Memory: allotted beside used",
            (
                *plain((fields.FB_TOTAL, "all")),
                Query(
                    f"{most('vcuda_card_memory_allocated_bytes')} / 2^20", "allotted"
                ),
                *plain((fields.FB_USED, "used")),
            ),
            "Used above allotted: somebody takes more than was promised.",
            MIB,
        ),
        lines(
            "Memory by container",
            (
                Query(f"sum by ({CONTAINER}) ({of(USED)})", f"{WHO} used"),
                Query(f"sum by ({CONTAINER}) ({of(ALLOTTED)})", f"{WHO} allotted"),
            ),
            "Without names: outside Kubernetes.",
            MIB,
        ),
        lines(
            "Busy, by container",
            (Query(f"sum by ({CONTAINER}) ({of(SM)})", WHO),),
            "Of the whole card. A container that is missing here is unknown, not idle.",
            PERCENT,
            top=100,
        ),
        lines(
            "Busy",
            plain(
                (fields.GPU_UTIL, "processors"),
                (fields.MEM_COPY_UTIL, "memory"),
                (fields.ENC_UTIL, "encoder"),
                (fields.DEC_UTIL, "decoder"),
            ),
            "Part of the time in which each did anything.",
            PERCENT,
            top=100,
        ),
    )


CARD_BOARD = Board(
    "card",
    "GPU sharing / Card",
    "One card: who has which part of it, who uses it, and how it is.",
    (
        Choice("node", "Node", "NodeName", "vcuda_card_info"),
        Choice("card", "Card", "UUID", 'vcuda_card_info{NodeName=~"$node"}'),
    ),
    (
        Section("Now", _now),
        Section("Shares", _shares),
        Section("Condition", condition_panels),
        Section("Closer", closer_panels),
    ),
)
