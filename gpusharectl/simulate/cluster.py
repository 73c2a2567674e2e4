"""A cluster in memory with the books that the extender keeps of a real one.

What is written goes to the embedded API server; what it then tells is read into the
books, as the extender's reflectors do; and what is decided, ``schedule`` decides. There
is no other path by which a pod could get a card.

The time of a simulation, which passes only where the scenario says so.

The nodes that each kind of pod may have, kept between pods and mended.

As ``gpushare.domain.cache`` does for the extender's filter, with what the filters of
kube-scheduler's own look at beside the cards: a trace asks this ten thousand times of a
thousand nodes, of which few change between two pods.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, count

from gpushare.cache.nodes import NodeBook
from gpushare.cache.pods import PodBook
from gpushare.domain.frag.policy import Packer
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName, Placement, PodRef, PodRequest
from gpushare.domain.placement import refusal, schedule, score
from gpushare.domain.policies import Choice, Policy
from gpushare.domain.refusal import Refusal
from gpushare.fakeapi.cluster import Embedded
from gpushare.kube import codec, names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Kind, Target, WatchEvent
from gpushare.kube.codec import refusal_text
from gpusharectl.simulate.node_filters import (
    Traits,
    Wish,
    keeps_away,
    lacks,
    traits_of,
    wish_of,
)

_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
_MOST_S = 200e9
"""Some 6,000 years; the calendar of Python ends a little later."""


@dataclass(slots=True)
class Clock:
    """Seconds since the beginning."""

    now_s: float = 0.0

    def moment(self) -> datetime:
        """Give the time of day, for timestamps, which stand still at their end."""
        return _BEGINNING + timedelta(seconds=min(self.now_s, _MOST_S))


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


_FOREVER_S = 1e12
_DEADLINE_S = 4.0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a pod was not placed: nodes by reason, or what is wrong with the pod."""

    reasons: Mapping[str, int]
    nodes: int
    """How many there are; some may have several reasons."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A pod that has come, and what it asks."""

    ref: PodRef
    question: Question


class World:
    """Nodes and pods, and what is decided about them; for one thread."""

    def __init__(self, choice: Choice) -> None:
        self.clock = Clock()
        self.learns = True
        """Whether ``frag`` learns of pods that come; not while room is counted."""
        self.hosts = Hosts()
        self.ledger = Ledger()
        self._packer = Packer(self.ledger, self.hosts)
        self.choice = replace(choice, packer=self._packer)
        self.candidates = Candidates(self.ledger, self.hosts)
        self._uids = (f"simulated-{number}" for number in count(1))
        self._uid = ""
        self.cluster = Embedded(
            now=self.clock.moment,
            clock=lambda: 0.0,
            new_uid=self._new_uid,
            bookmark_every_s=0.0,
        )
        self._pods = PodBook(
            self.ledger, self.choice, hosts=self.hosts, on_new=self._see
        )
        self._nodes = NodeBook(
            self.ledger, set_cards=self._pods.set_cards, hosts=self.hosts
        )
        self._node_watch = self._watch(Kind.NODES)
        self._pod_watch = self._watch(Kind.PODS)
        self._catch_up()

    def add_node(self, node: Json) -> None:
        """Add a node, whatever is on it."""
        self.cluster.create(Kind.NODES, node)
        self._catch_up()
        self.candidates.put(NodeName(node["metadata"]["name"]), traits_of(node))

    def close_node(self, name: NodeName) -> None:
        """Let nothing more on a node."""
        closed = {"spec": {"unschedulable": True}}
        node = self.cluster.patch(Kind.NODES, "", name, closed)
        self._catch_up()
        self.candidates.put(name, traits_of(node))

    def remove_node(self, name: NodeName) -> None:
        """Take a node away; its pods must have gone."""
        self.cluster.delete(Kind.NODES, "", name)
        self._catch_up()
        self.candidates.drop(name)

    def untouched(self) -> int:
        """Count the cards of which nobody holds anything, on nodes that take pods."""
        pages = self.ledger.nodes()
        takes = self.candidates.takes
        return sum(len(page.untouched) for page in pages if takes(page.name))

    def add_bound(self, pod: Json) -> PodRef:
        """Add a pod that runs already, by its own UID: its placement names it."""
        self._uid = str(pod["metadata"].get("uid") or "")
        made = self.cluster.create(Kind.PODS, pod)
        self._catch_up()
        self.candidates.count(NodeName(pod["spec"]["nodeName"]), 1)
        return codec.pod_ref(made)

    def add(self, pod: Json) -> Newcomer | Refusal:
        """Add a pod that waits; a refusal where no node could ever take it."""
        made = self.cluster.create(Kind.PODS, pod)
        self._catch_up()
        ref = codec.pod_ref(made)
        request = codec.pod_request(made, ref)
        if isinstance(request, Refusal):
            return request
        policy = self.choice.policy(request.policy)
        if isinstance(policy, Refusal):
            return policy
        self._learn()
        return Newcomer(ref, self._question(request, policy, made))

    def place(self, newcomer: Newcomer) -> Placement | Refused:
        """Decide where the pod goes, and bind it there; or say why it must wait."""
        question = newcomer.question
        fitting = self.candidates.offered(question)
        decided = self._decided(question, fitting)
        if not isinstance(decided, Placement):
            reasons = self.candidates.reasons(question)
            return Refused(reasons, len(self.candidates.names()))
        self._bind(newcomer.ref, decided)
        return decided

    def take_away(self, ref: PodRef, node: NodeName | None) -> None:
        """Delete a pod, at once; ``node`` None for one that waits."""
        self.cluster.delete(
            Kind.PODS, ref.namespace, ref.name, grace_period_s=0, uid=ref.uid
        )
        self._catch_up()
        if node is not None:
            self.candidates.count(node, -1)

    def _decided(
        self, question: Question, fitting: tuple[NodeName, ...]
    ) -> Placement | Mapping[NodeName, Refusal]:
        pages = (self.ledger.node(name) for name in fitting)
        found = [page for page in pages if page is not None]
        return schedule(question.request, found, question.policy)

    def _bind(self, ref: PodRef, decided: Placement) -> None:
        at = self.clock.moment().isoformat()
        told = {names.PLACEMENT: encode_placement(decided, at)}
        self.cluster.bind(
            Target(ref.namespace, ref.name, ref.uid),
            decided.node,
            told if decided.shares else {},
            timeout_s=_DEADLINE_S,
        )
        self._catch_up()
        self.candidates.count(decided.node, 1)

    def _question(self, request: PodRequest, policy: Policy, pod: Json) -> Question:
        return Question(request, policy, wish_of(pod, request.host))

    def _see(self, request: PodRequest) -> None:
        if self.learns:
            self._packer.see(request)

    def _learn(self) -> None:
        if self._packer.due:
            self._packer.learn()

    def _new_uid(self) -> str:
        uid, self._uid = self._uid, ""
        return uid or next(self._uids)

    def _watch(self, kind: Kind) -> Iterator[WatchEvent]:
        return self.cluster.watch(kind, resource_version="0", timeout_s=_FOREVER_S)

    def _catch_up(self) -> None:
        """Read into the books all that the API server has told by now."""
        for stream, book in (
            (self._node_watch, self._nodes),
            (self._pod_watch, self._pods),
        ):
            # Bookmarks come without a pause: the first one means that all is read.
            for event in stream:
                if event.type == "BOOKMARK":
                    break
                book.apply(event)
