"""Which cards are joined best, for a pod of several whole cards.

The score of a pair of cards says how well they are joined: 10 to 60 by the part of PCIe
that they share, and 100 more for each NVLink between them. The set that a pod gets
belongs to the partition of the free cards into sets of that size with the highest sum,
so that the sets that are left are good ones too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations

from gpushare.domain.model import Card, PodRequest

NVLINK = 100
"""The score of one NVLink; a pair with less has none."""
MOST_SCORE = 10_000
"""More than a pair can have: no card has 99 NVLinks."""

_MOST_EXACT = 10
"""Up to so many cards all partitions are compared, in a few milliseconds. Sixteen cards
have two million partitions into pairs."""
_MOST_COMPARED = 16
"""Of so many cards only so many sets are compared with what remains, the best ones. Of
more cards fewer, because a comparison costs the third power of their number: a plan
takes some 10 ms at most."""
_MOST_KEPT = 16
"""The rows of nodes with more cards are not kept, because they take much memory."""

Rows = tuple[tuple[int, ...], ...]


def pairs(number: int) -> Iterator[tuple[int, int]]:
    """Return the pairs of so many cards, in the order in which scores are listed.

    >>> list(pairs(3))
    [(0, 1), (0, 2), (1, 2)]
    """
    return combinations(range(number), 2)


def _rows_of(scores: Sequence[int], full: tuple[bool, ...]) -> Rows:
    """Return the row of each full card by the scores of all ``pairs``.

    Those of MIG instances are empty.
    """
    number = len(full)
    rows = [[0] * number if has else [] for has in full]
    for (a, b), score in zip(pairs(number), scores, strict=True):
        if full[a]:
            rows[a][b] = score
        if full[b]:
            rows[b][a] = score
    return tuple(map(tuple, rows))


_kept_rows = lru_cache(maxsize=1024)(_rows_of)
"""Nodes of one kind have the same scores, so their rows are kept once for all."""


def read_scores(cards: Sequence[Card]) -> tuple[int, ...]:
    """Return the scores of all ``pairs`` of a node's cards; empty if none is known."""
    if not any(any(card.links) for card in cards):
        return ()
    none = (0,) * len(cards)
    rows = [card.links or none for card in cards]
    return tuple(rows[a][b] or rows[b][a] for a, b in pairs(len(cards)))


def with_scores(cards: Sequence[Card], scores: Sequence[int]) -> tuple[Card, ...]:
    """Return a node's cards, the full ones with these scores of all ``pairs``.

    MIG instances have none: no claim has an instance beside a full card, and NVLinks
    cannot be used between instances.
    """
    full = tuple(not card.parent for card in cards)
    if len(full) <= _MOST_KEPT:
        rows = _kept_rows(tuple(scores), full)
    else:
        rows = _rows_of(scores, full)
    return tuple(
        replace(card, links=row) for card, row in zip(cards, rows, strict=True)
    )


def links_count_for(request: PodRequest) -> bool:
    """Return whether links count for a pod: it has one claim, of several whole cards.

    The cards of several claims need not be joined.
    """
    return len(request.claims) == 1 and request.claims[0].whole_cards > 1


def add_links(scores: Sequence[int], linked: Sequence[int]) -> list[int]:
    """Return the scores of nodes with one more for those with the best links.

    ``linked`` has, in the same order, the sum of the pair scores that the pod would get
    on a node, or 0. One step of ten lets links decide among nodes that the policy likes
    equally, and never against two steps. The result may be 11.
    """
    # At least 1, so that no node gains where no links are known.
    best = max(1, max(linked, default=0))
    return [
        known + (links == best) for known, links in zip(scores, linked, strict=True)
    ]


def scores_are_known(cards: Iterable[Card], listed: Sequence[Card]) -> bool:
    """Return whether some cards of a node's list have their scores."""
    return all(len(card.links) == len(listed) for card in cards)


def sum_scores(cards: Sequence[Card], listed: Sequence[Card]) -> int:
    """Return the sum of a set's pair scores; 0 if they are not known."""
    if not scores_are_known(cards, listed):
        return 0
    rows = _rows_among(cards, listed)
    return sum(rows[a][b] for a, b in pairs(len(cards)))


