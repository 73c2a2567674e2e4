"""Keep the cluster of a simulation in memory, with the extender's own cache over it.

Every change is written to the API server in memory. Its watch events go into the cache,
as the reflectors of the extender do it, and ``schedule`` decides over that cache. There
is no other way by which a pod gets a card.

``Candidates`` remembers for each kind of pod which nodes pass all filters, and looks
again only at nodes that changed. A trace has ten thousand pods and a thousand nodes.

``ClusterGauge`` measures fragmentation as in "Beware of Fragmentation" (USENIX ATC
2023): the part of the free units that a random pod of those seen cannot use. Either no
card of the node has enough, or its CPU, memory or labels do not fit, or the pod needs
more untouched cards than there are.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, count

from gpushare.domain import links
from gpushare.domain.frag.policy import Packer
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    CardUUID,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    Refusal,
)
from gpushare.domain.node import Node
from gpushare.domain.placement import find_refusal, place, schedule, score_node
from gpushare.domain.policies import Policy, PolicyChoice
from gpushare.informers.nodes import NodeInformer
from gpushare.informers.pods import PodInformer
from gpushare.kube import codec, facts, names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Json, Kind, PodTarget
from gpushare.kube.codec import effective_request, refusal_text
from gpushare.kube.node_filters import (
    Constraints,
    NodeProperties,
    find_bar,
    find_lacks,
    find_lacks_in_sum,
    read_constraints,
    read_properties,
)
from gpusharectl.demo.fakeapi.cluster import Embedded

_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
_MOST_S = 200e9
"""About 6,000 years; the calendar of Python ends a little later."""


_MOST_KINDS = 512


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """What a pod needs, as all filters see it; equal kinds get equal answers."""

    request: PodRequest
    policy: Policy
    constraints: Constraints

    @property
    def kind(self) -> object:
        """Return a key that is equal for requests with equal answers."""
        claims = self.request.claims
        amounts = tuple(claim.amount for claim in claims)
        request = self.request
        hard = (request.host, self.constraints)
        return (amounts, self.policy.name, request.cards, *hard)

    @property
    def total(self) -> Amount:
        """What kube-scheduler compares with the sums of a node."""
        return sum((claim.amount for claim in self.request.claims), NOTHING)

    @property
    def priority(self) -> int:
        """The pod's priority."""
        return self.request.pod.priority


@dataclass(slots=True)
class _FittingNodes:
    """The nodes for one kind of pod, by the score that the policy gives them."""

    position: int = 0
    liked: dict[int, set[NodeName]] = field(default_factory=dict)
    """All under 0 if the policy has a chooser, which scores them itself."""
    refused: dict[NodeName, tuple[str, ...]] = field(default_factory=dict)
    refused_upto: int = 0
    """The position of ``refused``, which few pods need."""


