"""Answers of filter and scores of prioritize, kept between requests.

The pods of a Deployment ask the same, and few nodes change between two of them. So the
answer for each shape of request is kept, and updated from the ledger's journal. The
cost of a filter depends on the number of changed nodes, not on the number of pods. A
node's score by a policy depends on that node alone and is kept in the same way.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock

from gpushare.domain import links
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.placement import Decider, link_score, score
from gpushare.domain.policies import Policy
from gpushare.domain.refusal import Refusal

Judge = Callable[[Node], Refusal | None]
Shape = object
"""A hashable value; requests with different answers have different shapes."""

Verdicts = list[Refusal | None]
"""Of one node: a refusal, or None if the pod fits; empty if the node is gone."""

_MOST_SHAPES = 64
"""Shapes kept at a time; at 10,000 nodes a shape needs about 1 MB."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The nodes on which a shape fits, and the refused nodes by reason.

    Nodes are grouped by reason, because there are few reasons and many nodes. A node in
    no group is unknown to the ledger. The value does not change; later changes are in
    the next answer.
    """

    fits: frozenset[NodeName] = frozenset()
    refused: Mapping[Refusal, frozenset[NodeName]] = field(default_factory=dict)

    def updated(self, judged: Iterable[tuple[NodeName, Verdicts]]) -> "Answer":
        """Return the answer with new verdicts for some nodes.

        Only groups that gain or lose a node are copied: most changes of a node change
        no verdict.
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
    """Answers per shape over one ledger, updated for the nodes that changed."""

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
        return self._answer(shape, lambda: Decider(request, policy).refusal)

    def judged(self, shape: Shape, judge: Judge) -> Answer:
        """Return the answer of a judge; equal shapes must have equal judges."""
        return self._answer(shape, lambda: judge)

    def _answer(self, shape: Shape, make_judge: Callable[[], Judge]) -> Answer:
        kept = self._kept(shape)
        with kept.lock:
            position, names = self._ledger.changed_since(kept.position)
            answer = kept.answer
            if names is None:
                answer = Answer()
                names = _in_one_region(node.name for node in self._ledger.nodes())
            if names:
                answer = answer.updated(self._verdicts(names, make_judge()))
            kept.answer, kept.position = answer, position
            return answer

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


def _in_one_region(names: Iterable[NodeName]) -> list[NodeName]:
    """Copy the names into one region of memory.

    A look-up compares the requested name with the stored one. Names scattered over the
    heap cause a CPU cache miss each, which is most of the cost of 5,000 names.
    """
    return [NodeName(name) for name in "\n".join(names).split("\n") if name]


class Scores:
    """The scores of all nodes of one ledger, by policy, and those of their links."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: OrderedDict[Shape, tuple[int, dict[NodeName, int]]] = OrderedDict()
        self._lock = Lock()

    def of(self, policy: Policy) -> Mapping[NodeName, int]:
        """Return the current score of every known node, 0 to 10, as an immutable map.

        It is copied only when a score changes, which is rare with eleven scores.
        """
        return self._updated(policy.name, lambda node: score(node, policy))

    def of_links(self, request: PodRequest, policy: Policy) -> Mapping[NodeName, int]:
        """Return the ``link_score`` of each node that has one, as an immutable map.

        Empty for most requests: those for which links do not count.
        """
        if not links.count_for(request):
            return {}
        shape = (policy.name, request.claims[0].amount, request.cards)
        return self._updated(
            shape, lambda node: link_score(request, node, policy) or None
        )

    def _updated(
        self, shape: Shape, judge: Callable[[Node], int | None]
    ) -> Mapping[NodeName, int]:
        with self._lock:
            position, scores = self._kept.get(shape, (-1, {}))
            position, names = self._ledger.changed_since(position)
            if names is None:
                scores, names = {}, [node.name for node in self._ledger.nodes()]
            nodes = {name: self._ledger.node(name) for name in names}
            judged = ((name, judge(node)) for name, node in nodes.items() if node)
            now = {name: found for name, found in judged if found is not None}
            gone = [name for name in nodes if name in scores and name not in now]
            if gone or any(scores.get(name) != now[name] for name in now):
                scores = scores | now
                for name in gone:
                    del scores[name]
            self._kept[shape] = position, scores
            self._kept.move_to_end(shape)
            if len(self._kept) > _MOST_SHAPES:
                self._kept.popitem(last=False)
        return scores
