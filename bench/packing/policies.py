"""The policies of the bench, by name."""

from bench.packing.cluster import Cluster, Shape
from bench.packing.fgd import Fgd
from bench.packing.frag import Frag
from bench.packing.peers import BestFit, Chance, FirstFit
from bench.packing.replay import Making, Policy
from bench.packing.trace import Trace


def _random(cluster: Cluster, _trace: Trace, seed: int) -> Policy:
    return Chance(cluster, seed)


def _bestfit(cluster: Cluster, _trace: Trace, _seed: int) -> Policy:
    return BestFit(cluster)


def _firstfit(cluster: Cluster, _trace: Trace, _seed: int) -> Policy:
    return FirstFit(cluster)


def _fgd(cluster: Cluster, trace: Trace, _seed: int) -> Policy:
    return Fgd(cluster, map(Shape.of, trace.pods))


def _frag(cluster: Cluster, _trace: Trace, _seed: int) -> Policy:
    return Frag(cluster)


def makers() -> dict[str, Making]:
    """Give all of them, from the simplest on."""
    return {
        "random": _random,
        "bestfit": _bestfit,
        "firstfit": _firstfit,
        "fgd": _fgd,
        "frag": _frag,
    }