class Candidates:
    """The nodes that pass all filters, for each kind of pod, over one ledger."""

    def __init__(self, ledger: Ledger, hosts: Hosts) -> None:
        self._ledger = ledger
        self._hosts = hosts
        self.properties: dict[NodeName, NodeProperties] = {}
        """Of all nodes that exist."""
        self._pods: Counter[NodeName] = Counter()
        self._counted: dict[NodeName, Amount] = {}
        self._changed: list[NodeName] = []
        self._kinds: OrderedDict[object, _FittingNodes] = OrderedDict()
        self._looked = 0
        self._looks: dict[NodeName, int] = {}
        self._numbers: dict[object, int] = {}
        self._linked: set[NodeName] = set()
        """Nodes with links, as far as they were looked at."""

    def put(self, name: NodeName, properties: NodeProperties) -> None:
        """Record a node that is new or changed."""
        self.properties[name] = properties
        self._changed.append(name)

    def drop(self, name: NodeName) -> None:
        """Remove a node."""
        self.properties.pop(name, None)
        self._changed.append(name)

    def count(self, name: NodeName, pods: int, cards: Amount = NOTHING) -> None:
        """Add to the number of pods on a node, and to the sum of what they request.

        Both may be negative.
        """
        self._pods[name] += pods
        self._counted[name] = self._counted.get(name, NOTHING) + cards
        self._changed.append(name)

    def changed_since(self, position: int) -> tuple[set[NodeName], int]:
        """Return the nodes that changed since a position, or whose pods did.

        Beside it is the present position, for the next call.
        """
        return set(self._changed[position:]), len(self._changed)

    def schedule(self, needs: PodNeeds) -> Placement | None:
        """Place a pod on the best of the nodes that pass all filters; None if none.

        It decides as ``placement.schedule`` does, without judging the nodes again.
        """
        liked, policy, request = self._mended(needs).liked, needs.policy, needs.request
        if policy.chooser is not None and (names := liked.get(0)):
            chosen = policy.chooser.best(request, names, policy)
            node = None if chosen is None else self._ledger.node(chosen)
            placed = None if node is None else place(request, node, policy)
            if isinstance(placed, Placement):
                return placed
        nodes = filter(None, map(self._ledger.node, self._offered(needs, liked)))
        decided = schedule(request, nodes, policy)
        return decided if isinstance(decided, Placement) else None

    def _offered(
        self, needs: PodNeeds, liked: Mapping[int, Iterable[NodeName]]
    ) -> tuple[NodeName, ...]:
        """Return the nodes that could be chosen.

        If the policy scores each node by itself, ``schedule`` takes one of those with
        the highest score, and of nodes that look alike the first by name. The others
        are left out. Links are scored among all nodes.
        """
        self._look_again()
        scores = [score for score, alike in liked.items() if alike]
        names: Iterable[NodeName] = liked[max(scores)] if scores else ()
        if self._linked and links.links_count_for(needs.request):
            names = chain.from_iterable(liked.values())
        cards = needs.request.cards
        if cards is not None and cards.uuids:
            # A pod that names UUIDs sees a difference between all nodes.
            return tuple(names)
        return self._first_of_each(names)

    def reasons(self, needs: PodNeeds) -> Mapping[str, int]:
        """Count the nodes that are refused for each reason; a node may have several."""
        kept = self._mended(needs)
        changed, kept.refused_upto = self.changed_since(kept.refused_upto)
        for name in changed:
            kept.refused.pop(name, None)
            if name in self.properties and (reasons := self.judge(needs, name)):
                kept.refused[name] = reasons
        return Counter(chain.from_iterable(kept.refused.values()))

    def judge(self, needs: PodNeeds, name: NodeName) -> tuple[str, ...]:
        """Return the reasons why a node cannot take the pod; empty if it can."""
        properties = self.properties[name]
        slots = None if properties.pods is None else properties.pods - self._pods[name]
        closed = find_bar(properties, needs.constraints)
        if closed is not None:
            return (closed.message,)
        lacking = find_lacks(needs.request.host, self._hosts.free(name), slots)
        lacking += find_lacks_in_sum(needs.total, self._left_in_sum(name))
        if lacking or not needs.request.claims:
            return lacking
        node = self._ledger.node(name)
        reason = node and find_refusal(needs.request, node, needs.policy)
        return (refusal_text(reason),) if reason else ()

    def _left_in_sum(self, name: NodeName) -> Amount | None:
        has = self.properties[name].cards
        return None if has is None else has - self._counted.get(name, NOTHING)

    def accepts(self, constraints: Constraints, name: NodeName) -> bool:
        """Return whether a node takes a pod, apart from cards, CPU and memory."""
        properties = self.properties.get(name)
        if properties is None or find_bar(properties, constraints) is not None:
            return False
        return properties.pods is None or self._pods[name] < properties.pods

    def _look_again(self) -> None:
        changed, self._looked = self.changed_since(self._looked)
        for name in changed:
            self._looks[name] = self._look(name)

    def _first_of_each(self, names: Iterable[NodeName]) -> tuple[NodeName, ...]:
        first: dict[int, NodeName] = {}
        for name in names:
            look = self._looks[name]
            if look not in first or name < first[look]:
                first[look] = name
        return tuple(first.values())

    def _look(self, name: NodeName) -> int:
        """Return a number that is equal for nodes that no policy can tell apart."""
        node = self._ledger.node(name) or Node(name)
        untouched = {card.uuid for card in node.untouched}
        cards = tuple(
            (
                node.free.get(card.uuid),
                card.uuid in untouched,
                card.index,
                card.units,
                card.model,
                card.links,
            )
            for card in node.cards
        )
        self._linked.discard(name)
        if any(card.links for card in node.cards):
            self._linked.add(name)
        look = (cards, self._hosts.free(name), self._hosts.allocatable(name))
        return self._numbers.setdefault(look, len(self._numbers))

    def _mended(self, needs: PodNeeds) -> _FittingNodes:
        kind = needs.kind
        kept = self._kinds.get(kind)
        if kept is None:
            kept = self._kinds[kind] = _FittingNodes()
            if len(self._kinds) > _MOST_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(kind)
        changed, kept.position = self.changed_since(kept.position)
        for alike in kept.liked.values():
            alike.difference_update(changed)
        scored = needs.policy.chooser is None
        for name in self._fitting(needs, changed):
            node = self._ledger.node(name) if scored else None
            likes = score_node(node, needs.policy) if node is not None else 0
            kept.liked.setdefault(likes, set()).add(name)
        return kept

    def _fitting(
        self, needs: PodNeeds, names: Iterable[NodeName]
    ) -> Iterator[NodeName]:
        """Yield the nodes for which ``judge`` has no reason, without the reasons."""
        request, constraints = needs.request, needs.constraints
        claims, host, cards = request.claims, request.host, needs.total
        free_of, accepts = self._hosts.free, self.accepts
        for name in names:
            if host is not None and not host.fits(free_of(name)):
                continue
            if not accepts(constraints, name):
                continue
            if find_lacks_in_sum(cards, self._left_in_sum(name)):
                continue
            node = self._ledger.node(name) if claims else None
            if node is None:
                yield name
            elif len(claims) == 1:
                # Most pods have one; it needs no search.
                if node.summary_for(request).fits(claims[0]):
                    yield name
            elif find_refusal(request, node, needs.policy) is None:
                yield name


