"""Which containers use more card memory than their share, and since when. Pure.

A share is held against memory alone: cores that others leave idle may be used, and no
tier of isolation so far takes them away again. A card that its pod has to itself has
no share to exceed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from deviceplugin.usage import ContainerUse, Usage, UseKey
from gpushare.domain.model import UNIT_MIB

Mode = Literal["off", "report", "evict"]
"""What is done about an excess that lasts."""

TOLERANCE = 1.05
"""So many times its share a container may hold: a driver's own share of a process is
not what its program asked for. The alert about it says the same."""


@dataclass(frozen=True, slots=True)
class Excess:
    """One container over its share, since ``since`` (seconds since 1970).

    ``told`` and ``evicted`` are what was done about it, each once.
    """

    use: ContainerUse
    since: float
    told: bool = False
    evicted: bool = False


Excesses = Mapping[UseKey, Excess]


@dataclass(frozen=True, slots=True)
class PatrolTally:
    """What the watchdog has done since the exporter began."""

    reports: int = 0
    evictions: int = 0


def allotted_mib(use: ContainerUse) -> float | None:
    """Give a container's share of the card's memory; None where none can be told.

    That is 0 for one that asked for no part of the card. Of a process in a pod nobody
    may know the container, and then none its share.
    """
    if not use.container or not use.placed or use.exclusive:
        return None
    if use.allotted is None:
        return 0.0
    # It asked for cores alone: then nobody said how much memory it may use.
    return use.allotted.units * float(UNIT_MIB) or None


def is_over(use: ContainerUse) -> bool | None:
    """Tell whether a container uses more memory than its share; None for unknown."""
    share = allotted_mib(use)
    if share is None or use.memory_mib is None:
        return None
    return use.memory_mib > share * TOLERANCE


def look(before: Excesses, usage: Usage) -> Excesses:
    """Give who is over its share by this usage, each since it has been so.

    Whose use is unknown just now stays as it was.
    """
    if usage.at is None:
        return before
    found: dict[UseKey, Excess] = {}
    for use in usage.containers:
        known = before.get(use.key)
        over = is_over(use)
        if over:
            found[use.key] = replace(known, use=use) if known else Excess(use, usage.at)
        elif over is None and known is not None:
            found[use.key] = known
    return found


def due(excesses: Excesses, usage: Usage, after_s: float) -> Iterator[Excess]:
    """Give those that have been over their share for so long, and are so now."""
    if usage.at is None:
        return
    over_now = {use.key for use in usage.containers if is_over(use)}
    for key, excess in excesses.items():
        if key in over_now and usage.at - excess.since >= after_s:
            yield excess


def may_evict(excess: Excess) -> bool:
    """Tell whether a pod may be evicted for this.

    Not one that never asked: what uses cards without a request is mostly the node's
    own, such as a driver's daemon.
    """
    return excess.use.allotted is not None


def words(excess: Excess, card: str, lasted_s: float) -> str:
    """Say it in one sentence, for the pod's events and the log."""
    use = excess.use
    share = allotted_mib(use) or 0.0
    held = f"container {use.container} uses {use.memory_mib or 0:.0f}"
    if use.allotted is None:
        return f"{held} MiB of {card} without having asked for any part of it"
    return f"{held} MiB of {card} for {lasted_s:.0f} s; its share is {share:.0f} MiB"
