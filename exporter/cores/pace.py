"""How long each container's kernel launches wait, so that it keeps to its cores. Pure.

The node measures what share of a card's time each container has, and moves the delay
of its launches until that share meets its cores. So the length of kernels need not be
known, nor how many are in one launch. Cores are a cap only while others work on the
card. What is not known delays nothing.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from exporter.usage import ContainerUse, Usage, UseKey
from gpushare.domain.model import CORES_PER_CARD

LONGEST_US = 100_000.0
"""Kernels that wait for each other always start."""
FLOOR = 10.0
"""The least cap (%), because most containers have the default of 1 core."""
UNKNOWN_AFTER_S = 5.0
"""A measurement that is older says nothing of now."""
_BUSY_S = 3.0
"""Who worked within so many seconds still does: between two launches it looks idle."""
_FIRST_US = 100.0
"""From where a delay grows, because it grows by factors."""
_FADE = 0.25
"""What stays of the delay after a tenth of a second without a measurement."""
_SMOOTH = 0.1
"""The weight of the newest measurement: the driver's are of 1/6 s to 1 s, so one kernel
may fill one of them."""
_GAIN = (0.08, 0.5)
"""How strongly an error moves the delay's logarithm: at least, and at most."""
_GROWS, _SHRINKS = 1.35, 0.5
_MOST_ERROR = 1.5
_SMALL_ERROR = 0.1
"""Below this the delay is about right."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long each launch of a container waits, and what the next measurement needs.

    ``delay_us`` counts now, ``beside_us`` while others work. ``share`` is the measured
    one (%), smoothed; None while it is not known or does not matter. ``error`` is how
    far it is above the cap (1 is twice the cap), ``gain`` how strongly that moves the
    delay.
    """

    delay_us: float = 0.0
    beside_us: float = 0.0
    share: float | None = None
    error: float = 0.0
    gain: float = _GAIN[0]


def cap_of(use: ContainerUse) -> float | None:
    """Return the most of its card (%) that a container may have; None for all of it.

    A container that asked for no cores has the least, else asking for none would pay.
    """
    allotted = use.allotted
    if allotted is None or use.exclusive or allotted.cores >= CORES_PER_CARD:
        return None
    return max(float(allotted.cores), FLOOR)


def next_pace(before: Pace, share: float, cap: float, *, others_work: bool) -> Pace:
    """Return the pace after a measurement of the container's share (%).

    Nothing is summed up over time, so nothing has to be paid back after an idle time.
    """
    if not others_work:
        # The share says nothing of the delay that is right beside others.
        return replace(before, delay_us=0.0, share=None)
    was = before.share
    if was is None:
        # The measurement may be of a time without the others.
        was = cap if before.beside_us else share
    smooth = was + _SMOOTH * (share - was)
    error = min((smooth - cap) / cap, _MOST_ERROR)
    gain = _next_gain(before, error)
    moved = (before.beside_us + _FIRST_US) * math.exp(gain * error) - _FIRST_US
    delay_us = min(max(moved, 0.0), LONGEST_US)
    return Pace(delay_us, delay_us, smooth, error, gain)


def _next_gain(before: Pace, error: float) -> float:
    """Move faster while the delay has no effect yet, and slower once it has."""
    least, most = _GAIN
    no_effect = before.share is not None and abs(error) >= abs(before.error) * 0.9
    if no_effect and error * before.error > 0 and abs(error) > _SMALL_ERROR:
        return min(before.gain * _GROWS, most)
    return max(before.gain * _SHRINKS, least)


def fade(before: Pace) -> Pace:
    """Return the pace a tenth of a second later if the share is not known.

    What was learned comes back with the next measurement: it need not be found again.
    """
    if not before.delay_us:
        return before
    delay_us = before.delay_us * _FADE
    return Pace(delay_us if delay_us >= 1.0 else 0.0, before.beside_us)


def measured_paces(
    before: Mapping[UseKey, Pace], usage: Usage
) -> Mapping[UseKey, Pace]:
    """Return the pace of each container that has a cap, after a round.

    One whose share is not known keeps its delay, for ``fade``.
    """
    paces: dict[UseKey, Pace] = {}
    for use in usage.containers:
        cap = cap_of(use)
        if cap is None:
            continue
        was = before.get(use.key, Pace())
        if use.sm is None or usage.at is None:
            paces[use.key] = replace(was, share=None)
        else:
            others = _work(usage.containers, use, usage.at)
            paces[use.key] = next_pace(was, use.sm, cap, others_work=others)
    return paces


def _work(uses: Iterable[ContainerUse], beside: ContainerUse, at: float) -> bool:
    """Return whether others work on the card, by what is known."""
    return any(
        other.sm is not None
        and other.last_busy is not None
        # Not in time to come, as after a step back of the clock.
        and 0 <= at - other.last_busy <= _BUSY_S
        for other in uses
        if other.card == beside.card and other.key != beside.key
    )