_FOREVER_S = 1e12
_DEADLINE_S = 4.0


@dataclass(frozen=True, slots=True)
class NodeRefusals:
    """Why a pod was not placed: the number of nodes for each reason."""

    reasons: Mapping[str, int]
    nodes: int
    """How many nodes there are; one may have several reasons."""


class SimulatedCluster:
    """Nodes, pods and the decisions about them; for one thread."""

    def __init__(self, choice: PolicyChoice) -> None:
        self.now_s = 0.0
        """Seconds since the beginning."""
        self.learns = True
        """Whether the policy ``frag`` learns from new pods."""
        self.hosts = Hosts()
        self.ledger = Ledger()
        self._packer = Packer(self.ledger, self.hosts)
        self.choice = replace(choice, packer=self._packer)
        self.candidates = Candidates(self.ledger, self.hosts)
        self._uids = (f"simulated-{number}" for number in count(1))
        self._uid = ""
        self.api = Embedded(
            now=self._moment,
            clock=lambda: 0.0,
            new_uid=self._new_uid,
            bookmark_every_s=0.0,
        )
        ledger, hosts = self.ledger, self.hosts
        pods = PodInformer(ledger, self.choice, hosts=hosts, on_new=self._see)
        nodes = NodeInformer(ledger, set_cards=pods.set_cards, hosts=hosts)
        self._streams = [
            (self.api.watch(kind, resource_version="0", timeout_s=_FOREVER_S), informer)
            for kind, informer in ((Kind.NODES, nodes), (Kind.PODS, pods))
        ]
        self._catch_up()

    def add_node(self, node: Json) -> None:
        """Add a node."""
        self.api.create(Kind.NODES, node)
        self._catch_up()
        self.candidates.put(NodeName(node["metadata"]["name"]), read_properties(node))

    def close_node(self, name: NodeName) -> None:
        """Mark a node unschedulable."""
        closed = {"spec": {"unschedulable": True}}
        node = self.api.patch(Kind.NODES, "", name, closed)
        self._catch_up()
        self.candidates.put(name, read_properties(node))

    @contextmanager
    def cordoned(self, name: NodeName, cards: Iterable[CardUUID]) -> Iterator[None]:
        """Keep new pods off cards of a node meanwhile, as an operator would."""
        before = facts.annotation(self.api.get(Kind.NODES, "", name), names.CORDON)
        self._cordon(name, ",".join(filter(None, (before, *cards))))
        yield
        self._cordon(name, before)

    def _cordon(self, name: NodeName, cards: str) -> None:
        notes = {"metadata": {"annotations": {names.CORDON: cards or None}}}
        node = self.api.patch(Kind.NODES, "", name, notes)
        self._catch_up()
        self.candidates.put(name, read_properties(node))

    def remove_node(self, name: NodeName) -> None:
        """Remove a node; its pods must be deleted before."""
        self.api.delete(Kind.NODES, "", name)
        self._catch_up()
        self.candidates.drop(name)

    def untouched(self) -> int:
        """Count the cards that hold nothing, on nodes that accept pods."""
        known = self.candidates.properties.items()
        open_names = (name for name, properties in known if not properties.closed)
        nodes = map(self.ledger.node, open_names)
        return sum(len(node.untouched) for node in nodes if node is not None)

    def hold(self, claim: Placement) -> None:
        """Charge what a ResourceClaim has of the cards of its node, for good."""
        self.ledger.record(claim)

    def add_bound(self, pod: Json) -> PodRef:
        """Add a pod that already runs, by its own UID, which its placement names."""
        self._uid = str(pod["metadata"].get("uid") or "")
        made = self.api.create(Kind.PODS, pod)
        self._catch_up()
        self.candidates.count(
            NodeName(pod["spec"]["nodeName"]), 1, effective_request(made)
        )
        return codec.read_pod_ref(made)

    def add(self, pod: Json) -> tuple[PodRef, PodNeeds | Refusal]:
        """Add a pending pod; a refusal if no node can ever take it."""
        made = self.api.create(Kind.PODS, pod)
        self._catch_up()
        ref = codec.read_pod_ref(made)
        request = codec.read_pod_request(made, ref)
        if isinstance(request, Refusal):
            return ref, request
        policy = self.choice.policy(request.policy)
        if isinstance(policy, Refusal):
            return ref, policy
        if self._packer.due:
            self._packer.learn()
        return ref, PodNeeds(request, policy, read_constraints(made))

    def place(self, ref: PodRef, needs: PodNeeds) -> Placement | NodeRefusals:
        """Decide where the pod goes and bind it there, or return why it must wait."""
        decided = self.candidates.schedule(needs)
        if decided is None:
            reasons = self.candidates.reasons(needs)
            return NodeRefusals(reasons, len(self.candidates.properties))
        note = encode_placement(decided, self._moment().isoformat())
        self.api.bind(
            PodTarget(ref.namespace, ref.name, ref.uid),
            decided.node,
            {names.PLACEMENT: note} if decided.shares else {},
            timeout_s=_DEADLINE_S,
        )
        self._catch_up()
        self.candidates.count(decided.node, 1, needs.total)
        return decided

    def take_away(self, ref: PodRef, node: NodeName | None) -> None:
        """Delete a pod at once; ``node`` is None for a pending one."""
        last = self.api.delete(
            Kind.PODS, ref.namespace, ref.name, grace_period_s=0, uid=ref.uid
        )
        self._catch_up()
        if node is not None:
            self.candidates.count(node, -1, NOTHING - effective_request(last))

    def _moment(self) -> datetime:
        """Return the time of day for timestamps, at most the calendar's last."""
        return _BEGINNING + timedelta(seconds=min(self.now_s, _MOST_S))

    def _see(self, request: PodRequest) -> None:
        if self.learns:
            self._packer.see(request)

    def _new_uid(self) -> str:
        uid, self._uid = self._uid, ""
        return uid or next(self._uids)

    def _catch_up(self) -> None:
        """Apply all outstanding watch events to the cache."""
        for stream, informer in self._streams:
            # Bookmarks come without a pause, so the first one means that all is read.
            for event in stream:
                if event.type == "BOOKMARK":
                    break
                informer.apply(event)


