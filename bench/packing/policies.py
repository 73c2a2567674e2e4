"""The policies of the bench, by name."""

from bench.packing.cluster import ReplayCluster, Shape
from bench.packing.fgd import Fgd
from bench.packing.frag import Frag
from bench.packing.peers import BestFit, Chance, FirstFit
from bench.packing.replay import Making, ReplayPolicy
from bench.packing.trace import Trace


def _random(cluster: ReplayCluster, _trace: Trace, seed: int) -> ReplayPolicy:
    return Chance(cluster, seed)


def _bestfit(cluster: ReplayCluster, _trace: Trace, _seed: int) -> ReplayPolicy:
    return BestFit(cluster)


def _firstfit(cluster: ReplayCluster, _trace: Trace, _seed: int) -> ReplayPolicy:
    return FirstFit(cluster)


def _fgd(cluster: ReplayCluster, trace: Trace, _seed: int) -> ReplayPolicy:
    return Fgd(cluster, map(Shape.of, trace.pods))


def _frag(cluster: ReplayCluster, _trace: Trace, _seed: int) -> ReplayPolicy:
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
