"""From the pods seen so far to the tables that price what nodes have left."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpushare.domain.frag.merging import merged
from gpushare.domain.frag.pool import Pool
from gpushare.domain.frag.prices import blended, card_prices, steps_up, worth_curve
from gpushare.domain.frag.ramps import Ladder, Ramp
from gpushare.domain.frag.shapes import WHOLE, Shape
from gpushare.domain.frag.tables import Mix, Tables

FIRST_TIMES = frozenset({1, 5, 10, 20, 40, 70, 100, 150, 200, 300, 400, 500})
THEN_EVERY = 250
PRIOR_WEIGHT = 20 * WHOLE

Models = frozenset[str] | None


def due(seen: int) -> bool:
    """Tell whether to learn anew at this many pods seen: often at first."""
    return seen in FIRST_TIMES or (seen > max(FIRST_TIMES) and seen % THEN_EVERY == 0)


@dataclass(frozen=True, slots=True)
class _Single:
    models: Models
    weight: float
    cpu_rate: float
    memory_rate: float


@dataclass(frozen=True, slots=True)
class _Block:
    models: Models
    cards: int
    weight: float
    cpu_milli: int


def learn(histogram: Mapping[Shape, int], pool: Pool) -> Tables:
    """Learn from how many pods of each shape were seen.

    Some milliseconds for some hundred shapes, half a second at worst: not for a thread
    that somebody waits for. Without pods, or pods that ask no card, a card is worth
    what is free of it, with an even part of the cluster's CPU for each card beside it.

    Shares weigh by the milli that they ask together; what one asks of CPU and memory is
    counted per price of its size, not per size, and a size of price 0 asks nothing. The
    weights of all kinds sum to 1, so that a model that some may not have is worth less.
    Whole cards weigh among those of their own number, whatever numbers there are. Pods
    of more cards than the largest node has are left out, because nothing can be kept
    for them, and one that asks a million would outweigh all others.
    """
    histogram = merged(_placeable(histogram, pool.largest))
    counts: Counter[int] = Counter()
    demand: Counter[int] = Counter()
    sets: Counter[frozenset[str]] = Counter()
    for shape, number in histogram.items():
        if shape.cards == 1:
            counts[steps_up(shape.milli)] += number
        demand[shape.cards] += number * shape.demand
        if shape.cards and shape.models is not None:
            sets[shape.models] += number * shape.demand
    prices = card_prices(counts)
    total = sum(demand.values()) or 1
    singles = _singles(histogram, prices, pool)
    blocks = _blocks(histogram)
    models = sorted({model for allowed in sets for model in allowed})
    tables = Tables(
        curve=blended(worth_curve(prices)),
        anywhere=_mix(singles, blocks, None),
        named={model: _mix(singles, blocks, model) for model in models},
        shares={k: demand[k] / total for k in sorted(demand) if k > 1},
        sets={allowed: sets[allowed] / total for allowed in sorted(sets, key=sorted)},
    )
    return tables.under(pool)


def _placeable(
    histogram: Mapping[Shape, int], largest: int | None
) -> Mapping[Shape, int]:
    if largest is None:
        return histogram
    return {shape: n for shape, n in histogram.items() if shape.cards <= largest}


def _singles(
    histogram: Mapping[Shape, int], prices: Mapping[int, float], pool: Pool
) -> list[_Single]:
    kinds = [_prior(pool)]
    for shape, number in histogram.items():
        price = prices.get(steps_up(shape.milli), 0.0) if shape.cards == 1 else 0.0
        if price > 0:
            kinds.append(
                _Single(
                    shape.models,
                    number * shape.milli,
                    shape.cpu_milli / price,
                    shape.memory_mib / price,
                )
            )
    total = sum(kind.weight for kind in kinds)
    return [
        _Single(kind.models, kind.weight / total, kind.cpu_rate, kind.memory_rate)
        for kind in kinds
    ]


def _prior(pool: Pool) -> _Single:
    """A pod of one card with its even part of the CPU, and half that of the memory."""
    cards = max(pool.cards, 1)
    return _Single(
        None,
        PRIOR_WEIGHT,
        (pool.cpu_milli or 0) / cards,
        (pool.memory_mib or 0) / cards / 2,
    )


def _blocks(histogram: Mapping[Shape, int]) -> list[_Block]:
    totals: Counter[int] = Counter()
    for shape, number in histogram.items():
        totals[shape.cards] += number
    return [
        _Block(shape.models, shape.cards, number / totals[shape.cards], shape.cpu_milli)
        for shape, number in histogram.items()
        if shape.cards > 1 and number > 0
    ]


def _mix(
    singles: Iterable[_Single], blocks: Iterable[_Block], model: str | None
) -> Mix:
    mine = [kind for kind in singles if _may_hold(model, kind.models)]
    ladders: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for block in blocks:
        if _may_hold(model, block.models):
            ladders[block.cards].append((block.cpu_milli, block.weight))
    return Mix(
        Ramp.of((kind.cpu_rate, kind.weight) for kind in mine),
        Ramp.of((kind.memory_rate, kind.weight) for kind in mine),
        {k: Ladder.of(ladders[k]) for k in sorted(ladders)},
    )


def _may_hold(model: str | None, allowed: Models) -> bool:
    return allowed is None or model in allowed
