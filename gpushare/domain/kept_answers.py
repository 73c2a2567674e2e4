"""Answers of filter and scores of prioritize, kept between requests.

The pods of a Deployment ask the same, and few nodes change between two of them. So the
answer for each shape of request is kept, and updated from the ledger's journal. The
cost of a filter depends on the number of changed nodes, not on the number of pods. A
node's score by a policy depends on that node alone and is kept in the same way.

A tenant may create thousands of pods of which no two ask the same. So a shape is judged
on all nodes only when as many names were asked about before; until then on the names
asked about, and no kept answer gives way to it.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Self

from gpushare.domain import links
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, PodRequest, Refusal
from gpushare.domain.node import Node
from gpushare.domain.placement import Decider, score_links, score_node
from gpushare.domain.policies import Policy

Judge = Callable[[Node], Refusal | None]
RequestShape = object
"""A hashable value; requests with different answers have different shapes."""

Verdicts = list[Refusal | None]
"""Of one node: a refusal, or None if the pod fits; empty if the node is gone."""

_MOST_SHAPES = 64
"""Shapes kept at a time; at 10,000 nodes a shape needs about 1 MB."""
_MOST_NEW = 256
"""Shapes of which only the number of names is kept."""


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """The nodes on which a shape fits, and the refused nodes by reason.

    Nodes are grouped by reason, because there are few reasons and many nodes. A node in
    no group is unknown to the ledger. The value does not change; later changes are in
    the next answer.
    """

    fits: frozenset[NodeName] = frozenset()
    refused: Mapping[Refusal, frozenset[NodeName]] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Iterable[tuple[NodeName, Node | None]], judge: Judge) -> Self:
        """Return the answer about these nodes alone; None is a node that is gone."""
        groups: defaultdict[Refusal | None, list[NodeName]] = defaultdict(list)
        for name, node in nodes:
            if node is not None:
                groups[judge(node)].append(name)
        fits = frozenset(groups.pop(None, ()))
        return cls(fits, {no: frozenset(names) for no, names in groups.items() if no})

    def updated(self, judged: Iterable[tuple[NodeName, Verdicts]]) -> "FilterAnswer":
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
        return FilterAnswer(
            fits, {no: group for no, group in groups.items() if no and group}
        )


@dataclass(slots=True)
class _KeptAnswer:
    position: int = -1
    answer: FilterAnswer = field(default_factory=FilterAnswer)
    lock: Lock = field(default_factory=Lock)


class KeptAnswers:
    """Answers per shape over one ledger, updated for the nodes that changed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._shapes: OrderedDict[RequestShape, _KeptAnswer] = OrderedDict()
        self._new: OrderedDict[RequestShape, tuple[object, int]] = OrderedDict()
        self._lock = Lock()

    def answer(
        self,
        request: PodRequest,
        policy: Policy,
        names: Collection[NodeName] | None = None,
    ) -> FilterAnswer:
        """Return where the request fits now: on these nodes at least, or on all."""
        shape = _shape(request, policy)
        decider = Decider(request, policy)
        return self.judged(shape, decider.refusal, names, request)

    def judged(
        self,
        shape: RequestShape,
        judge: Judge,
        names: Collection[NodeName] | None = None,
        asking: object = None,
    ) -> FilterAnswer:
        """Return the answer of a judge; equal shapes must have equal judges.

        ``asking`` is whose filter it is: names that one asks again do not count.
        """
        kept = self._kept(shape, names, asking)
        if kept is None:
            names = names or ()
            nodes = zip(names, map(self._ledger.node, names), strict=True)
            return FilterAnswer.of(nodes, judge)
        with kept.lock:
            position, changed = self._ledger.changed_since(kept.position)
            answer = kept.answer
            if changed is None:
                all_nodes = self._ledger.nodes()
                every = _in_one_region(node.name for node in all_nodes)
                answer = FilterAnswer.of(zip(every, all_nodes, strict=True), judge)
            elif changed:
                answer = answer.updated(self._verdicts(changed, judge))
            kept.answer, kept.position = answer, position
            return answer

    def _verdicts(
        self, names: Iterable[NodeName], judge: Judge
    ) -> Iterator[tuple[NodeName, Verdicts]]:
        for name in dict.fromkeys(names):
            node = self._ledger.node(name)
            yield name, [] if node is None else [judge(node)]

    def _kept(
        self, shape: RequestShape, wanted: Collection[NodeName] | None, asking: object
    ) -> _KeptAnswer | None:
        """Return what is kept of a shape; None if judging these names costs less."""
        with self._lock:
            kept = self._shapes.get(shape)
            if kept is None:
                if wanted is not None and self._has_few(shape, len(wanted), asking):
                    return None
                kept = self._shapes[shape] = _KeptAnswer()
                if len(self._shapes) > _MOST_SHAPES:
                    self._shapes.popitem(last=False)
            self._shapes.move_to_end(shape)
            return kept

    def _has_few(self, shape: RequestShape, names: int, asking: object) -> bool:
        """Count the names, and tell whether fewer than all nodes' came before."""
        last, before = self._new.pop(shape, (None, 0))
        again = asking is not None and asking is last
        if before and before >= self._ledger.node_count and not again:
            return False
        self._new[shape] = asking, before + (0 if again else names)
        if len(self._new) > _MOST_NEW:
            self._new.popitem(last=False)
        return True


def _shape(request: PodRequest, policy: Policy) -> RequestShape:
    return (
        tuple(claim.amount for claim in request.claims),
        (policy.name, policy.card_order) if len(request.claims) > 1 else None,
        request.cards,
    )


def _in_one_region(names: Iterable[NodeName]) -> list[NodeName]:
    """Copy the names into one region of memory.

    A look-up compares the requested name with the stored one. Names scattered over the
    heap cause a CPU cache miss each, which is most of the cost of 5,000 names.
    """
    return [NodeName(name) for name in "\n".join(names).split("\n") if name]


class KeptScores:
    """The scores of all nodes of one ledger, by policy, and those of their links."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: OrderedDict[RequestShape, tuple[int, dict[NodeName, int]]] = (
            OrderedDict()
        )
        self._lock = Lock()

    def of(self, policy: Policy) -> Mapping[NodeName, int]:
        """Return the current score of every known node, 0 to 10, as an immutable map.

        It is copied only when a score changes, which is rare with eleven scores.
        """
        return self._updated(policy.name, lambda node: score_node(node, policy))

    def of_links(self, request: PodRequest, policy: Policy) -> Mapping[NodeName, int]:
        """Return the ``score_links`` of each node that has one, as an immutable map.

        Empty for most requests: those for which links do not count.
        """
        if not links.links_count_for(request):
            return {}
        shape = (policy.name, request.claims[0].amount, request.cards)
        return self._updated(
            shape, lambda node: score_links(request, node, policy) or None
        )

    def _updated(
        self, shape: RequestShape, judge: Callable[[Node], int | None]
    ) -> Mapping[NodeName, int]:
        with self._lock:
            position, scores = self._kept.get(shape, (-1, {}))
            position, names = self._ledger.changed_since(position)
            if names is None:
                scores, names = {}, [node.name for node in self._ledger.nodes()]
            nodes = {name: self._ledger.node(name) for name in names}
            judged = ((name, judge(node)) for name, node in nodes.items() if node)
            now = {name: value for name, value in judged if value is not None}
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