def choose_best_set(
    ranked: Sequence[Card], number: int, listed: Sequence[Card]
) -> tuple[Card, ...]:
    """Choose so many of the ranked cards: the largest, and of equal ones the best set.

    ``ranked`` are the cards that are free, in the order in which they are taken without
    scores: larger ones first. ``listed`` are all cards of the node. Cards that are
    larger than the last one needed are always in the set. The others of the set are
    chosen among those of the last one's size: by the highest sum of the set and of the
    best sets that remain, then by the sum of the set alone, then by the given order.
    """
    first = tuple(ranked[:number])
    pool = [card for card in ranked if card.units >= first[-1].units] if first else []
    if number < 2 or len(pool) <= number or not scores_are_known(pool, listed):  # noqa: PLR2004
        return first
    larger = sum(card.units > first[-1].units for card in pool)
    return tuple(pool[i] for i in _best_of(_rows_among(pool, listed), number, larger))


def _rows_among(cards: Sequence[Card], listed: Sequence[Card]) -> Rows:
    places: Mapping[str, int] = {card.uuid: i for i, card in enumerate(listed)}
    wanted = [places[card.uuid] for card in cards]
    return tuple(tuple(card.links[i] for i in wanted) for card in cards)


@lru_cache(maxsize=512)
def _best_of(rows: Rows, number: int, larger: int) -> tuple[int, ...]:
    """Return the places of the best set, in order; the first ``larger`` belong to it.

    Kept, because nodes of one kind have the same rows, and many have the same cards
    free.
    """
    if len({rows[a][b] for a, b in pairs(len(rows))}) == 1:
        return tuple(range(number))
    search = _Partitions(rows, number)
    everything = frozenset(range(len(rows)))
    if len(rows) <= _MOST_EXACT:
        others = combinations(range(larger, len(rows)), number - larger)
        sets = [(*range(larger), *more) for more in others]
    elif larger:
        sets = [search.grown(range(larger), everything)]
    else:
        sets = sorted({search.grown((card,), everything) for card in everything})
    # The best sets first, so that later ones are better only by their rest.
    sets.sort(key=search.score, reverse=True)
    if len(rows) > _MOST_EXACT:
        fewer = (_MOST_COMPARED / max(_MOST_COMPARED, len(rows))) ** 3
        del sets[max(1, int(_MOST_COMPARED * fewer)) :]
    best, most = sets[0], -1
    for cards in sets:
        score, rest = search.score(cards), everything.difference(cards)
        if score + search.most(rest) > most and score + search.rest(rest) > most:
            best, most = cards, score + search.rest(rest)
    return best


class _Partitions:
    """Partitions of cards into sets of one size; the cards that remain count nothing.

    Exact up to ``_MOST_EXACT`` cards. Of more the sets are taken one by one, always the
    best of those that grow from a single card, until so many remain.
    """

    def __init__(self, rows: Rows, number: int) -> None:
        self._rows = rows
        self._number = number
        self._known: dict[frozenset[int], int] = {}
        self._most = [sum(sorted(row)[1 - number :]) for row in rows]
        """What each card has with those that it is joined to best; a pair counts in
        two of them."""

    def score(self, cards: Sequence[int]) -> int:
        return sum(self._rows[a][b] for a, b in combinations(cards, 2))

    def most(self, cards: frozenset[int]) -> int:
        """Return what no partition exceeds."""
        used = len(cards) - len(cards) % self._number
        return (
            sum(sorted(self._most[card] for card in cards)[-used:]) // 2 if used else 0
        )

    def rest(self, cards: frozenset[int]) -> int:
        """Return the highest sum of a partition."""
        if len(cards) < self._number:
            return 0
        if cards not in self._known:
            exact = len(cards) <= _MOST_EXACT
            self._known[cards] = self._exact(cards) if exact else self._bounded(cards)
        return self._known[cards]

    def grown(self, seed: Sequence[int], cards: frozenset[int]) -> tuple[int, ...]:
        """Return a set that grows by the card that adds most, the first of equals."""
        chosen, candidates = list(seed), sorted(cards.difference(seed))
        gains = [
            sum(self._rows[card][other] for other in chosen) for card in candidates
        ]
        while len(chosen) < self._number:
            at = gains.index(max(gains))
            del gains[at]
            chosen.append(candidates.pop(at))
            row = self._rows[chosen[-1]]
            gains = [
                gain + row[card] for gain, card in zip(gains, candidates, strict=True)
            ]
        return tuple(sorted(chosen))

    def _exact(self, cards: frozenset[int]) -> int:
        first, *others = sorted(cards)
        best = self.rest(cards - {first}) if len(cards) % self._number else 0
        for more in combinations(others, self._number - 1):
            chosen = (first, *more)
            score, rest = self.score(chosen), cards.difference(chosen)
            if score + self.most(rest) > best:
                best = max(best, score + self.rest(rest))
        return best

    def _bounded(self, cards: frozenset[int]) -> int:
        grown = {self.grown((card,), cards) for card in cards}
        best = max(sorted(grown), key=self.score)
        return self.score(best) + self.rest(cards.difference(best))
