"""What the commands show of a cluster: nodes, cards, pods on them, namespaces. Pure.

``inspect``, ``top`` and the screen after ``install`` draw an ``Overview``. It is also
what inspect prints as data, in the shape that ``gpusharectl.inspect`` promises.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from gpushare.domain.links import read_scores
from gpushare.domain.model import (
    NOTHING,
    Amount,
    Card,
    CardUUID,
    Claim,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
)
from gpushare.domain.node import FreeUnits, Node, find_free_units
from gpushare.domain.quantity import NotAQuantity, NotWhole, parse_whole
from gpushare.informers.shortage import find_shortage
from gpushare.kube import facts, names, words
from gpushare.kube.annotations import decode_isolation
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord
from gpushare.kube.resource_claims.allocated import ResourceClaimUser
from gpusharectl.output import INLINE, VERSION, Data, encode
from gpusharectl.state.read import ClusterState, Placements, SeenPod, Setup, Trouble
from gpusharectl.state.troubles import find_troubles

PLUGIN_READY = "ready"
_PLUGIN = {None: "missing", False: "not ready", True: PLUGIN_READY}
MOST_USERS = 2
"""Of more pods that share a claim only the first are named."""
COUNTED = (names.MEMORY, names.CORE, names.BITFUSION_GPU)
"""The resources of which a quota is shown."""


class Stay(StrEnum):
    """How a pod comes to be on a card."""

    PLACED = "placed"
    UNPLACED = "unplaced"
    """It runs on the node, its card is not known: charged on each card."""
    NOMINATED = "nominated"
    """It is nominated; the pods that it preempts are being deleted."""


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """How a ResourceClaim has its share, and the pods for which it is reserved.

    ``reserved``: the extender has not seen the allocation yet. ``used_by`` is None if
    the pods are not known.
    """

    claim: Literal["allocated", "reserved"]
    used_by: tuple[ResourceClaimUser, ...] | None

    def __str__(self) -> str:
        """``claim, allocated for web-1``; pods that are not known are not named."""
        if self.used_by is None:
            return f"claim, {self.claim}"
        pods = words.listed((user.name for user in self.used_by), MOST_USERS)
        return f"claim, {self.claim} for {pods or 'no pod'}"


@dataclass(frozen=True, slots=True)
class PodShare:
    """What one pod has of one card.

    ``planned`` are the planned cards, if the pod is on other ones. ``waits`` is why a
    container does not start, in kubelet's words. ``isolation`` is the tier with which
    it started; empty for ``none``, or if the device plugin has not written it.
    ``by_claim`` is None for a pod; else ``pod`` is a ResourceClaim, and all that is
    said of pods is said of the claim's pods.
    """

    pod: PodRef = field(metadata=INLINE)
    amount: Amount = field(metadata=INLINE)
    whole: bool = False
    stay: Stay = Stay.PLACED
    planned: tuple[CardUUID, ...] = ()
    leaving: bool = False
    waits: str = ""
    isolation: str = ""
    by_claim: ClaimUse | None = field(default=None, metadata=INLINE)

    @property
    def users(self) -> tuple[ResourceClaimUser, ...] | None:
        """The pods of a claim; None if they are not known, or for a pod."""
        return self.by_claim.used_by if self.by_claim else None


@dataclass(frozen=True, slots=True)
class ShareOfGoneCard:
    """What a pod has of a card that its node no longer has."""

    share: PodShare = field(metadata=INLINE)
    card: CardUUID


@dataclass(frozen=True, slots=True)
class CardView:
    """A card, what is allotted of it, and the pods on it, the largest first.

    A nominated pod is not allotted its room, which is not free either. ``free`` is None
    for a closed card; it may be below zero. ``others`` is what pods of other namespaces
    have, if only those of one are shown.
    """

    card: Card = field(metadata=INLINE)
    allotted: Amount
    free: Amount | None
    others: Amount = NOTHING
    pods: tuple[PodShare, ...] = ()


@dataclass(frozen=True, slots=True)
class Offered:
    """What kubelet counts of a node's resources; None is not known."""

    cores: int | None
    units: int | None


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that shares cards, or should.

    ``ready`` is None if it is not known. ``labelled``: the device plugin is to run
    there, whose pod is in the state ``device_plugin``; empty in the demo.
    ``isolation`` is the node's tier, empty if it is not known. ``links`` are the scores
    of all pairs of cards, None if none is known. ``gone`` are pods on cards that the
    node no longer has.
    """

    name: str
    ready: bool | None
    schedulable: bool
    labelled: bool
    device_plugin: str
    offered: Offered
    isolation: str
    links: tuple[int, ...] | None
    complaint: str
    cards: tuple[CardView, ...]
    gone: tuple[ShareOfGoneCard, ...]


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pending pod and why it waits; ``room``: some card has room for it.

    An invalid request is one for nothing. ``since`` is when the pod was created,
    ``kube_scheduler`` that scheduler's message, ``nominated`` the node where pods are
    preempted for it.
    """

    pod: PodRef = field(metadata=INLINE)
    policy: str | None
    claims: tuple[Claim, ...]
    since: str
    because: str
    room: bool
    kube_scheduler: str
    nominated: str


