"""The table of all metrics that cards tell: name, kind and group. Pure.

The names are those of dcgm-exporter, so that its dashboards and alert rules work. What
is read is chosen by groups, because some are slow (docs/monitoring.md).
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

FieldKind = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True)
class FieldGroup:
    """What is read together; ``slow`` says why it is off by default."""

    name: str
    every_s: float
    what: str
    slow: str = ""

    @property
    def by_default(self) -> bool:
        """Whether it is on by default."""
        return not self.slow


UTILIZATION = "utilization"
MEMORY = "memory"
PROCESSES = "processes"
ENVIRONMENT = "environment"
FAULTS = "faults"
NVLINK = "nvlink"
RETIRED = "retired"
PCIE = "pcie"
PROFILING = "profiling"
ALLOTMENT = "allotment"
KUBELET = "kubelet"

GROUPS = (
    FieldGroup(UTILIZATION, 2.0, "how busy cards, encoders and decoders are"),
    FieldGroup(MEMORY, 2.0, "memory in use, free and reserved"),
    FieldGroup(PROCESSES, 2.0, "what each container uses of a card"),
    FieldGroup(ENVIRONMENT, 5.0, "temperature, power, energy, clocks, throttling"),
    FieldGroup(FAULTS, 60.0, "ECC errors, remapped rows, PCIe replays, vGPU licence"),
    FieldGroup(NVLINK, 60.0, "NVLink traffic"),
    FieldGroup(
        ALLOTMENT, 5.0, "what was allotted to containers, by placements and claims"
    ),
    FieldGroup(KUBELET, 60.0, "whether kubelet's record agrees with the placements"),
    FieldGroup(
        RETIRED, 300.0, "retired memory pages", slow="reads the card's own storage"
    ),
    FieldGroup(PCIE, 10.0, "PCIe throughput", slow="blocks 20 ms a call"),
    FieldGroup(
        PROFILING, 5.0, "GPM, Hopper and newer", slow="needs two samples a reading"
    ),
)
"""In the order of the documentation."""


@dataclass(frozen=True, slots=True)
class Field:
    """One metric of a card; ``help`` ends with its unit.

    ``shown`` is the name on the page if a file of fields has another name for it.
    """

    name: str
    kind: FieldKind
    group: str
    help: str
    shown: str = ""


_FIELDS: list[Field] = []


def _field(kind: FieldKind, group: str, name: str, explanation: str) -> str:
    """Add a metric to the table; return its name."""
    _FIELDS.append(Field(f"DCGM_FI_{name}", kind, group, explanation))
    return _FIELDS[-1].name


_gauge = partial(_field, "gauge")
_counter = partial(_field, "counter")

GPU_UTIL = _gauge(UTILIZATION, "DEV_GPU_UTIL", "How busy the card is (%).")
MEM_COPY_UTIL = _gauge(UTILIZATION, "DEV_MEM_COPY_UTIL", "How busy its memory is (%).")
ENC_UTIL = _gauge(UTILIZATION, "DEV_ENC_UTIL", "How busy its encoder is (%).")
DEC_UTIL = _gauge(UTILIZATION, "DEV_DEC_UTIL", "How busy its decoder is (%).")
FB_USED = _gauge(MEMORY, "DEV_FB_USED", "Card memory in use (MiB).")
FB_FREE = _gauge(MEMORY, "DEV_FB_FREE", "Card memory free (MiB).")
FB_RESERVED = _gauge(
    MEMORY, "DEV_FB_RESERVED", "Card memory reserved by the driver (MiB)."
)
FB_TOTAL = _gauge(MEMORY, "DEV_FB_TOTAL", "Total card memory (MiB).")
GPU_TEMP = _gauge(ENVIRONMENT, "DEV_GPU_TEMP", "Temperature of the card (C).")
MEMORY_TEMP = _gauge(ENVIRONMENT, "DEV_MEMORY_TEMP", "Temperature of its memory (C).")
POWER_USAGE = _gauge(ENVIRONMENT, "DEV_POWER_USAGE", "Power drawn (W).")
TOTAL_ENERGY_CONSUMPTION = _counter(
    ENVIRONMENT,
    "DEV_TOTAL_ENERGY_CONSUMPTION",
    "Energy used since the driver was loaded (mJ).",
)
SM_CLOCK = _gauge(ENVIRONMENT, "DEV_SM_CLOCK", "Clock of the processors (MHz).")
MEM_CLOCK = _gauge(ENVIRONMENT, "DEV_MEM_CLOCK", "Clock of the memory (MHz).")
POWER_VIOLATION = _counter(
    ENVIRONMENT, "DEV_POWER_VIOLATION", "Throttled for power (ns)."
)
THERMAL_VIOLATION = _counter(
    ENVIRONMENT, "DEV_THERMAL_VIOLATION", "Throttled for heat (ns)."
)
PCIE_REPLAY_COUNTER = _counter(
    FAULTS, "DEV_PCIE_REPLAY_COUNTER", "PCIe retransmissions (count)."
)
ECC_SBE_VOL_TOTAL = _counter(
    FAULTS,
    "DEV_ECC_SBE_VOL_TOTAL",
    "Single-bit errors since the driver was loaded (count).",
)
ECC_DBE_VOL_TOTAL = _counter(
    FAULTS,
    "DEV_ECC_DBE_VOL_TOTAL",
    "Double-bit errors since the driver was loaded (count).",
)
ECC_SBE_AGG_TOTAL = _counter(
    FAULTS, "DEV_ECC_SBE_AGG_TOTAL", "Single-bit errors of the card's lifetime (count)."
)
ECC_DBE_AGG_TOTAL = _counter(
    FAULTS, "DEV_ECC_DBE_AGG_TOTAL", "Double-bit errors of the card's lifetime (count)."
)
CORRECTABLE_REMAPPED_ROWS = _counter(
    FAULTS,
    "DEV_CORRECTABLE_REMAPPED_ROWS",
    "Rows remapped after correctable errors (count).",
)
UNCORRECTABLE_REMAPPED_ROWS = _counter(
    FAULTS,
    "DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "Rows remapped after uncorrectable errors (count).",
)
ROW_REMAP_FAILURE = _gauge(
    FAULTS, "DEV_ROW_REMAP_FAILURE", "1 if remapping a row failed (0 or 1)."
)
VGPU_LICENSE_STATUS = _gauge(
    FAULTS, "DEV_VGPU_LICENSE_STATUS", "1 if a vGPU has its licence (0 or 1)."
)
NVLINK_BANDWIDTH_TOTAL = _gauge(
    NVLINK,
    "DEV_NVLINK_BANDWIDTH_TOTAL",
    "Traffic over all NVLinks since the last reading (MB/s).",
)
RETIRED_SBE = _counter(
    RETIRED, "DEV_RETIRED_SBE", "Pages retired for single-bit errors (count)."
)
RETIRED_DBE = _counter(
    RETIRED, "DEV_RETIRED_DBE", "Pages retired for double-bit errors (count)."
)
RETIRED_PENDING = _gauge(
    RETIRED, "DEV_RETIRED_PENDING", "1 if pages wait to be retired (0 or 1)."
)
PCIE_TX_THROUGHPUT = _gauge(PCIE, "DEV_PCIE_TX_THROUGHPUT", "PCIe traffic sent (KB/s).")
PCIE_RX_THROUGHPUT = _gauge(
    PCIE, "DEV_PCIE_RX_THROUGHPUT", "PCIe traffic received (KB/s)."
)
GR_ENGINE_ACTIVE = _gauge(
    PROFILING, "PROF_GR_ENGINE_ACTIVE", "Share of time an engine worked (0 to 1)."
)
SM_ACTIVE = _gauge(
    PROFILING, "PROF_SM_ACTIVE", "Share of time an SM had a warp (0 to 1)."
)
SM_OCCUPANCY = _gauge(
    PROFILING, "PROF_SM_OCCUPANCY", "Share of warps resident (0 to 1)."
)
PIPE_TENSOR_ACTIVE = _gauge(
    PROFILING,
    "PROF_PIPE_TENSOR_ACTIVE",
    "Share of cycles the tensor pipes worked (0 to 1).",
)
DRAM_ACTIVE = _gauge(
    PROFILING, "PROF_DRAM_ACTIVE", "Share of cycles memory moved data (0 to 1)."
)
PROF_PCIE_TX_BYTES = _gauge(
    PROFILING, "PROF_PCIE_TX_BYTES", "PCIe traffic sent (bytes/s)."
)
PROF_PCIE_RX_BYTES = _gauge(
    PROFILING, "PROF_PCIE_RX_BYTES", "PCIe traffic received (bytes/s)."
)
XID_ERRORS = _gauge(
    FAULTS, "DEV_XID_ERRORS", "The last XID reported, 0 for none so far (number)."
)
"""Not read in a group: events report it (``XidTallies``)."""

FIELDS = tuple(_FIELDS)
"""All of them, in the order of the documentation."""
