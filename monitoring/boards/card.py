"""The dashboard of one card: its shares, its use and its condition."""

from exporter.telemetry import fields
from monitoring.boards.board import (
    BYTES,
    MIB,
    PERCENT,
    RATIO,
    SECONDS,
    THIRD,
    Board,
    Choice,
    Query,
    lines,
    number,
)
from monitoring.queries import ALLOTTED, CONTAINER, SM, USED

_CARD = 'NodeName=~"$node", UUID=~"$card", GPU_I_UUID=~"$instance"'
_WHO = "{{NamespaceName}}/{{PodName}} {{ContainerName}}"


def _of(metric: str) -> str:
    return f"{metric}{{{_CARD}}}"


def _most(metric: str) -> str:
    """Return the metric once, whichever exporter reports it."""
    return f"max({_of(metric)})"


def _plain(*metrics: tuple[str, str]) -> tuple[Query, ...]:
    return tuple(Query(_most(metric), legend) for metric, legend in metrics)


def _rates(*metrics: tuple[str, str], scale: str = "") -> tuple[Query, ...]:
    """Return a line for each counter: its increase per second."""
    return tuple(
        Query(f"max(rate({_of(metric)}[$__rate_interval])){scale}", legend)
        for metric, legend in metrics
    )


_CONDITION = (
    lines(
        "Temperature",
        "Not every card measures the temperature of its memory.",
        *_plain((fields.GPU_TEMP, "card"), (fields.MEMORY_TEMP, "memory")),
        unit="celsius",
        span=THIRD,
    ),
    lines(
        "Power",
        "The current power, and the average by the energy counter.",
        *_plain((fields.POWER_USAGE, "drawn")),
        *_rates((fields.TOTAL_ENERGY_CONSUMPTION, "by energy"), scale=" / 1000"),
        unit="watt",
        span=THIRD,
    ),
    lines(
        "Clocks",
        "The current clocks.",
        Query(f"{_most(fields.SM_CLOCK)} * 1e6", "processors"),
        Query(f"{_most(fields.MEM_CLOCK)} * 1e6", "memory"),
        unit="hertz",
        span=THIRD,
    ),
    lines(
        "Slowed down",
        "The part of the time in which the clock was reduced.",
        *_rates(
            (fields.THERMAL_VIOLATION, "for heat"),
            (fields.POWER_VIOLATION, "for power"),
            scale=" / 1e9",
        ),
        unit=RATIO,
        span=THIRD,
        top=1,
    ),
    lines(
        "Memory errors",
        "Errors since the driver was loaded; rows and pages of the card's whole life.",
        *_plain(
            (fields.ECC_SBE_VOL_TOTAL, "corrected"),
            (fields.ECC_DBE_VOL_TOTAL, "not corrected"),
            (fields.CORRECTABLE_REMAPPED_ROWS, "rows, corrected"),
            (fields.UNCORRECTABLE_REMAPPED_ROWS, "rows, not corrected"),
            (fields.RETIRED_SBE, "pages, corrected"),
            (fields.RETIRED_DBE, "pages, not corrected"),
        ),
        span=THIRD,
    ),
    lines(
        "Faults",
        "NVIDIA's catalogue explains the XIDs.",
        Query(
            f"sum by (xid) (increase({_of('vcuda_xid_errors_total')}"
            "[$__rate_interval]))",
            "XID {{xid}}",
        ),
        Query(
            f"max(increase({_of(fields.PCIE_REPLAY_COUNTER)}[$__rate_interval]))",
            "PCIe replays",
        ),
        span=THIRD,
    ),
)


