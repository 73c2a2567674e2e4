"""One scenario under several policies, summed up for people and programs. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpusharectl.simulator.engine import Played
from gpusharectl.simulator.fates import Fate, Moment, Outcome
from gpusharectl.simulator.scenario import NOWHERE, Expected, Scenario


@dataclass(frozen=True, slots=True)
class Room:
    """How many more pods of one size fit at the end, each placed after the other.

    ``more`` says that it was at least so many, and nobody went on counting.
    """

    asks: str
    number: int
    more: bool = False


@dataclass(frozen=True, slots=True)
class Turned:
    """Pods alike that were not placed, for the same reasons."""

    asks: str
    pods: tuple[str, ...]
    reasons: Mapping[str, int]
    nodes: int
    """How many refused them; some for several reasons."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it under one policy.

    A pod counts once: one that had to move by what came of it last. ``moved`` says how
    many those were, ``rehoused`` how many of them found room.
    """

    policy: str
    played: Played
    counts: Mapping[Outcome, int]
    turned: tuple[Turned, ...]
    fullest: Moment
    end: Moment
    longest_wait_s: float | None
    untouched: int
    """Cards at the end of which nobody holds anything, on nodes that take pods."""
    moved: int = 0
    rehoused: int = 0
    wrong: tuple[str, ...] = ()
    """Where it came out otherwise than the scenario expects, as sentences."""
    rooms: tuple[Room, ...] = ()

    @property
    def pods(self) -> int:
        """Pods that came, and those there at the beginning that had to move."""
        return sum(self.counts.values())

    @property
    def placed(self) -> int:
        """Pods that were placed, at once or later."""
        return self.counts[Outcome.PLACED] + self.counts[Outcome.WAITED]


def summed(scenario: Scenario, played: Played) -> Run:
    """Sum up what was played; of what asks for no card too."""
    last = {fate.came_as: fate for fate in played.fates}
    moved = {fate.came_as for fate in played.fates if fate.first}
    counts = Counter(fate.outcome for fate in last.values())
    moments = played.moments
    waits = [fate.waited_s for fate in played.fates if fate.outcome is Outcome.WAITED]
    # What somebody expects is expected of the policy that the scenario names.
    expected = played.policy == scenario.choice.default
    return Run(
        policy=played.policy,
        played=played,
        counts={outcome: counts[outcome] for outcome in Outcome},
        turned=_turned(played.fates),
        fullest=max(moments, key=lambda moment: moment.allotted or 0.0),
        end=played.end,
        longest_wait_s=max((one for one in waits if one is not None), default=None),
        untouched=played.untouched,
        moved=len(moved),
        rehoused=sum(bool(last[pod].node) for pod in moved),
        wrong=_wrong(scenario.expected, tuple(last.values())) if expected else (),
    )


def thinned(moments: Sequence[Moment], most: int = 200) -> list[Moment]:
    """Leave out moments evenly, but for the first, the last and those looked at."""
    every = max(1, -(-len(moments) // most))
    last = len(moments) - 1
    return [
        moment
        for number, moment in enumerate(moments)
        if number % every == 0 or number == last or moment.fragmented is not None
    ]


def is_timed(scenario: Scenario) -> bool:
    """Tell whether the scenario's time matters, or only the order."""
    return any(step.at_s for step in scenario.steps)


def _turned(fates: Sequence[Fate]) -> tuple[Turned, ...]:
    groups: dict[object, list[Fate]] = {}
    for fate in fates:
        if fate.outcome is Outcome.REFUSED:
            key = (fate.asks, tuple(sorted(fate.reasons)))
            groups.setdefault(key, []).append(fate)
    found = [
        Turned(
            alike[-1].asks,
            tuple(str(fate.pod) for fate in alike),
            dict(sorted(alike[-1].reasons.items(), key=lambda one: (-one[1], one[0]))),
            alike[-1].nodes,
        )
        for alike in groups.values()
    ]
    return tuple(sorted(found, key=lambda one: (-len(one.pods), one.asks)))


def _wrong(expected: Expected, fates: Sequence[Fate]) -> tuple[str, ...]:
    by_name = {fate.came_as: fate for fate in fates}
    found = []
    gone = (Outcome.REFUSED,)
    for what, wanted, number in (
        ("placed", expected.placed, sum(bool(fate.node) for fate in fates)),
        ("refused", expected.refused, sum(fate.outcome in gone for fate in fates)),
    ):
        if wanted is not None and wanted != number:
            found.append(f"pods {what}: {number}; expected: {wanted}")
    for pod, place in expected.where.items():
        fate = by_name.get(pod)
        came = NOWHERE if fate is None else fate.place
        if place not in (came, fate.node if fate else ""):
            found.append(f"{'/'.join(pod)}: {came}; expected: {place}")
    return tuple(found)
