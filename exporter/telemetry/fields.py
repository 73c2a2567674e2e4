"""The table of all metrics that cards tell: name, kind and group. Pure.

The names are those of dcgm-exporter, so that its dashboards and alert rules work. What
is read is chosen by groups, because some are slow (docs/monitoring.md).
"""

from dataclasses import dataclass
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


_DEV = "DCGM_FI_DEV_"
_PROF = "DCGM_FI_PROF_"

GPU_UTIL = f"{_DEV}GPU_UTIL"
MEM_COPY_UTIL = f"{_DEV}MEM_COPY_UTIL"
ENC_UTIL = f"{_DEV}ENC_UTIL"
DEC_UTIL = f"{_DEV}DEC_UTIL"
FB_USED = f"{_DEV}FB_USED"
FB_FREE = f"{_DEV}FB_FREE"
FB_RESERVED = f"{_DEV}FB_RESERVED"
FB_TOTAL = f"{_DEV}FB_TOTAL"
GPU_TEMP = f"{_DEV}GPU_TEMP"
MEMORY_TEMP = f"{_DEV}MEMORY_TEMP"
POWER_USAGE = f"{_DEV}POWER_USAGE"
TOTAL_ENERGY_CONSUMPTION = f"{_DEV}TOTAL_ENERGY_CONSUMPTION"
SM_CLOCK = f"{_DEV}SM_CLOCK"
MEM_CLOCK = f"{_DEV}MEM_CLOCK"
POWER_VIOLATION = f"{_DEV}POWER_VIOLATION"
THERMAL_VIOLATION = f"{_DEV}THERMAL_VIOLATION"
PCIE_REPLAY_COUNTER = f"{_DEV}PCIE_REPLAY_COUNTER"
XID_ERRORS = f"{_DEV}XID_ERRORS"
"""Not read in a group: events report it (``XidTallies``)."""
ECC_SBE_VOL_TOTAL = f"{_DEV}ECC_SBE_VOL_TOTAL"
ECC_DBE_VOL_TOTAL = f"{_DEV}ECC_DBE_VOL_TOTAL"
ECC_SBE_AGG_TOTAL = f"{_DEV}ECC_SBE_AGG_TOTAL"
ECC_DBE_AGG_TOTAL = f"{_DEV}ECC_DBE_AGG_TOTAL"
CORRECTABLE_REMAPPED_ROWS = f"{_DEV}CORRECTABLE_REMAPPED_ROWS"
UNCORRECTABLE_REMAPPED_ROWS = f"{_DEV}UNCORRECTABLE_REMAPPED_ROWS"
ROW_REMAP_FAILURE = f"{_DEV}ROW_REMAP_FAILURE"
VGPU_LICENSE_STATUS = f"{_DEV}VGPU_LICENSE_STATUS"
RETIRED_SBE = f"{_DEV}RETIRED_SBE"
RETIRED_DBE = f"{_DEV}RETIRED_DBE"
RETIRED_PENDING = f"{_DEV}RETIRED_PENDING"
NVLINK_BANDWIDTH_TOTAL = f"{_DEV}NVLINK_BANDWIDTH_TOTAL"
PCIE_TX_THROUGHPUT = f"{_DEV}PCIE_TX_THROUGHPUT"
PCIE_RX_THROUGHPUT = f"{_DEV}PCIE_RX_THROUGHPUT"
GR_ENGINE_ACTIVE = f"{_PROF}GR_ENGINE_ACTIVE"
SM_ACTIVE = f"{_PROF}SM_ACTIVE"
SM_OCCUPANCY = f"{_PROF}SM_OCCUPANCY"
PIPE_TENSOR_ACTIVE = f"{_PROF}PIPE_TENSOR_ACTIVE"
DRAM_ACTIVE = f"{_PROF}DRAM_ACTIVE"
PROF_PCIE_TX_BYTES = f"{_PROF}PCIE_TX_BYTES"
PROF_PCIE_RX_BYTES = f"{_PROF}PCIE_RX_BYTES"

