"""Few kinds of pods made of many, so that learning and its memory stay bounded."""

from collections import Counter
from collections.abc import Mapping

from gpushare.domain.frag.prices import MILLI_PER_STEP, steps_up
from gpushare.domain.frag.shapes import Shape

KINDS_AT_MOST = 2000
SETS_AT_MOST = 32
"""Of card models asked for; pods of rarer sets count as if they took any model."""
DIGITS = 3
"""Binary digits that CPU and memory keep: at most an eighth is added."""


def merged(
    histogram: Mapping[Shape, int], most: int = KINDS_AT_MOST
) -> dict[Shape, int]:
    """Give the histogram with at most so many kinds; as it is where it has no more.

    Otherwise sizes are rounded up: shares to 10 milli, CPU and memory to three binary
    digits. Where that is not enough the kinds of least demand are left out.
    """
    seen = {shape: number for shape, number in histogram.items() if number > 0}
    sets = _sets_by_demand(seen)
    if len(seen) <= most and len(sets) <= SETS_AT_MOST:
        return seen
    kept = frozenset(sets[:SETS_AT_MOST])
    kinds: Counter[Shape] = Counter()
    for shape, number in seen.items():
        kinds[_coarse(shape, kept)] += number
    ranked = sorted(kinds, key=lambda kind: (-kinds[kind] * kind.demand, _rank(kind)))
    return {kind: kinds[kind] for kind in ranked[:most]}


def _sets_by_demand(histogram: Mapping[Shape, int]) -> list[frozenset[str]]:
    demand: Counter[frozenset[str]] = Counter()
    for shape, number in histogram.items():
        if shape.models is not None:
            demand[shape.models] += number * shape.demand
    return sorted(demand, key=lambda models: (-demand[models], sorted(models)))


def _coarse(shape: Shape, kept: frozenset[frozenset[str]]) -> Shape:
    return Shape(
        MILLI_PER_STEP * steps_up(shape.milli),
        shape.cards,
        _rounded_up(shape.cpu_milli),
        _rounded_up(shape.memory_mib),
        shape.models if shape.models in kept else None,
    )


def _rounded_up(amount: int) -> int:
    spare = max(0, amount.bit_length() - DIGITS)
    return -(-amount >> spare) << spare


def _rank(shape: Shape) -> tuple[int, int, int, int, list[str]]:
    """Put shapes in an order that does not depend on which was seen first."""
    models = sorted(shape.models or ())
    return (shape.cards, shape.milli, shape.cpu_milli, shape.memory_mib, models)
