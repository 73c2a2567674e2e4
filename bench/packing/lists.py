"""Lists of pods made from the public list ``default``, for mixes that no file has.

``models33``: a third of the pods with cards name the models that they may have, drawn
by the number of cards of each. ``scarce33``: the same, drawn evenly, so that some
models are asked more than there are. ``cpu250``: 2.5 times the pods without cards.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from bench.packing.trace import Trace, TraceNode, TracePod, read_trace

_SOURCE = "default"
_PART = 1 / 3
_CPU_PODS = 2.5


def read_list(folder: Path, name: str) -> Trace:
    """Read a list of the folder, or make one of ``MADE``. Raises ``TraceError``."""
    make = MADE.get(name)
    if make is None:
        return read_trace(folder, name)
    trace = read_trace(folder, _SOURCE)
    return replace(trace, pods=tuple(make(trace)))


def _by_cards(trace: Trace) -> Iterator[TracePod]:
    return _named(trace, evenly=False)


def _evenly(trace: Trace) -> Iterator[TracePod]:
    return _named(trace, evenly=True)


def _named(trace: Trace, *, evenly: bool) -> Iterator[TracePod]:
    cards: Counter[frozenset[str]] = Counter()
    for node in trace.nodes:
        cards[_kin(node, trace)] += node.cards
    sets = sorted(cards, key=sorted)
    dice = random.Random(33)
    for pod in trace.pods:
        if not pod.cards or dice.random() >= _PART:
            yield pod
            continue
        able = [models for models in sets if _fits(pod, models, trace)]
        weights = [1 if evenly else cards[models] for models in able]
        yield replace(pod, models=dice.choices(able, weights)[0] if able else None)


def _kin(node: TraceNode, trace: Trace) -> frozenset[str]:
    """Give the models of one make: V100M16 and V100M32 differ in memory alone."""
    make = node.model.partition("M")[0]
    models = {other.model for other in trace.nodes}
    return frozenset(model for model in models if model.partition("M")[0] == make)


def _fits(pod: TracePod, models: frozenset[str], trace: Trace) -> bool:
    return any(
        node.model in models
        and node.cards >= pod.cards
        and node.cpu_milli >= pod.cpu_milli
        and node.memory_mib >= pod.memory_mib
        for node in trace.nodes
    )


def _more_cpu(trace: Trace) -> Iterator[TracePod]:
    bare = [pod for pod in trace.pods if not pod.cards]
    dice = random.Random(250)
    yield from trace.pods
    for number in range(round((_CPU_PODS - 1) * len(bare))):
        yield replace(dice.choice(bare), name=f"more-{number:04}")


MADE: Mapping[str, Callable[[Trace], Iterator[TracePod]]] = {
    "models33": _by_cards,
    "scarce33": _evenly,
    "cpu250": _more_cpu,
}
