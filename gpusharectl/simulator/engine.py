"""Playing a scenario: what comes, what goes, and what is decided meanwhile."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpushare.domain.policies import Choice
from gpusharectl.simulator.fates import Fate, Moment
from gpusharectl.simulator.gauge import Gauge
from gpusharectl.simulator.scenario import Arrive, Scenario
from gpusharectl.simulator.stage import (
    Stage,
    happen,
    moment_of,
    take_away,
    try_again,
)
from gpusharectl.simulator.world import World

LOOKS = 200
"""How often, in a long run, fragmentation is looked at: that costs time."""
Progress = Callable[[int, int], None]
"""Called with steps done and steps there are."""


@dataclass(frozen=True, slots=True)
class Played:
    """One scenario under one policy: what came of each pod, and how full it got.

    ``end`` and ``untouched`` are of the scenario's last step, the same second under
    every policy. Who waits by then is still followed, in ``fates`` and ``moments``.
    """

    policy: str
    fates: Sequence[Fate]
    moments: Sequence[Moment]
    end: Moment
    untouched: int
    """Cards of which nobody holds anything, on nodes that take pods."""
    world: World


def play(
    scenario: Scenario,
    choice: Choice,
    progress: Progress = lambda _done, _all: None,
    *,
    looks: int = LOOKS,
    at_end: Callable[[World], None] = lambda _world: None,
) -> Played:
    """Play it all, under the choice's policy where a pod does not name its own.

    ``looks`` is how often fragmentation is looked at on the way; 0: never. ``at_end``
    is called after the last step, and leaves the world as it was.
    """
    stage = _begun(scenario, choice)
    moments = [moment_of(stage, look=bool(looks))]
    total = len(scenario.steps)
    every = max(1, total // looks) if looks else total + 1
    for number, step in enumerate(scenario.steps):
        _end_until(stage, step.at_s, moments)
        stage.world.clock.now_s = step.at_s
        happen(stage, step.what)
        moments.append(moment_of(stage, look=number % every == every - 1))
        progress(number + 1, total)
    end, untouched = moment_of(stage, look=bool(looks)), stage.world.untouched()
    moments.append(end)
    at_end(stage.world)
    _end_until(stage, None, moments)
    if moments[-1] is not end:
        moments.append(moment_of(stage, look=bool(looks)))
    return Played(choice.default, stage.fates, moments, end, untouched, stage.world)


def _begun(scenario: Scenario, choice: Choice) -> Stage:
    """Give the stage with what is there before the first step."""
    world = World(choice)
    for node in scenario.nodes:
        world.add_node(node)
    stage = Stage(world, Gauge(world), scenario.waits, taken=_names(scenario))
    for pod in scenario.there:
        ref = world.add_bound(pod)
        stage.there[ref.namespace, ref.name] = (ref, pod)
    return stage


def _names(scenario: Scenario) -> set[tuple[str, str]]:
    """Give the names of all pods that are there or come, with their namespaces."""
    arriving = (s.what.pod for s in scenario.steps if isinstance(s.what, Arrive))
    every = (pod["metadata"] for pod in (*scenario.there, *arriving))
    return {(one["namespace"], one["name"]) for one in every}


def _end_until(stage: Stage, at_s: float | None, moments: list[Moment]) -> None:
    """End the pods whose time is up by then; all, one after the other, by None."""
    while stage.ends and (at_s is None or stage.ends[0][0] <= at_s):
        end, _, uid, pod = heapq.heappop(stage.ends)
        key = (pod.fate.pod.namespace, pod.fate.pod.name)
        found = stage.running.get(key)
        if found is None or found.fate.pod.uid != uid:
            continue
        if at_s is None and not stage.waiting:
            # Nobody waits for it: how the cluster empties is of no interest.
            continue
        stage.world.clock.now_s = end
        take_away(stage, key)
        try_again(stage)
        moments.append(moment_of(stage, look=False))
