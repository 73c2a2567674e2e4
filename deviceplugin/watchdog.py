"""Which containers use more card memory than their share, and how long. Pure.

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
"""So many times its share a container may hold: a driver hands out memory in pages."""

LONGEST_GAP_S = 15.0
"""Between two rounds that lie further apart the use was unknown."""


@dataclass(frozen=True, slots=True)
class Excess:
    """One container over its share; ``lasted_s`` is how long it is known to be so.

    ``seen`` is when it was seen so in the last round, by the clock of ``look``, and
    None where that round did not tell. ``told`` and ``evicted`` are what was done about
    it, each once.
    """

    use: ContainerUse
    seen: float | None
    lasted_s: float = 0.0
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
    """Tell whether a container uses more memory than its share; None for unknown.

    The contexts of its processes are CUDA's, and no part of what it asked for.
    """
    share = allotted_mib(use)
    if share is None or use.memory_mib is None:
        return None
    if use.allotted is None:
        return use.memory_mib > 0
    return use.memory_mib - use.contexts_mib > share * TOLERANCE


def look(before: Excesses, usage: Usage, now: float) -> Excesses:
    """Give who is over its share by a round that came at ``now``, and for how long.

    Whose use is unknown just now stays as it was; that time does not count. ``now`` is
    in seconds of a clock that nobody sets: a step of the day's time is no excess.
    """
    found: dict[UseKey, Excess] = {}
    if usage.at is None:
        return {key: replace(known, seen=None) for key, known in before.items()}
    for use in usage.containers:
        known = before.get(use.key, Excess(use, None))
        over = is_over(use)
        if over:
            found[use.key] = _longer(known, use, now)
        elif over is None and use.key in before:
            found[use.key] = replace(known, seen=None)
    return found


def _longer(known: Excess, use: ContainerUse, now: float) -> Excess:
    gap_s = 0.0 if known.seen is None else now - known.seen
    counted_s = gap_s if gap_s <= LONGEST_GAP_S else 0.0
    lasted_s = known.lasted_s + counted_s
    return replace(known, use=use, seen=now, lasted_s=lasted_s)


def due(excesses: Excesses, after_s: float) -> Iterator[Excess]:
    """Give those that have been over their share for so long, and are so now."""
    for excess in excesses.values():
        if excess.seen is not None and excess.lasted_s >= after_s:
            yield excess


def may_evict(excess: Excess) -> bool:
    """Tell whether a pod may be evicted for this.

    Not one that never asked: what uses cards without a request is mostly the node's
    own, such as a driver's daemon.
    """
    return excess.use.allotted is not None


def words(excess: Excess, card: str) -> str:
    """Say it in one sentence, for the pod's events and the log."""
    use = excess.use
    share = allotted_mib(use) or 0.0
    held = f"container {use.container} uses {use.memory_mib or 0:.0f}"
    if use.allotted is None:
        return f"{held} MiB of {card} without having asked for any part of it"
    lasted = f"for {excess.lasted_s:.0f} s"
    beside = f", beside {use.contexts_mib:.0f} MiB allowed for CUDA's contexts"
    return f"{held} MiB of {card} {lasted}; its share is {share:.0f} MiB{beside}"
