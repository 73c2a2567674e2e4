"""The dashboard of one card: its shares, its use and its condition."""

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
            "Healthy",
            f"min({of('vcuda_card_healthy')})",
            "1 while device plugin and exporter call it healthy.",
        ),
        number(
            "Memory", most(fields.FB_TOTAL), "Total, as the driver reports it.", MIB
        ),
        number(
            "Allotted",
            most("vcuda_card_memory_allocated_bytes"),
            "Allotted to pods.",
            BYTES,
        ),
        number("Used", most(fields.FB_USED), "In use by all processes.", MIB),
        number(
            "Unattributed",
            most("vcuda_card_unattributed_memory_bytes"),
            "In use, but not by a running pod: by the driver, by a pod that is gone, "
            "or by no listed process.",
            BYTES,
            bad_from=512 * 2**20,
        ),
        number(
            "Busy",
            most(fields.GPU_UTIL),
            "Utilization of the card in the last moments.",
            PERCENT,
        ),
        number(
            "Temperature",
            most(fields.GPU_TEMP),
            "The current value.",
            "celsius",
            bad_from=85,
        ),
        number(
            "Last XID",
            most(fields.XID_ERRORS),
            "The last XID since the exporter started; 0 for none. It does not go back "
            "to 0.",
            bad_from=1,
        ),
    )


def _shares() -> tuple[Panel, ...]:
    return (
        lines(
            "Memory: allotted and used",
            (
                *plain((fields.FB_TOTAL, "total")),
                Query(
                    f"{most('vcuda_card_memory_allocated_bytes')} / 2^20", "allotted"
                ),
                *plain((fields.FB_USED, "used")),
            ),
            "If used is above allotted, a pod takes more than its share.",
            MIB,
        ),
        lines(
            "Memory by container",
            (
                Query(f"sum by ({CONTAINER}) ({of(USED)})", f"{WHO} used"),
                Query(f"sum by ({CONTAINER}) ({of(ALLOTTED)})", f"{WHO} allotted"),
            ),
            "Series without names are processes outside Kubernetes.",
            MIB,
        ),
        lines(
            "Busy, by container",
            (Query(f"sum by ({CONTAINER}) ({of(SM)})", WHO),),
            "In percent of the whole card. A missing container is unknown, not idle.",
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
            "The part of the time in which each of them worked.",
            PERCENT,
            top=100,
        ),
    )


CARD_BOARD = Board(
    "card",
    "GPU sharing / Card",
    "One card: its shares, its use and its condition.",
    (
        Choice("node", "Node", "NodeName", "vcuda_card_info"),
        Choice("card", "Card", "UUID", 'vcuda_card_info{NodeName=~"$node"}'),
    ),
    (
        Section("Now", _now),
        Section("Shares", _shares),
        Section("Condition", condition_panels),
        Section("Details", closer_panels),
    ),
)
