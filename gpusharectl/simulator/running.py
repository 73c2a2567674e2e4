"""One scenario under one policy: from its beginning to what there is to tell of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpushare.domain.policies import Choice
from gpusharectl.simulator import made
from gpusharectl.simulator.engine import Progress, play
from gpusharectl.simulator.outcome import Room, Run, summed
from gpusharectl.simulator.rooms import rooms
from gpusharectl.simulator.scenario import Scenario
from gpusharectl.simulator.world import World


def run(
    scenario: Scenario,
    choice: Choice,
    sizes: Sequence[made.Asked] = (),
    began: Callable[[str], Progress] = lambda _name: lambda _done, _total: None,
) -> Run:
    """Play it, and count at its end how many more of each size would fit.

    ``began`` is called as playing begins, and as counting does, with a name.
    """
    found: list[Room] = []

    def count(world: World) -> None:
        found.extend(rooms(world, sizes, began(f"{choice.default}, room for more")))

    played = play(scenario, choice, began(choice.default), at_end=count)
    return replace(summed(scenario, played), rooms=tuple(found))