@dataclass(frozen=True, slots=True)
class Quota:
    """One resource of a ResourceQuota; None is not known."""

    name: str
    resource: str
    hard: int | None
    used: int | None


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """What a namespace's pods hold; ``quotas`` is None if they could not be read."""

    name: str
    allotted: Amount
    quotas: tuple[Quota, ...] | None


@dataclass(frozen=True, slots=True)
class Overview:
    """All that inspect shows, of ``only`` one node if it is set.

    ``others`` counts the nodes that share no cards.

    ``pending`` and ``namespaces`` are the whole cluster's, whichever nodes are shown.
    ``claiming`` are pods without a node that have ResourceClaims, of whichever driver.
    ``free`` counts nodes that are ready and schedulable. If ``namespace`` is set, only
    its pods are here, the cards that they hold, and the warnings about them.
    """

    placements: Placements
    at: datetime
    nodes: tuple[NodeView, ...]
    only: str
    others: int
    pending: tuple[WaitingPod, ...]
    free: FreeUnits
    troubles: tuple[Trouble, ...]
    namespaces: tuple[NamespaceView, ...] = ()
    setup: Setup = Setup.INSTALLED
    namespace: str = ""
    claiming: tuple[str, ...] = ()

    def as_data(self) -> Data:
        """Return all of it, also what the screen leaves out."""
        units, allotted = self.units
        block = self.free.largest
        return {
            "v": VERSION,
            "at": self.at,
            "namespace": self.namespace or None,
            "setup": self.setup,
            "books": self.placements,
            "policy": self.placements.choice.default,
            "card_order": self.placements.choice.card_order,
            "totals": {
                "nodes": len(self.nodes),
                "other_nodes": self.others,
                "cards": len(self.cards),
                "units": units,
                "allotted_units": allotted,
                "units_without_cores": self.free.without_cores,
                "pending": len(self.pending),
            },
            "largest_free": block
            and {
                "node": block.node,
                "card": block.card.uuid,
                "index": block.card.index,
                **encode(block.free),
            },
            "nodes": self.nodes,
            "pending": self.pending,
            "pending_claims": self.claiming,
            "namespaces": self.namespaces,
            "warnings": self.troubles,
        }

    @property
    def cards(self) -> tuple[CardView, ...]:
        """All cards of all nodes shown."""
        return tuple(card for node in self.nodes for card in node.cards)

    @property
    def units(self) -> tuple[int, int]:
        """The units of these cards, and how many are allotted."""
        return sum_units((view.card, view.allotted) for view in self.cards)


def sum_units(cards: Iterable[tuple[Card, Amount]]) -> tuple[int, int]:
    """Return the units of cards, and how many are allotted.

    Of a card never more than it has.
    """
    pairs = list(cards)
    allotted = sum(min(amount.units, card.units) for card, amount in pairs)
    return sum(card.units for card, _ in pairs), allotted


def build_overview(
    state: ClusterState, only: str = "", of_host: Sequence[Trouble] = ()
) -> Overview:
    """Show all nodes that share cards or should, or only the one of this name.

    ``of_host`` are troubles that were found in this host's files.
    """
    nodes = {str(node.name): node for node in state.placements.nodes}
    known = {facts.name_of(node): node for node in state.nodes}
    shown = sorted(
        name
        for name in {*nodes, *known}
        if _shares_cards(nodes.get(name), known.get(name))
    )
    if only:
        shown = [only]
    return Overview(
        state.placements,
        state.now,
        tuple(_node(state, nodes.get(name) or Node(NodeName(name))) for name in shown),
        only,
        0 if only else len(known.keys() - set(shown)),
        tuple(_pending(state)),
        find_free_units(nodes[name] for name in shown if _gets_pods(known.get(name))),
        tuple(find_troubles(state, of_host)),
        _namespaces(state),
        state.setup,
        claiming=tuple(_claiming(state)),
    )


