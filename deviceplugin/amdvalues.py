"""What each field of ``fields`` is on AMD's cards: which file of amdgpu, which unit.

Sources: the kernel's documents of amdgpu (thermal, ras, driver-misc), and its
``kgd_pp_interface.h`` for ``gpu_metrics``. Encoders, PCIe throughput and profiling have
no file that tells just that.
"""

import errno
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from deviceplugin import fields
from deviceplugin.amdfiles import NotThere, number, raw, text

_MIB = 2**20
_ENERGY_AT = {(1, 1): 24, (1, 2): 24, (1, 3): 24, (1, 4): 24, (1, 5): 88}
"""Where ``gpu_metrics`` has its 64 bits of energy, by format and content revision."""
_NEVER = 2**64 - 1
_MJ = 1000 / 2**16
"""Its unit, 2^-16 J, in mJ."""
_ERRORS = re.compile(r"^(ue|ce):\s*(\d+)\s*$", re.MULTILINE)


def value(device: Path, field: str) -> float:
    """Read one field of the card whose files these are, in the field's own unit.

    ``NotThere``, or ``OSError`` where it cannot be told now.
    """
    read = _VALUES.get(field)
    if read is None:
        raise NotThere(field)
    return read(device)


def _plain(name: str) -> Callable[[Path], float]:
    return lambda device: number(device / name)


def _hwmon(scale: int, *names: str) -> Callable[[Path], float]:
    """Read the first of these files that there is; the sensors' folder has a number."""

    def read(device: Path) -> float:
        for folder in sorted((device / "hwmon").glob("hwmon*")):
            for name in names:
                try:
                    return number(folder / name) / scale
                except NotThere:
                    continue
        raise NotThere(names[0])

    return read


def _mib(name: str) -> Callable[[Path], int]:
    return lambda device: number(device / name) // _MIB


_USED_MIB = _mib("mem_info_vram_used")
_TOTAL_MIB = _mib("mem_info_vram_total")


def _errors(kind: str) -> Callable[[Path], float]:
    """Add up the errors of one kind over all blocks of the card."""

    def read(device: Path) -> float:
        counts: list[int] = []
        for path in (device / "ras").glob("*_err_count"):
            try:
                told = _ERRORS.findall(text(path))
            except NotThere:
                continue
            if not told:
                # While the card is in reset: a sum without it would be a fall.
                raise OSError(errno.EBUSY, "it counts no errors now", str(path))
            counts += [int(count) for name, count in told if name == kind]
        if not counts:
            raise NotThere(kind)
        return sum(counts)

    return read


def _bad_pages(flag: str) -> Callable[[Path], int]:
    """Count lines ``page : size : flag``; R is retired, P waits for it."""

    def read(device: Path) -> int:
        lines = text(device / "ras/gpu_vram_bad_pages").splitlines()
        return sum(line.rpartition(":")[2].strip() == flag for line in lines)

    return read


def _energy_mj(device: Path) -> float:
    metrics = raw(device / "gpu_metrics")
    at = _ENERGY_AT.get((metrics[2], metrics[3])) if metrics[3:] else None
    if at is None or len(metrics) < at + 8:
        raise NotThere("energy")
    (counted,) = struct.unpack_from("<Q", metrics, at)
    # All bits are set where the card does not count it.
    if counted == _NEVER:
        raise NotThere("energy")
    return float(counted) * _MJ


_VALUES: Mapping[str, Callable[[Path], float]] = {
    fields.GPU_UTIL: _plain("gpu_busy_percent"),
    fields.MEM_COPY_UTIL: _plain("mem_busy_percent"),
    fields.FB_USED: _USED_MIB,
    fields.FB_FREE: lambda device: _TOTAL_MIB(device) - _USED_MIB(device),
    fields.FB_TOTAL: _TOTAL_MIB,
    # The chip's edge; some of the newest cards tell its hottest point only.
    fields.GPU_TEMP: _hwmon(1000, "temp1_input", "temp2_input"),
    fields.MEMORY_TEMP: _hwmon(1000, "temp3_input"),
    # Averaged, or as the newest tell it: of the moment.
    fields.POWER_USAGE: _hwmon(1_000_000, "power1_average", "power1_input"),
    fields.TOTAL_ENERGY_CONSUMPTION: _energy_mj,
    fields.SM_CLOCK: _hwmon(1_000_000, "freq1_input"),
    fields.MEM_CLOCK: _hwmon(1_000_000, "freq2_input"),
    fields.PCIE_REPLAY_COUNTER: _plain("pcie_replay_count"),
    fields.ECC_SBE_VOL_TOTAL: _errors("ce"),
    fields.ECC_DBE_VOL_TOTAL: _errors("ue"),
    fields.RETIRED_DBE: _bad_pages("R"),
    fields.RETIRED_PENDING: lambda device: min(1, _bad_pages("P")(device)),
}
