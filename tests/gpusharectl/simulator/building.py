"""Scenarios with a default for everything."""

from collections.abc import Sequence

from gpushare.domain.policies import PolicyChoice
from gpushare.kube.cluster import Json
from gpusharectl.simulator import synthetic
from gpusharectl.simulator.engine import Played, PodOutcome, play
from gpusharectl.simulator.scenario import Arrive, Event, Scenario, ScenarioStep
from gpusharectl.simulator.scenario_file import read_scenario


def node(
    name: str = "node-1",
    *units: int,
    model: str = "Tesla P4",
    cpu: str = "",
    memory: str = "",
    pods: int | None = None,
) -> Json:
    """A node with cards of these sizes, or one of 29 units."""
    sizes = units or (29,)
    cards = [
        synthetic.make_card(name, index, size, model)
        for index, size in enumerate(sizes)
    ]
    return synthetic.make_node(name, cards, synthetic.HostSpec(cpu, memory, pods))


def pod(name: str, units: int = 10, cores: int = 1, **more: object) -> Json:
    """A pod of one container."""
    asked = synthetic.PodSpec(units=units, cores=cores, **more)  # type: ignore[arg-type]
    return synthetic.make_pod("default", name, asked)


def scenario(
    nodes: Sequence[Json], *steps: Event | ScenarioStep, waits: bool = True
) -> Scenario:
    """Things that happen a minute apart, unless they say when."""
    return Scenario(
        name="a scenario",
        nodes=tuple(nodes),
        steps=tuple(
            step
            if isinstance(step, ScenarioStep)
            else ScenarioStep(60.0 * number, step)
            for number, step in enumerate(steps)
        ),
        waits=waits,
    )


def come(*names: str, **asked: object) -> list[Arrive]:
    """Pods alike that come and stay."""
    return [Arrive(pod(name, **asked)) for name in names]  # type: ignore[arg-type]


def played(of: Scenario, policy: str = "first-fit") -> Played:
    return play(of, PolicyChoice(policy))


def outcomes(of: Played) -> dict[str, PodOutcome]:
    return {result.pod.name: result for result in of.outcomes}


def places(of: Played) -> dict[str, str]:
    return {result.pod.name: result.place for result in of.outcomes}


def told(text: str) -> Scenario:
    return read_scenario(text, "scenario.yaml")
