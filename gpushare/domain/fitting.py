"""The nodes on which a shape of request fits, kept between requests.

A Deployment's pods all ask the same, and between two of them few nodes change. So each
shape's answer is kept, and mended from the ledger's journal when it is asked again: the
cost of a filter then hangs on the nodes that changed, not on the pods there are.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from threading import Lock

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.scheduling import refusal
from gpushare.domain.summary import Refusal

Judge = Callable[[Node], Refusal | None]
Shape = object
"""Any hashable value that tells requests with different answers apart."""

_MOST_SHAPES = 64
"""Kept at a time: at 10,000 nodes a shape is about a megabyte."""


@dataclass(slots=True)
class _Kept:
    position: int = -1
    fits: set[NodeName] = field(default_factory=set)
    refused: dict[Refusal, set[NodeName]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def put(self, name: NodeName, no: Refusal | None, *, known: bool) -> None:
        """Move a node to where it belongs now; nowhere, when it is not known."""
        groups = [self.fits, *self.refused.values()]
        if known:
            here = self.fits if no is None else self.refused.setdefault(no, set())
            # First in, then out: another thread may read, and must find it somewhere.
            here.add(name)
            groups = [group for group in groups if group is not here]
        for group in groups:
            group.discard(name)


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a shape fits, and elsewhere which nodes are refused for which reason.

    Live views, to be read at once; a node in none is unknown to the ledger. There are
    few reasons and many nodes, so the nodes are kept by reason.
    """

    fits: set[NodeName]
    refused: Mapping[Refusal, AbstractSet[NodeName]]

    def refusal(self, name: NodeName) -> Refusal | None:
        """Say why a node is refused; None where it fits or is not known."""
        groups = tuple(self.refused.items())
        return next((no for no, group in groups if name in group), None)


class Fitting:
    """Answers per shape over one ledger, mended as its nodes change."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._shapes: OrderedDict[Shape, _Kept] = OrderedDict()
        self._lock = Lock()

    def answer(self, request: PodRequest, policy: Policy) -> Answer:
        """Say where the request fits now."""
        several = len(request.claims) > 1
        shape = (
            tuple(claim.amount for claim in request.claims),
            (policy.name, policy.card_order) if several else None,
            request.cards,
        )
        return self.judged(shape, lambda node: refusal(request, node, policy))

    def judged(self, shape: Shape, judge: Judge) -> Answer:
        """Say which nodes a judge lets through; equal shapes must judge equally."""
        kept = self._kept(shape)
        with kept.lock:
            kept.position, names = self._ledger.changed_since(kept.position)
            if names is None:
                kept.fits.clear()
                kept.refused.clear()
                names = _side_by_side(node.name for node in self._ledger.nodes())
            self._mend(kept, names, judge)
        return Answer(kept.fits, kept.refused)

    def _mend(self, kept: _Kept, names: Iterable[NodeName], judge: Judge) -> None:
        for name in dict.fromkeys(names):
            node = self._ledger.node(name)
            no = None if node is None else judge(node)
            kept.put(name, no, known=node is not None)

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
