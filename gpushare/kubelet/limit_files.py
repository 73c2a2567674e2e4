"""The files that hold a container to its share, in its folder of the node. Pure.

The device plugin writes them, the library of tier ``preload`` counts in one of them,
and the exporter reads them.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.kubelet.pods import HardLimit

HARD_LIMIT = ".hard_limit"
"""The tier and the limit that a container was allocated with, if any. Not in the
record: earlier versions take a record with an unknown field for a broken one."""
LIMITS = "limits"
"""Tier ``preload``: what the library reads, as ``isolation/preload/limits.c`` says."""
REGION = ".region"
"""Tier ``preload``: what the library counts, as ``isolation/preload/region.c`` says."""
REGION_BYTES = 16 + 1024 * 32
_MAGIC = 0x33616475632D7661
_FORM = 0xFF << 56
"""The bits of it that say which form the region has."""
_COUNTS_CONTEXTS = "vcuda-limits 2\n"


@dataclass(frozen=True, slots=True)
class InnerPid:
    """A process as its container knows it.

    ``pid`` is that of its innermost PID namespace, ``start`` in ticks since boot,
    because pids are used again.
    """

    pid: int
    start: int


def parse_hard_limit(text: str) -> HardLimit | None:
    """Parse the file ``HARD_LIMIT``; None if it is not one."""
    try:
        limit = HardLimit.read(json.loads(text))
    except (ValueError, TypeError, KeyError):
        return None
    valid = isinstance(limit.tier, str) and all(
        isinstance(mib, int) for mib in (limit.mib, limit.needed_mib)
    )
    return limit if valid else None


def counts_contexts(limits_text: str) -> bool:
    """Return whether the library counts the context of each process."""
    return limits_text.startswith(_COUNTS_CONTEXTS)


def parse_region(raw: bytes) -> Mapping[InnerPid, int] | None:
    """Return how many bytes are counted of each process; None for another form.

    A container that has run since before an upgrade has the library of then. Nothing
    for a file that no process has begun, and for a damaged one: the library does not
    believe it either. A process that has a context alone may have 0.
    """
    magic = struct.unpack_from("=Q", raw)[0] if len(raw) >= struct.calcsize("=Q") else 0
    if magic != _MAGIC and magic & ~_FORM == _MAGIC & ~_FORM:
        return None
    if len(raw) < REGION_BYTES or magic != _MAGIC:
        return {}
    counted: dict[InnerPid, int] = {}
    for used, pid, start, _ in struct.iter_unpack("=4Q", raw[16:REGION_BYTES]):
        if pid:
            process = InnerPid(pid, start)
            counted[process] = counted.get(process, 0) + used
    return counted
