"""What makes a pod keep to its share, by tier. Pure.

There is one tier so far, ``none``: nothing holds a program back; it is told what it
may use. Tiers that do hold it back add to these variables, mounts and nodes.
"""

from collections.abc import Mapping

from gpushare.domain.model import UNIT_MIB
from gpushare.kube import names

MEMORY_LIMIT = "VCUDA_MEMORY_LIMIT_MIB"
"""Variable: MiB of card memory that the container asked for."""
CORES = "VCUDA_CORES"
"""Variable: hundredths of a card's compute that the container asked for."""


def hints(resource: str, count: int) -> Mapping[str, str]:
    """Give the variables by which a program may size itself.

    No fence: a pod can write variables of the same name over them.
    """
    if resource == names.MEMORY:
        return {MEMORY_LIMIT: str(count * UNIT_MIB)}
    return {CORES: str(count)}
