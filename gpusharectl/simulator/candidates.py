"""The nodes that each kind of pod may have, kept between pods and mended.

As ``gpushare.domain.fitting`` does for the extender's filter, with what the filters of
kube-scheduler's own look at beside the cards: a trace asks this ten thousand times of a
thousand nodes, of which few change between two pods.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.policies import Policy
from gpushare.domain.scheduling import refusal, score
from gpushare.kube.codec import refusal_text
from gpusharectl.simulator.nodewishes import Traits, Wish, keeps_away, lacks

_MOST_KINDS = 512


@dataclass(frozen=True, slots=True)
class Question:
    """One pod's request as all filters see it; equal kinds have equal answers."""

    request: PodRequest
    policy: Policy
    wish: Wish

    @property
    def kind(self) -> object:
        """Tell requests with different answers apart."""
        claims = self.request.claims
        amounts = tuple(claim.amount for claim in claims)
        return (amounts, self.policy.name, self.request.cards, self.wish)


@dataclass(slots=True)
class _Kept:
    """Where one kind of pod fits, by how much the policy likes each node."""

    position: int = 0
    liked: dict[int, dict[NodeName, None]] = field(default_factory=dict)
    refused: dict[NodeName, tuple[str, ...]] = field(default_factory=dict)

    def drop(self, name: NodeName) -> None:
        """Take a node from wherever it is."""
        self.refused.pop(name, None)
        for alike in self.liked.values():
            alike.pop(name, None)

    def put(self, name: NodeName, judged: tuple[str, ...] | int) -> None:
        """Put a node where it belongs: its reasons, or the policy's score."""
        if isinstance(judged, int):
            self.liked.setdefault(judged, {})[name] = None
        else:
            self.refused[name] = judged

    def best(self) -> Iterator[NodeName]:
        """Give the nodes of the highest score there is."""
        scores = [score for score, alike in self.liked.items() if alike]
        return iter(self.liked[max(scores)] if scores else ())


class Candidates:
    """Which nodes pass all filters, for each kind of pod, over one ledger."""

    def __init__(self, ledger: Ledger, hosts: Hosts) -> None:
        self._ledger = ledger
        self._hosts = hosts
        self._traits: dict[NodeName, Traits] = {}
        self._pods: Counter[NodeName] = Counter()
        self._changed: list[NodeName] = []
        self._kinds: OrderedDict[object, _Kept] = OrderedDict()
        self._looked = 0
        self._looks: dict[NodeName, int] = {}
        self._numbers: dict[object, int] = {}

    def put(self, name: NodeName, traits: Traits) -> None:
        """Write down a node, new or changed."""
        self._traits[name] = traits
        self._changed.append(name)

    def drop(self, name: NodeName) -> None:
        """Strike out a node that is gone."""
        self._traits.pop(name, None)
        self._changed.append(name)

    def count(self, name: NodeName, pods: int) -> None:
        """Note that so many pods came to a node, or went where it is below zero."""
        self._pods[name] += pods
        self._changed.append(name)

    def names(self) -> tuple[NodeName, ...]:
        """Give all nodes that there are."""
        return tuple(self._traits)

    def position(self) -> int:
        """Give the end of what changed, to ask from later."""
        return len(self._changed)

    def changed_since(self, position: int) -> set[NodeName]:
        """Name the nodes that changed, or that anything on them did."""
        return set(self._changed[position:])

    def knows(self, name: NodeName) -> bool:
        """Tell whether there is such a node."""
        return name in self._traits

    def takes(self, name: NodeName) -> bool:
        """Tell whether there is such a node, and it is not closed to pods."""
        traits = self._traits.get(name)
        return traits is not None and not traits.closed

    def offered(self, question: Question) -> tuple[NodeName, ...]:
        """Name the nodes that pass all filters now, and have a chance.

        Where the policy scores each node by itself, ``schedule`` passes over all but
        those of the highest score, and of nodes that are alike in everything it takes
        the first by name: the others need not be looked at again.
        """
        kept = self._mended(question)
        if question.policy.chooser is None:
            names: Iterable[NodeName] = kept.best()
        else:
            names = chain.from_iterable(kept.liked.values())
        cards = question.request.cards
        if cards is not None and cards.uuids:
            # To such a pod no two nodes are alike.
            return tuple(names)
        return self._first_of_each(names)

    def reasons(self, question: Question) -> Mapping[str, int]:
        """Say how many nodes are refused for which reason; some have several."""
        return Counter(chain.from_iterable(self._mended(question).refused.values()))

    def judge(self, question: Question, name: NodeName) -> tuple[str, ...]:
        """Say why a node that is there cannot take the pod; nothing where it can."""
        traits = self._traits[name]
        slots = None if traits.pods is None else traits.pods - self._pods[name]
        away = keeps_away(traits, question.wish)
        if away is not None:
            return (away,)
        lacking = lacks(question.wish, self._hosts.free(name), slots)
        if lacking or not question.request.claims:
            return lacking
        page = self._ledger.node(name)
        if page is None:
            return ()
        found = refusal(question.request, page, question.policy)
        return () if found is None else (refusal_text(found),)

    def _first_of_each(self, names: Iterable[NodeName]) -> tuple[NodeName, ...]:
        looks = self._looks
        for name in self.changed_since(self._looked):
            looks[name] = self._look(name)
        self._looked = len(self._changed)
        first: dict[int, NodeName] = {}
        for name in names:
            look = looks[name]
            if look not in first or name < first[look]:
                first[look] = name
        return tuple(first.values())

    def _look(self, name: NodeName) -> int:
        """Give a number that nodes share which no policy can tell apart."""
        page = self._ledger.node(name)
        cards: tuple[object, ...] = ()
        if page is not None:
            untouched = {card.uuid for card in page.untouched}
            cards = tuple(
                (
                    page.free.get(card.uuid),
                    card.uuid in untouched,
                    card.index,
                    card.units,
                    card.model,
                )
                for card in page.cards
            )
        look = (cards, self._hosts.free(name), self._hosts.allocatable(name))
        return self._numbers.setdefault(look, len(self._numbers))

    def _liking(self, question: Question, name: NodeName) -> int:
        page = self._ledger.node(name)
        return 0 if page is None else score(page, question.policy)

    def _mended(self, question: Question) -> _Kept:
        kind = question.kind
        kept = self._kinds.get(kind)
        if kept is None:
            kept = self._kinds[kind] = _Kept()
            if len(self._kinds) > _MOST_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(kind)
        for name in self.changed_since(kept.position):
            kept.drop(name)
            if name in self._traits:
                no = self.judge(question, name)
                kept.put(name, no or self._liking(question, name))
        kept.position = len(self._changed)
        return kept
