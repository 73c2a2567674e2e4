"""The nodes on which a shape of request fits, kept between requests.

A Deployment's pods all ask the same, and between two of them few nodes change. So each
shape's answer is kept, and mended from the ledger's journal when it is asked again: the
cost of a filter then hangs on the nodes that changed, not on the pods there are.

What each node is liked, kept between requests.

A policy's score of a node hangs on that node alone, and between two requests few nodes
change: as with ``fitting``, those are scored again and the rest is looked up.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.placement import Decider, score
from gpushare.domain.policies import Policy
from gpushare.domain.refusal import Refusal

Judge = Callable[[Node], Refusal | None]
Shape = object
"""Any hashable value that tells requests with different answers apart."""

Verdicts = list[Refusal | None]
"""Of one node: a refusal, or None where it fits; empty for a node that is gone."""

_MOST_SHAPES = 64
"""Kept at a time: at 10,000 nodes a shape is about a megabyte."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a shape fits, and elsewhere which nodes are refused for which reason.

    A node in none is unknown to the ledger. There are few reasons and many nodes, so
    the nodes are kept by reason. What changes later is in the next answer, not here.
    """

    fits: frozenset[NodeName] = frozenset()
    refused: Mapping[Refusal, frozenset[NodeName]] = field(default_factory=dict)

    def refusal(self, name: NodeName) -> Refusal | None:
        """Return why a node is refused; None where it fits or is not known."""
        return next((no for no, group in self.refused.items() if name in group), None)

    def mended(self, judged: Iterable[tuple[NodeName, Verdicts]]) -> "Answer":
        """Return the answer with these nodes where they belong now.

        A group is copied where a node comes or goes, which is seldom: most changes of
        a node change no verdict.
        """
        groups: dict[Refusal | None, frozenset[NodeName]] = {None: self.fits}
        groups.update(self.refused.items())
        moves: defaultdict[Refusal | None, set[NodeName]] = defaultdict(set)
        for name, now in judged:
            before = [verdict for verdict, group in groups.items() if name in group]
            if before != now:
                for verdict in (*before, *now):
                    moves[verdict].add(name)
        if not moves:
            return self
        for verdict, names in moves.items():
            groups[verdict] = groups.get(verdict, frozenset()) ^ names
        fits = groups.pop(None)
        return Answer(fits, {no: group for no, group in groups.items() if no and group})


@dataclass(slots=True)
class _Kept:
    position: int = -1
    answer: Answer = field(default_factory=Answer)
    lock: Lock = field(default_factory=Lock)


class Fitting:
    """Answers per shape over one ledger, mended as its nodes change."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._shapes: OrderedDict[Shape, _Kept] = OrderedDict()
        self._lock = Lock()

    def answer(self, request: PodRequest, policy: Policy) -> Answer:
        """Return where the request fits now."""
        several = len(request.claims) > 1
        shape = (
            tuple(claim.amount for claim in request.claims),
            (policy.name, policy.card_order) if several else None,
            request.cards,
        )
        return self.judged(shape, Decider(request, policy).refusal)

    def judged(self, shape: Shape, judge: Judge) -> Answer:
        """Return which nodes a judge lets through; equal shapes must judge equally."""
        kept = self._kept(shape)
        with kept.lock:
            position, names = self._ledger.changed_since(kept.position)
            answer = kept.answer
            if names is None:
                answer = Answer()
                names = _side_by_side(node.name for node in self._ledger.nodes())
            kept.answer = answer.mended(self._verdicts(names, judge))
            kept.position = position
            return kept.answer

    def _verdicts(
        self, names: Iterable[NodeName], judge: Judge
    ) -> Iterator[tuple[NodeName, Verdicts]]:
        for name in dict.fromkeys(names):
            node = self._ledger.node(name)
            yield name, [] if node is None else [judge(node)]

    def _kept(self, shape: Shape) -> _Kept:
        with self._lock:
            kept = self._shapes.get(shape)
            if kept is None:
                kept = self._shapes[shape] = _Kept()
                if len(self._shapes) > _MOST_SHAPES:
                    self._shapes.popitem(last=False)
            self._shapes.move_to_end(shape)
            return kept


def _side_by_side(names: Iterable[NodeName]) -> list[NodeName]:
    """Copy the names into one stretch of memory.

    A look-up compares the asked name with the kept one. Scattered over the heap, the
    kept ones cost a cache miss each: most of what a filter of 5,000 names costs.
    """
    return [NodeName(name) for name in "\n".join(names).split("\n") if name]


class Scores:
    """The scores of all nodes of one ledger, by policy."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: dict[str, tuple[int, dict[NodeName, int]]] = {}
        self._lock = Lock()

    def of(self, policy: Policy) -> Mapping[NodeName, int]:
        """Return every node's score as it is now, 0 to 10; a value that stays as it is.

        A node that is not in it is not known. Copied where a score changes, which is
        seldom: there are eleven.
        """
        with self._lock:
            position, scores = self._kept.get(policy.name, (-1, {}))
            position, names = self._ledger.changed_since(position)
            if names is None:
                scores, names = {}, [node.name for node in self._ledger.nodes()]
            pages = {name: self._ledger.node(name) for name in names}
            now = {name: score(page, policy) for name, page in pages.items() if page}
            gone = [name for name in pages if name in scores and name not in now]
            if gone or any(scores.get(name) != now[name] for name in now):
                scores = scores | now
                for name in gone:
                    del scores[name]
            self._kept[policy.name] = position, scores
        return scores
