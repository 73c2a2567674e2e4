"""The lower half of a card's dashboard: its condition."""

from deviceplugin.telemetry import fields
from monitoring.boards.cardqueries import WHO, most, of, plain, rates
from monitoring.panels import HALF, PLAIN, RATIO, SECONDS, THIRD, Panel, Query, lines
from monitoring.queries import CONTAINER


def condition_panels() -> tuple[Panel, ...]:
    """Return the panels about temperature, clocks and faults."""
    return (
        lines(
            "Temperature",
            plain((fields.GPU_TEMP, "card"), (fields.MEMORY_TEMP, "memory")),
            "Not every card measures the temperature of its memory.",
            "celsius",
            span=THIRD,
        ),
        lines(
            "Power",
            (
                *plain((fields.POWER_USAGE, "drawn")),
                *rates((fields.TOTAL_ENERGY_CONSUMPTION, "by energy"), scale=" / 1000"),
            ),
            "The current power, and the average by the energy counter.",
            "watt",
            span=THIRD,
        ),
        lines(
            "Clocks",
            (
                Query(f"{most(fields.SM_CLOCK)} * 1e6", "processors"),
                Query(f"{most(fields.MEM_CLOCK)} * 1e6", "memory"),
            ),
            "The current clocks.",
            "hertz",
            span=THIRD,
        ),
        lines(
            "Slowed down",
            rates(
                (fields.THERMAL_VIOLATION, "for heat"),
                (fields.POWER_VIOLATION, "for power"),
                scale=" / 1e9",
            ),
            "The part of the time in which the clock was reduced.",
            RATIO,
            span=THIRD,
            top=1,
        ),
        lines(
            "Memory errors",
            plain(
                (fields.ECC_SBE_VOL_TOTAL, "corrected"),
                (fields.ECC_DBE_VOL_TOTAL, "not corrected"),
                (fields.CORRECTABLE_REMAPPED_ROWS, "rows, corrected"),
                (fields.UNCORRECTABLE_REMAPPED_ROWS, "rows, not corrected"),
                (fields.RETIRED_SBE, "pages, corrected"),
                (fields.RETIRED_DBE, "pages, not corrected"),
            ),
            "Errors since the driver was loaded; rows and pages of the card's whole "
            "life.",
            PLAIN,
            span=THIRD,
        ),
        lines(
            "Faults",
            (
                Query(
                    f"sum by (xid) (increase({of('vcuda_xid_errors_total')}"
                    "[$__rate_interval]))",
                    "XID {{xid}}",
                ),
                Query(
                    f"max(increase({of(fields.PCIE_REPLAY_COUNTER)}"
                    "[$__rate_interval]))",
                    "PCIe replays",
                ),
            ),
            "NVIDIA's catalogue explains the XIDs.",
            PLAIN,
            span=THIRD,
        ),
    )


def closer_panels() -> tuple[Panel, ...]:
    """Return the panels of metrics that only some cards have, or that are off."""
    return (
        lines(
            "Inside the card",
            plain(
                (fields.GR_ENGINE_ACTIVE, "any engine"),
                (fields.SM_ACTIVE, "an SM had a warp"),
                (fields.SM_OCCUPANCY, "warps resident"),
                (fields.PIPE_TENSOR_ACTIVE, "tensor pipes"),
                (fields.DRAM_ACTIVE, "memory"),
            ),
            "Hopper and newer, with --enable-profiling; otherwise empty.",
            RATIO,
            span=THIRD,
            top=1,
        ),
        lines(
            "PCIe",
            (
                Query(f"{most(fields.PCIE_TX_THROUGHPUT)} * 1000", "sent"),
                Query(f"{most(fields.PCIE_RX_THROUGHPUT)} * 1000", "received"),
                *plain(
                    (fields.PROF_PCIE_TX_BYTES, "sent (profiling)"),
                    (fields.PROF_PCIE_RX_BYTES, "received (profiling)"),
                ),
            ),
            "With --enable-pcie or --enable-profiling; otherwise empty.",
            "Bps",
            span=THIRD,
        ),
        lines(
            "NVLink",
            (Query(f"{most(fields.NVLINK_BANDWIDTH_TOTAL)} * 1024000", "all links"),),
            "Empty on cards without NVLink.",
            "Bps",
            span=THIRD,
        ),
        lines(
            "Idle",
            (
                Query(
                    f"min by ({CONTAINER}) (time() - "
                    f"{of('vcuda_container_last_busy_timestamp_seconds')})",
                    WHO,
                ),
            ),
            "How long each container has not worked on the card.",
            SECONDS,
            span=HALF,
        ),
    )