FIELDS = (
    Field(GPU_UTIL, "gauge", UTILIZATION, "How busy the card is (%)."),
    Field(MEM_COPY_UTIL, "gauge", UTILIZATION, "How busy its memory is (%)."),
    Field(ENC_UTIL, "gauge", UTILIZATION, "How busy its encoder is (%)."),
    Field(DEC_UTIL, "gauge", UTILIZATION, "How busy its decoder is (%)."),
    Field(FB_USED, "gauge", MEMORY, "Card memory in use (MiB)."),
    Field(FB_FREE, "gauge", MEMORY, "Card memory free (MiB)."),
    Field(FB_RESERVED, "gauge", MEMORY, "Card memory reserved by the driver (MiB)."),
    Field(FB_TOTAL, "gauge", MEMORY, "Total card memory (MiB)."),
    Field(GPU_TEMP, "gauge", ENVIRONMENT, "Temperature of the card (C)."),
    Field(MEMORY_TEMP, "gauge", ENVIRONMENT, "Temperature of its memory (C)."),
    Field(POWER_USAGE, "gauge", ENVIRONMENT, "Power drawn (W)."),
    Field(
        TOTAL_ENERGY_CONSUMPTION,
        "counter",
        ENVIRONMENT,
        "Energy used since the driver was loaded (mJ).",
    ),
    Field(SM_CLOCK, "gauge", ENVIRONMENT, "Clock of the processors (MHz)."),
    Field(MEM_CLOCK, "gauge", ENVIRONMENT, "Clock of the memory (MHz)."),
    Field(POWER_VIOLATION, "counter", ENVIRONMENT, "Throttled for power (ns)."),
    Field(THERMAL_VIOLATION, "counter", ENVIRONMENT, "Throttled for heat (ns)."),
    Field(PCIE_REPLAY_COUNTER, "counter", FAULTS, "PCIe retransmissions (count)."),
    Field(
        ECC_SBE_VOL_TOTAL,
        "counter",
        FAULTS,
        "Single-bit errors since the driver was loaded (count).",
    ),
    Field(
        ECC_DBE_VOL_TOTAL,
        "counter",
        FAULTS,
        "Double-bit errors since the driver was loaded (count).",
    ),
    Field(
        ECC_SBE_AGG_TOTAL,
        "counter",
        FAULTS,
        "Single-bit errors of the card's lifetime (count).",
    ),
    Field(
        ECC_DBE_AGG_TOTAL,
        "counter",
        FAULTS,
        "Double-bit errors of the card's lifetime (count).",
    ),
    Field(
        CORRECTABLE_REMAPPED_ROWS,
        "counter",
        FAULTS,
        "Rows remapped after correctable errors (count).",
    ),
    Field(
        UNCORRECTABLE_REMAPPED_ROWS,
        "counter",
        FAULTS,
        "Rows remapped after uncorrectable errors (count).",
    ),
    Field(ROW_REMAP_FAILURE, "gauge", FAULTS, "1 if remapping a row failed (0 or 1)."),
    Field(
        VGPU_LICENSE_STATUS, "gauge", FAULTS, "1 if a vGPU has its licence (0 or 1)."
    ),
    Field(
        NVLINK_BANDWIDTH_TOTAL,
        "gauge",
        NVLINK,
        "Traffic over all NVLinks since the last reading (MB/s).",
    ),
    Field(
        RETIRED_SBE, "counter", RETIRED, "Pages retired for single-bit errors (count)."
    ),
    Field(
        RETIRED_DBE, "counter", RETIRED, "Pages retired for double-bit errors (count)."
    ),
    Field(RETIRED_PENDING, "gauge", RETIRED, "1 if pages wait to be retired (0 or 1)."),
    Field(PCIE_TX_THROUGHPUT, "gauge", PCIE, "PCIe traffic sent (KB/s)."),
    Field(PCIE_RX_THROUGHPUT, "gauge", PCIE, "PCIe traffic received (KB/s)."),
    Field(
        GR_ENGINE_ACTIVE, "gauge", PROFILING, "Share of time an engine worked (0 to 1)."
    ),
    Field(SM_ACTIVE, "gauge", PROFILING, "Share of time an SM had a warp (0 to 1)."),
    Field(SM_OCCUPANCY, "gauge", PROFILING, "Share of warps resident (0 to 1)."),
    Field(
        PIPE_TENSOR_ACTIVE,
        "gauge",
        PROFILING,
        "Share of cycles the tensor pipes worked (0 to 1).",
    ),
    Field(
        DRAM_ACTIVE, "gauge", PROFILING, "Share of cycles memory moved data (0 to 1)."
    ),
    Field(PROF_PCIE_TX_BYTES, "gauge", PROFILING, "PCIe traffic sent (bytes/s)."),
    Field(PROF_PCIE_RX_BYTES, "gauge", PROFILING, "PCIe traffic received (bytes/s)."),
    Field(
        XID_ERRORS,
        "gauge",
        FAULTS,
        "The last XID reported, 0 for none so far (number).",
    ),
)
"""All of them; each is read in the group that it names."""