def filter_namespace(seen: Overview, namespace: str) -> Overview:
    """Return what an overview has of one namespace."""

    def is_mine(share: PodShare) -> bool:
        return share.pod.namespace == namespace

    nodes = []
    for node in seen.nodes:
        cards = tuple(
            _only(card, is_mine) for card in node.cards if any(map(is_mine, card.pods))
        )
        gone = tuple(gone for gone in node.gone if is_mine(gone.share))
        if cards or gone:
            nodes.append(replace(node, cards=cards, gone=gone))
    return replace(
        seen,
        namespace=namespace,
        nodes=tuple(nodes),
        pending=tuple(p for p in seen.pending if p.pod.namespace == namespace),
        claiming=tuple(
            name for name in seen.claiming if name.startswith(f"{namespace}/")
        ),
        namespaces=tuple(n for n in seen.namespaces if n.name == namespace),
        troubles=tuple(
            trouble
            for trouble in seen.troubles
            if trouble.about == namespace or trouble.about.startswith(f"{namespace}/")
        ),
    )


def _only(view: CardView, is_mine: Callable[[PodShare], bool]) -> CardView:
    mine = tuple(filter(is_mine, view.pods))
    amounts = (share.amount for share in mine if share.stay is not Stay.NOMINATED)
    return replace(view, pods=mine, others=view.allotted - sum(amounts, NOTHING))


def _shares_cards(node: Node | None, body: Json | None) -> bool:
    if node and (node.cards or node.placements or node.unplaced):
        return True
    return body is not None and (
        facts.is_labelled(body) or bool(facts.annotation(body, names.CARDS))
    )


def _gets_pods(body: Json | None) -> bool:
    if body is None or facts.is_unschedulable(body):
        return False
    return facts.holds(body, "Ready") is True


def _node(state: ClusterState, node: Node) -> NodeView:
    body, complaint = state.node(node.name), ""
    if body is None:
        body = {"metadata": {}, "spec": {"unschedulable": True}}
        complaint = "the API server knows no such node"
    here = {card.uuid for card in node.cards}
    shares = sorted(_shares_on(state, node), key=_largest_first)
    plugin = _PLUGIN[state.plugins.get(node.name)]
    units, cores = (facts.allocatable(body, key) for key in (names.MEMORY, names.CORE))
    return NodeView(
        name=node.name,
        ready=facts.holds(body, "Ready"),
        schedulable=not facts.is_unschedulable(body),
        labelled=facts.is_labelled(body),
        device_plugin="" if state.setup is Setup.DEMO else plugin,
        offered=Offered(cores, units),
        isolation=decode_isolation(facts.annotation(body, names.CARDS)),
        links=read_scores(node.cards) or None,
        complaint=state.refused_cards.get(node.name) or complaint,
        cards=tuple(_card(node, card, shares) for card in node.cards),
        gone=tuple(
            ShareOfGoneCard(share, uuid) for uuid, share in shares if uuid not in here
        ),
    )


def _card(
    node: Node, card: Card, shares: Iterable[tuple[CardUUID, PodShare]]
) -> CardView:
    cores, units = replace(node, nominations={}).charged.get(card.uuid, (0, 0))
    pods = tuple(share for uuid, share in shares if uuid == card.uuid)
    return CardView(
        card,
        Amount(cores, units) + node.charged_for_unplaced[card.uuid],
        node.free.get(card.uuid),
        pods=pods,
    )


def _largest_first(
    on_card: tuple[CardUUID, PodShare],
) -> tuple[bool, int, int, str, str]:
    share = on_card[1]
    amount, pod = share.amount, share.pod
    last = share.stay is Stay.NOMINATED
    return (last, -amount.units, -amount.cores, pod.namespace, pod.name)


def _shares_on(state: ClusterState, node: Node) -> Iterator[tuple[CardUUID, PodShare]]:
    """Return what each pod has of each card; a pod of unknown card has it of all."""
    nominated = [
        placement
        for uid, placement in node.nominations.items()
        if uid not in node.placements and uid not in node.unplaced
    ]
    pods = [p for p in node.placements.values() if not p.pod.is_resource_claim]
    for placement in node.placements.values():
        if placement.pod.is_resource_claim:
            yield from _of_claim(state, placement)
    for stay, placements in (
        (Stay.PLACED, pods),
        (Stay.NOMINATED, nominated),
    ):
        for placement in placements:
            seen = state.pods.get(placement.pod.uid)
            planned = find_other_plan(seen.record if seen else None, placement)
            whole = {part.card for part in placement.shares if part.is_whole}
            for card, amount in placement.by_card().items():
                share = PodShare(placement.pod, amount, card in whole, stay, planned)
                yield card, _with_status(share, [seen.body] if seen else [])
    for uid, request in node.unplaced.items():
        is_whole = any(claim.whole_cards for claim in request.claims)
        amount = sum((claim.amount for claim in request.claims), NOTHING)
        for each in node.cards:
            on_card = each.capacity if is_whole else amount
            share = PodShare(request.pod, on_card, is_whole, Stay.UNPLACED)
            seen = state.pods.get(uid)
            yield each.uuid, _with_status(share, [seen.body] if seen else [])


