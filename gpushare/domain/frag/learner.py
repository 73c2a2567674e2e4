"""Count the kinds of pods seen, and learn from them the tables of ``prices``.

Similar kinds are merged, so that the time and memory for learning are limited.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from threading import Event, Lock
from typing import NamedTuple

from gpushare.domain.frag.prices import (
    MILLI_PER_STEP,
    Ladder,
    PodMix,
    Ramp,
    Tables,
    blend_with_size,
    compute_worth_curve,
    price_sizes,
    round_up_to_steps,
)
from gpushare.domain.frag.shapes import (
    WHOLE,
    CardSizes,
    ClusterCapacity,
    PodShape,
    RequestKind,
)
from gpushare.domain.model import PodRequest

KINDS_AT_MOST = 2000
SETS_AT_MOST = 32
"""Sets of card models; pods with rarer sets count as if they took any model."""
DIGITS = 3
"""Binary digits that CPU and memory keep: rounding adds an eighth at most."""
FIRST_TIMES = (1, 5, 10, 20, 40, 70, 100, 150, 200, 300, 400, 500)
"""Numbers of pods seen at which to learn again."""
THEN_EVERY = 250
THEN_A_PART = 4
"""Later, after so many more pods, or that part more: fewer would change little."""
PRIOR_WEIGHT = 20 * WHOLE
_MOST_KINDS = 4000
_MOST_SEEN = 100_000
"""Counts are halved at this sum, so that old pods lose weight."""

Models = frozenset[str] | None


def merge_kinds(
    histogram: Mapping[PodShape, int], most: int = KINDS_AT_MOST
) -> dict[PodShape, int]:
    """Return the histogram, reduced to at most ``most`` kinds.

    If it has more, sizes are rounded up: shares to 10 milli, CPU and memory to three
    binary digits. If it still has more, the kinds of least demand are dropped.
    """
    seen = {shape: number for shape, number in histogram.items() if number > 0}
    sets = _sets_by_demand(seen)
    if len(seen) <= most and len(sets) <= SETS_AT_MOST:
        return seen
    kept = frozenset(sets[:SETS_AT_MOST])
    kinds: Counter[PodShape] = Counter()
    for shape, number in seen.items():
        kinds[_coarse(shape, kept)] += number
    ranked = sorted(kinds, key=lambda kind: (-kinds[kind] * kind.demand, _rank(kind)))
    return {kind: kinds[kind] for kind in ranked[:most]}


def _sets_by_demand(histogram: Mapping[PodShape, int]) -> list[frozenset[str]]:
    demand: Counter[frozenset[str]] = Counter()
    for shape, number in histogram.items():
        if shape.models is not None:
            demand[shape.models] += number * shape.demand
    return sorted(demand, key=lambda models: (-demand[models], sorted(models)))


def _coarse(shape: PodShape, kept: frozenset[frozenset[str]]) -> PodShape:
    return PodShape(
        MILLI_PER_STEP * round_up_to_steps(shape.milli),
        shape.cards,
        _rounded_up(shape.cpu_milli),
        _rounded_up(shape.memory_mib),
        shape.models if shape.models in kept else None,
    )


def _rounded_up(amount: int) -> int:
    spare = max(0, amount.bit_length() - DIGITS)
    return -(-amount >> spare) << spare


def _rank(shape: PodShape) -> tuple[int, int, int, int, list[str]]:
    """Return a sort key that does not depend on the order of arrival."""
    models = sorted(shape.models or ())
    return (shape.cards, shape.milli, shape.cpu_milli, shape.memory_mib, models)


def next_lesson(seen: int) -> int:
    """Return the number of pods at which to learn again; often at first."""
    for number in FIRST_TIMES:
        if number > seen:
            return number
    return seen + max(THEN_EVERY, seen // THEN_A_PART)


class _Single(NamedTuple):
    models: Models
    weight: float
    cpu_rate: float
    memory_rate: float


def learn(histogram: Mapping[PodShape, int], pool: ClusterCapacity) -> Tables:
    """Learn tables from the number of pods of each shape.

    It takes milliseconds for some hundred shapes and half a second at worst, so do not
    call it on a request's thread. Without pods that ask for cards, a card is worth its
    free part, together with an even part of the cluster's CPU.

    Shares weigh by the sum of their milli. Their CPU and memory count per price of the
    size, not per size; a size with price 0 needs nothing. The weights of all kinds sum
    to 1, so a model that some pods may not have is worth less. Whole cards weigh only
    among pods with the same number of cards. Pods with more cards than the largest node
    are left out: nothing can be kept for them, and a pod that asks for a million cards
    would outweigh all others.
    """
    most = math.inf if pool.largest is None else pool.largest
    histogram = merge_kinds({s: n for s, n in histogram.items() if s.cards <= most})
    counts: Counter[int] = Counter()
    demand: Counter[int] = Counter()
    sets: Counter[frozenset[str]] = Counter()
    for shape, number in histogram.items():
        if shape.cards == 1:
            counts[round_up_to_steps(shape.milli)] += number
        demand[shape.cards] += number * shape.demand
        if shape.cards and shape.models is not None:
            sets[shape.models] += number * shape.demand
    prices = price_sizes(counts)
    total = sum(demand.values()) or 1
    singles = _singles(histogram, prices, pool)
    blocks = _blocks(histogram)
    models = sorted({model for allowed in sets for model in allowed})
    tables = Tables(
        curve=blend_with_size(compute_worth_curve(prices)),
        anywhere=_mix(singles, blocks, None),
        named={model: _mix(singles, blocks, model) for model in models},
        shares={k: demand[k] / total for k in sorted(demand) if k > 1},
        sets={allowed: sets[allowed] / total for allowed in sorted(sets, key=sorted)},
    )
    return tables.under(pool)


def _singles(
    histogram: Mapping[PodShape, int],
    prices: Mapping[int, float],
    pool: ClusterCapacity,
) -> list[_Single]:
    cards = max(pool.cards, 1)
    cpu, memory = (pool.cpu_milli or 0) / cards, (pool.memory_mib or 0) / cards
    # A pod of one card with an even part of the CPU, and half of the memory.
    kinds = [_Single(None, PRIOR_WEIGHT, cpu, memory / 2)]
    for shape, number in histogram.items():
        price = (
            prices.get(round_up_to_steps(shape.milli), 0.0) if shape.cards == 1 else 0.0
        )
        if price > 0:
            rates = (shape.cpu_milli / price, shape.memory_mib / price)
            kinds.append(_Single(shape.models, number * shape.milli, *rates))
    total = sum(kind.weight for kind in kinds)
    return [kind._replace(weight=kind.weight / total) for kind in kinds]


def _blocks(histogram: Mapping[PodShape, int]) -> dict[PodShape, float]:
    """Return the weight of each kind among those of as many whole cards."""
    totals: Counter[int] = Counter()
    for shape, number in histogram.items():
        totals[shape.cards] += number
    return {s: n / totals[s.cards] for s, n in histogram.items() if s.cards > 1 and n}


def _mix(
    singles: Iterable[_Single], blocks: Mapping[PodShape, float], model: str | None
) -> PodMix:
    mine = [kind for kind in singles if _may_hold(model, kind.models)]
    ladders: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for shape, weight in blocks.items():
        if _may_hold(model, shape.models):
            ladders[shape.cards].append((shape.cpu_milli, weight))
    return PodMix(
        Ramp.of((kind.cpu_rate, kind.weight) for kind in mine),
        Ramp.of((kind.memory_rate, kind.weight) for kind in mine),
        {k: Ladder.of(ladders[k]) for k in sorted(ladders)},
    )


def _may_hold(model: str | None, allowed: Models) -> bool:
    return allowed is None or model in allowed


class Learner:
    """Count each pod once, and learn again when enough new pods were seen.

    After a restart the running pods are counted again, so the knowledge comes back from
    the API server. Memory is limited: the rarest kinds are dropped first.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[RequestKind, tuple[int, int]] = {}
        """For each kind its count, and the sequence number of its last occurrence."""
        self._sum = 0
        self._seen = 0
        self._next = next_lesson(0)
        self._due = Event()

    @property
    def seen(self) -> int:
        """Number of pods with cards seen since the start."""
        return self._seen

    @property
    def due(self) -> bool:
        """Whether enough pods came to learn again."""
        return self._due.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until ``due``; return False on time-out."""
        return self._due.wait(timeout_s)

    def see(self, request: PodRequest) -> None:
        """Count a pod, unless it asks for no card."""
        if not request.claims:
            return
        kind = RequestKind.of(request)
        with self._lock:
            self._sum += 1
            self._seen += 1
            count, _ = self._counts.get(kind, (0, 0))
            self._counts[kind] = (count + 1, self._seen)
            if len(self._counts) > _MOST_KINDS or self._sum > _MOST_SEEN:
                self._forget()
            if self._seen >= self._next:
                self._next = next_lesson(self._seen)
                self._due.set()

    def tables(self, sizes: CardSizes, pool: ClusterCapacity) -> Tables:
        """Learn from all pods seen, in about 10 ms; not for a request's thread.

        If it fails, ``due`` is set again.
        """
        with self._lock:
            self._due.clear()
            counts = tuple(self._counts.items())
        try:
            shapes = Counter[PodShape]()
            for kind, (count, _) in counts:
                for shape in sizes.shapes(kind):
                    shapes[shape] += count
            return learn(shapes, pool)
        except BaseException:
            self._due.set()
            raise

    def _forget(self) -> None:
        """Halve old counts, and keep the more frequent half of the kinds.

        Of equally frequent kinds the most recent ones stay; otherwise a new mix of pods
        would never replace an old one.
        """
        if self._sum > _MOST_SEEN:
            halved = {
                k: (count // 2, last) for k, (count, last) in self._counts.items()
            }
            self._counts = {kind: entry for kind, entry in halved.items() if entry[0]}
        if len(self._counts) > _MOST_KINDS:
            ranked = sorted(self._counts, key=self._counts.__getitem__, reverse=True)
            self._counts = {k: self._counts[k] for k in ranked[: _MOST_KINDS // 2]}
        self._sum = sum(count for count, _ in self._counts.values())
