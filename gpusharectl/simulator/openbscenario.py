"""The public trace as a scenario for our own kind of cards. Pure.

A card has 1000 units, so a unit is one milli, and 100 cores. A share of a card asks its
milli and one core: with fewer than a hundred pods on a card memory is always the
scarcer. Several cards are asked as whole ones. Nothing is rounded.
"""

from gpushare.domain.model import CORES_PER_CARD
from gpushare.kube.cluster import Json
from gpusharectl.simulator import made
from gpusharectl.simulator.engine import Played
from gpusharectl.simulator.fates import Outcome
from gpusharectl.simulator.openb import WHOLE, Meter, Trace, TraceNode, TracePod
from gpusharectl.simulator.scenario import Arrive, Scenario, Step

NAMESPACE = "openb"


def trace_scenario(trace: Trace, name: str, seed: int) -> Scenario:
    """Make a scenario of one order of arrivals; nobody waits, and nobody leaves.

    ``ValueError`` as ``Trace.arrivals`` raises it.
    """
    arrivals = trace.arrivals(seed)
    steps = (
        Step(0.0, Arrive(_pod(pod, number))) for number, pod in enumerate(arrivals)
    )
    return Scenario(
        name=f"openb {name}, seed {seed}",
        nodes=tuple(
            _node(node, number)
            for number, node in enumerate(trace.shuffled_nodes(seed))
        ),
        steps=tuple(steps),
        waits=False,
    )


def metered(trace: Trace, seed: int, played: Played) -> Meter:
    """Measure what was played as the trace's paper does."""
    meter = Meter(trace.capacity)
    for pod, fate in zip(trace.arrivals(seed), played.fates, strict=True):
        meter.arrived(pod.demand, placed=fate.outcome is Outcome.PLACED)
    return meter


def _node(node: TraceNode, place: int) -> Json:
    """Make a node; of equals the first by name is taken, so its place stands there."""
    name = f"{place:04}-{node.name}"
    cards = [made.card(name, index, WHOLE, node.model) for index in range(node.cards)]
    host = made.Host(f"{node.cpu_milli}m", f"{node.memory_mib}Mi")
    return made.node(name, cards, host)


def _pod(pod: TracePod, number: int) -> Json:
    whole = pod.cards > 1
    asked = made.Asked(
        units=0 if whole else pod.milli,
        cores=CORES_PER_CARD * pod.cards if whole else pod.cards,
        cpu=f"{pod.cpu_milli}m",
        memory=f"{pod.memory_mib}Mi",
        models=tuple(sorted(pod.models or ())),
    )
    # The list's tuning may bring a pod twice; a name is there once.
    return made.pod(NAMESPACE, f"{pod.name}-{number}", asked)
