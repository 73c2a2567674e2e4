"""What pods there are, counted as they come, and what is learnt of them.

Few kinds of pods made of many, so that learning and its memory stay bounded.

From the pods seen so far to the tables that price what nodes have left.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Event, Lock

from gpushare.domain.frag.prices import (
    MILLI_PER_STEP,
    Ladder,
    Mix,
    Ramp,
    Tables,
    blended,
    card_prices,
    steps_up,
    worth_curve,
)
from gpushare.domain.frag.shapes import WHOLE, Kind, Pool, Shape, Yardstick
from gpushare.domain.model import PodRequest

KINDS_AT_MOST = 2000
SETS_AT_MOST = 32
"""Of card models asked for; pods of rarer sets count as if they took any model."""
DIGITS = 3
"""Binary digits that CPU and memory keep: at most an eighth is added."""


def merged(
    histogram: Mapping[Shape, int], most: int = KINDS_AT_MOST
) -> dict[Shape, int]:
    """Return the histogram with at most so many kinds; as it is where it has no more.

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


FIRST_TIMES = frozenset({1, 5, 10, 20, 40, 70, 100, 150, 200, 300, 400, 500})
THEN_EVERY = 250
PRIOR_WEIGHT = 20 * WHOLE

Models = frozenset[str] | None


def due(seen: int) -> bool:
    """Return whether to learn anew at this many pods seen: often at first."""
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


_MOST_KINDS = 4000
_MOST_SEEN = 100_000
"""Counts are halved when they sum up to so many: what is old weighs less and less."""


class Learner:
    """Counts each pod once when it is first seen, and learns anew when that is due.

    After a restart the running pods are seen again, so what was learnt comes back from
    what the API server holds. Memory is bounded: the rarest kinds are forgotten first.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[Kind, tuple[int, int]] = {}
        """How often a kind was seen, and as the how manieth pod it was seen last."""
        self._sum = 0
        self._seen = 0
        self._due = Event()

    @property
    def seen(self) -> int:
        """How many pods with cards were seen since the start."""
        return self._seen

    @property
    def kinds(self) -> int:
        """How many kinds of pods are told apart now."""
        return len(self._counts)

    @property
    def due(self) -> bool:
        """Whether enough came since the last time to learn anew."""
        return self._due.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is due; False when it is not by then."""
        return self._due.wait(timeout_s)

    def see(self, request: PodRequest) -> None:
        """Count a pod, unless it asks no card."""
        if not request.claims:
            return
        kind = Kind.of(request)
        with self._lock:
            self._sum += 1
            self._seen += 1
            count, _ = self._counts.get(kind, (0, 0))
            self._counts[kind] = (count + 1, self._seen)
            if len(self._counts) > _MOST_KINDS or self._sum > _MOST_SEEN:
                self._forget()
            if due(self._seen):
                self._due.set()

    def tables(self, yardstick: Yardstick, pool: Pool) -> Tables:
        """Learn from all that was seen; some 10 ms, so not on a request's thread.

        Where that fails it is as due as before.
        """
        with self._lock:
            self._due.clear()
            counts = tuple(self._counts.items())
        try:
            shapes = Counter[Shape]()
            for kind, (count, _) in counts:
                for shape in yardstick.shapes(kind):
                    shapes[shape] += count
            return learn(shapes, pool)
        except BaseException:
            self._due.set()
            raise

    def _forget(self) -> None:
        """Let old counts fade, and keep the half of the kinds that comes most often.

        Of equal ones the half that came last, or a mix that has changed would never
        drive out the old one.
        """
        if self._sum > _MOST_SEEN:
            halved = {
                k: (count // 2, last) for k, (count, last) in self._counts.items()
            }
            self._counts = {kind: each for kind, each in halved.items() if each[0]}
        if len(self._counts) > _MOST_KINDS:
            ranked = sorted(self._counts, key=self._counts.__getitem__, reverse=True)
            self._counts = {k: self._counts[k] for k in ranked[: _MOST_KINDS // 2]}
        self._sum = sum(count for count, _ in self._counts.values())