_TYPICAL = 0.95
"""The most frequent kinds of pods are used, up to this share of all pods."""
_MOST_TYPICAL = 60


class _Sums:
    """Totals over all nodes of several figures of each, kept up to date."""

    def __init__(self, figures: int) -> None:
        self.totals = self._none = (0,) * figures
        self._by_node: dict[NodeName, tuple[int, ...]] = {}

    def put(self, name: NodeName, *values: int) -> None:
        before = self._by_node.get(name, self._none)
        changes = zip(self.totals, before, values, strict=True)
        self.totals = tuple(total - old + new for total, old, new in changes)
        self._by_node[name] = values


@dataclass(slots=True)
class _PodKind:
    needs: PodNeeds
    position: int = 0
    unusable: _Sums = field(default_factory=lambda: _Sums(1))


class ClusterGauge:
    """Units and cores held and free over all nodes, kept up to date."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._position = 0
        self._sums = _Sums(5)
        self._seen: Counter[object] = Counter()
        self._kinds: dict[object, _PodKind] = {}

    def see(self, needs: PodNeeds) -> None:
        """Count a new pod, if it asks for cards."""
        if needs.request.claims:
            self._seen[needs.kind] += 1
            self._kinds.setdefault(needs.kind, _PodKind(needs))

    def full(self) -> tuple[int, ...]:
        """Return units held, all units, cores held, all cores and units free."""
        candidates = self._cluster.candidates
        changed, self._position = candidates.changed_since(self._position)
        for name in changed:
            node = self._cluster.ledger.node(name) or Node(name)
            charged = node.charged.values()
            self._sums.put(
                name,
                sum(units for _, units in charged),
                sum(card.units for card in node.cards),
                sum(cores for cores, _ in charged),
                CORES_PER_CARD * len(node.cards),
                sum(max(0, room.units) for room in node.free.values()),
            )
        return self._sums.totals

    def fragmented(self) -> float | None:
        """Return the share of the free units that a typical pod cannot use, 0 to 1."""
        free = self.full()[-1]
        typical = self._typical()
        if not free or not typical:
            return None
        lost = sum(number * self._unusable(kind) for kind, number in typical)
        return lost / sum(number for _, number in typical) / free

    def units_of(self, needs: PodNeeds) -> int:
        """Return the units that a pod asks for; a whole card is an average one."""
        _, units, _, cores, _ = self._sums.totals
        cards = cores // CORES_PER_CARD
        mean = units // cards if cards else 0
        claims = needs.request.claims
        return sum(max(each.amount.units, each.whole_cards * mean) for each in claims)

    def _typical(self) -> list[tuple[_PodKind, int]]:
        """Return the most frequent kinds with the number of their pods."""
        uncounted = _TYPICAL * self._seen.total()
        typical = []
        for kind, number in self._seen.most_common(_MOST_TYPICAL):
            if uncounted <= 0:
                break
            typical.append((self._kinds[kind], number))
            uncounted -= number
        return typical

    def _unusable(self, kind: _PodKind) -> int:
        candidates = self._cluster.candidates
        changed, kind.position = candidates.changed_since(kind.position)
        for name in changed:
            node = self._cluster.ledger.node(name)
            value = 0
            if node is not None and node.cards and name in candidates.properties:
                fits = not candidates.judge(kind.needs, name)
                value = count_unusable_units(kind.needs, node, fits=fits)
            kind.unusable.put(name, value)
        return kind.unusable.totals[0]


def count_unusable_units(needs: PodNeeds, node: Node, *, fits: bool) -> int:
    """Return the free units of a node that the pod cannot use; all unless it fits."""
    request = needs.request
    free = {uuid: room for uuid, room in node.free.items() if room.units > 0}
    if not fits:
        return sum(room.units for room in free.values())
    whole = any(claim.whole_cards for claim in request.claims)
    least = min(request.claims, key=lambda claim: claim.amount.units).amount
    untouched = {card.uuid for card in node.untouched}
    lost = 0
    for card in node.cards:
        room = free.get(card.uuid)
        if room is None:
            continue
        usable = card.uuid in untouched if whole else least.fits(room)
        if not usable or request.limits(card):
            lost += room.units
    return lost