def _of_claim(
    state: ClusterState, placement: Placement
) -> Iterator[tuple[CardUUID, PodShare]]:
    """Return what a claim has of each card, all of its requests together."""
    uid, placements = placement.pod.uid, state.placements
    users = placements.users.get(uid)
    claim = ClaimUse("reserved" if uid in placements.reserved else "allocated", users)
    pods = [state.with_claims.get(user.uid) for user in users or ()]
    whole = {share.card for share in placement.shares if share.is_whole}
    for card, amount in placement.by_card().items():
        share = PodShare(placement.pod, amount, card in whole, by_claim=claim)
        yield card, _with_status(share, [body for body in pods if body is not None])


def _with_status(share: PodShare, bodies: Sequence[Json]) -> PodShare:
    """Return a share with what its pods say: several only if they share a claim."""
    if not bodies:
        return share
    waits = (facts.waits_because(body) for body in bodies)
    return replace(
        share,
        leaving=all(map(facts.is_leaving, bodies)),
        waits=next(filter(None, waits), ""),
        isolation=facts.annotation(bodies[0], names.ISOLATION),
    )


def find_other_plan(
    record: PodRecord | None, placement: Placement
) -> tuple[CardUUID, ...]:
    """Return the planned cards, if the pod is on other ones; else none."""
    if record is None or record.plan is None:
        return ()
    planned = record.plan.cards()
    return () if set(planned) == set(placement.cards()) else planned


def _pending(state: ClusterState) -> Iterator[WaitingPod]:
    placed = {uid for node in state.placements.nodes for uid in node.placements}
    for seen in sorted(state.pods.values(), key=_by_priority):
        record = seen.record
        asks = record.asks or not isinstance(record.request, PodRequest)
        if asks and not record.node and record.pod.uid not in placed:
            yield _waiting(state, seen)


def _waiting(state: ClusterState, seen: SeenPod) -> WaitingPod:
    record, body, request = seen.record, seen.body, seen.record.request
    if not isinstance(request, PodRequest):
        request = PodRequest(record.pod, ())
    nodes, choice = state.placements.nodes, state.placements.choice
    lacking = find_shortage(record, nodes, choice, state.properties)
    return WaitingPod(
        pod=record.pod,
        policy=request.policy,
        claims=request.claims,
        since=facts.created(body),
        because=str(lacking),
        room=bool(lacking.fits),
        kube_scheduler=facts.scheduler_says(body),
        nominated=str(record.nominated or ""),
    )


def _claiming(state: ClusterState) -> Sequence[str]:
    waiting = (pod for pod in state.with_claims.values() if not facts.node_of(pod))
    return sorted(map(facts.full_name, waiting))


def _by_priority(seen: SeenPod) -> tuple[int, str, str]:
    pod = seen.record.pod
    return (-pod.priority, pod.namespace, pod.name)


def _namespaces(state: ClusterState) -> tuple[NamespaceView, ...]:
    """Return those that hold something of a card or have a quota on one, by name."""
    allotted = _allotted(state)
    if state.quotas is None:
        return tuple(NamespaceView(n, allotted[n], None) for n in sorted(allotted))
    quotas: defaultdict[str, list[Quota]] = defaultdict(list)
    for body in state.quotas:
        for quota in _quotas_in(body):
            quotas[str(body["metadata"].get("namespace") or "")].append(quota)
    return tuple(
        NamespaceView(name, allotted.get(name, NOTHING), tuple(quotas.get(name, ())))
        for name in sorted({*allotted, *quotas})
    )


def _allotted(state: ClusterState) -> Mapping[str, Amount]:
    """Add up what is charged, each pod once: one of unknown card holds one only."""
    allotted: defaultdict[str, Amount] = defaultdict(Amount)
    for node in state.placements.nodes:
        for placement in node.placements.values():
            for share in placement.shares:
                allotted[placement.pod.namespace] += share.amount
        for request in node.unplaced.values():
            for claim in request.claims:
                allotted[request.pod.namespace] += claim.amount
    return allotted


def _quotas_in(body: Json) -> Iterator[Quota]:
    hard = (body.get("spec") or {}).get("hard") or {}
    used = (body.get("status") or {}).get("used") or {}
    for resource in COUNTED:
        key = f"requests.{resource}"
        if key in hard:
            allowed, counted = _number(hard[key]), _number(used.get(key))
            yield Quota(facts.name_of(body), resource, allowed, counted)


def _number(quantity: object) -> int | None:
    """Read a quantity; None if it is missing or no whole number."""
    try:
        return None if quantity is None else parse_whole(quantity)
    except (NotAQuantity, NotWhole):
        return None