_DETAILS = (
    lines(
        "Inside the card",
        "Hopper and newer, with --enable-profiling; otherwise empty.",
        *_plain(
            (fields.GR_ENGINE_ACTIVE, "any engine"),
            (fields.SM_ACTIVE, "an SM had a warp"),
            (fields.SM_OCCUPANCY, "warps resident"),
            (fields.PIPE_TENSOR_ACTIVE, "tensor pipes"),
            (fields.DRAM_ACTIVE, "memory"),
        ),
        unit=RATIO,
        span=THIRD,
        top=1,
    ),
    lines(
        "PCIe",
        "With --enable-pcie or --enable-profiling; otherwise empty.",
        Query(f"{_most(fields.PCIE_TX_THROUGHPUT)} * 1000", "sent"),
        Query(f"{_most(fields.PCIE_RX_THROUGHPUT)} * 1000", "received"),
        *_plain(
            (fields.PROF_PCIE_TX_BYTES, "sent (profiling)"),
            (fields.PROF_PCIE_RX_BYTES, "received (profiling)"),
        ),
        unit="Bps",
        span=THIRD,
    ),
    lines(
        "NVLink",
        "Empty on cards without NVLink.",
        Query(f"{_most(fields.NVLINK_BANDWIDTH_TOTAL)} * 1024000", "all links"),
        unit="Bps",
        span=THIRD,
    ),
    lines(
        "Idle",
        "How long each container has not worked on the card.",
        Query(
            f"min by ({CONTAINER}) (time() - "
            f"{_of('vcuda_container_last_busy_timestamp_seconds')})",
            _WHO,
        ),
        unit=SECONDS,
    ),
)


_NOW = (
    number(
        "Healthy",
        "1 while device plugin and exporter call it healthy.",
        f"min({_of('vcuda_card_healthy')})",
    ),
    number(
        "Memory", "Total, as the driver reports it.", _most(fields.FB_TOTAL), unit=MIB
    ),
    number(
        "Allotted",
        "Allotted to pods.",
        _most("vcuda_card_memory_allocated_bytes"),
        unit=BYTES,
    ),
    number("Used", "In use by all processes.", _most(fields.FB_USED), unit=MIB),
    number(
        "Unattributed",
        "In use, but not by a running pod: by the driver, by a pod that is gone, "
        "or by no listed process.",
        _most("vcuda_card_unattributed_memory_bytes"),
        unit=BYTES,
        bad_from=512 * 2**20,
    ),
    number(
        "Busy",
        "Utilization of the card in the last moments.",
        _most(fields.GPU_UTIL),
        unit=PERCENT,
    ),
    number(
        "Temperature",
        "The current value.",
        _most(fields.GPU_TEMP),
        unit="celsius",
        bad_from=85,
    ),
    number(
        "Last XID",
        "The last XID since the exporter started; 0 for none. It does not go back "
        "to 0.",
        _most(fields.XID_ERRORS),
        bad_from=1,
    ),
)


_SHARES = (
    lines(
        "Memory: allotted and used",
        "If used is above allotted, a pod takes more than its share.",
        *_plain((fields.FB_TOTAL, "total")),
        Query(f"{_most('vcuda_card_memory_allocated_bytes')} / 2^20", "allotted"),
        *_plain((fields.FB_USED, "used")),
        unit=MIB,
    ),
    lines(
        "Memory by container",
        "Series without names are processes outside Kubernetes.",
        Query(f"sum by ({CONTAINER}) ({_of(USED)})", f"{_WHO} used"),
        Query(f"sum by ({CONTAINER}) ({_of(ALLOTTED)})", f"{_WHO} allotted"),
        unit=MIB,
    ),
    lines(
        "Busy, by container",
        "In percent of the whole card. A missing container is unknown, not idle.",
        Query(f"sum by ({CONTAINER}) ({_of(SM)})", _WHO),
        unit=PERCENT,
        top=100,
    ),
    lines(
        "Busy",
        "The part of the time in which each of them worked.",
        *_plain(
            (fields.GPU_UTIL, "processors"),
            (fields.MEM_COPY_UTIL, "memory"),
            (fields.ENC_UTIL, "encoder"),
            (fields.DEC_UTIL, "decoder"),
        ),
        unit=PERCENT,
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
        Choice(
            "instance",
            "MIG instance",
            "GPU_I_UUID",
            'vcuda_card_info{NodeName=~"$node", UUID=~"$card"}',
        ),
    ),
    {
        "Now": _NOW,
        "Shares": _SHARES,
        "Condition": _CONDITION,
        "Details": _DETAILS,
    },
)
