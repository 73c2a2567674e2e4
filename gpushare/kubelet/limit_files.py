"""The files that hold a container to its share, in its folder of the node. Pure.

The device plugin writes them, the library of tier ``preload`` counts by one of them,
and the exporter reads them.
"""

import json
from dataclasses import dataclass

from gpushare.kubelet.pods import HardLimit

HARD_LIMIT = ".hard_limit"
"""The tier and the limit that a container was allocated with, if any. Not in the
record: earlier versions take a record with an unknown field for a broken one."""
LIMITS = "limits"
"""Tier ``preload``: what the library reads, as ``isolation/preload/limits.c`` says."""
REGION = ".region"
"""Tier ``preload``: a FIFO, by whose locks the library counts, as
``isolation/preload/region.c`` says."""
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
