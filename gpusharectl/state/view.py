"""The cluster as inspect shows it: node, card, pods. Frozen values. Pure.

Namespaces: what is allotted to their pods, and what their quotas allow. Pure.

From a picture to what inspect shows. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from gpushare.cache.shortage import Block, largest_block, shortage
from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Card,
    CardUUID,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.node import Node
from gpushare.domain.quantity import NotAQuantity, NotWhole, whole
from gpushare.kube import codec, facts, names, words
from gpushare.kube.cluster import Json
from gpushare.kube.codec import PodRecord
from gpushare.kube.json_reader import Malformed
from gpusharectl.state.placements import Books
from gpusharectl.state.read import Picture, Trouble
from gpusharectl.state.troubles import troubles


class Stay(StrEnum):
    """How a pod comes to be on a card."""

    PLACED = "placed"
    UNPLACED = "unplaced"
    """It runs on the node, nobody knows on which card: charged on each."""
    NOMINATED = "nominated"
    """Room is kept for it, its victims are on their way out."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """What one pod has of one card.

    ``planned`` names the cards of the plan where the pod is elsewhere; ``waits`` why
    its container may not start, in kubelet's words.
    """

    pod: PodRef
    amount: Amount
    stay: Stay = Stay.PLACED
    whole: bool = False
    planned: tuple[CardUUID, ...] = ()
    leaving: bool = False
    waits: str = ""


@dataclass(frozen=True, slots=True)
class CardView:
    """A card, what is charged to it, and for whom; the largest first.

    Room that is kept for a nominated pod is not charged yet, and not free either.
    ``free`` is None where nothing new is placed; it may be below zero.
    """

    card: Card
    charged: Amount
    free: Amount | None
    tenants: tuple[Tenant, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that shares cards, or should.

    ``ready`` None: nobody knows. ``offered`` is what kubelet counts, each part None
    where it does not know the resource. ``gone`` are pods on cards that are no more,
    with the card's UUID.
    """

    name: str
    ready: bool | None
    schedulable: bool
    labelled: bool
    plugin: str
    offered_units: int | None
    offered_cores: int | None
    cards: tuple[CardView, ...]
    gone: tuple[tuple[CardUUID, Tenant], ...]
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that waits: what it asks, and why it waits.

    ``because`` are our words, ``room`` whether there is room by them; ``scheduler`` are
    kube-scheduler's, empty where it has said nothing.
    """

    pod: PodRef
    asks: str
    claims: tuple[Amount, ...]
    policy: str | None
    since: str
    because: str
    room: bool
    scheduler: str
    nominated: str


@dataclass(frozen=True, slots=True)
class Quota:
    """What one ResourceQuota says of one resource.

    ``hard`` is what it allows, ``used`` what it has counted of its namespace's pods,
    those that wait included; None where nobody knows.
    """

    name: str
    resource: str
    hard: int | None
    used: int | None


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """What the pods of a namespace have of cards, and what its quotas say.

    ``allotted`` is what is charged: of whole cards all. ``quotas`` None: they could not
    be read.
    """

    name: str
    allotted: Amount
    quotas: tuple[Quota, ...] | None


@dataclass(frozen=True, slots=True)
class Survey:
    """All that inspect shows. ``others`` counts the nodes that share no cards.

    ``pending`` and ``namespaces`` are the whole cluster's, whichever nodes are shown.
    """

    books: Books
    at: datetime
    nodes: tuple[NodeView, ...]
    others: int
    pending: tuple[Waiting, ...]
    largest: Block | None
    troubles: tuple[Trouble, ...]
    namespaces: tuple[NamespaceView, ...] = ()

    @property
    def cards(self) -> tuple[CardView, ...]:
        """All cards of all nodes shown."""
        return tuple(card for node in self.nodes for card in node.cards)

    @property
    def units(self) -> int:
        """All units that there are."""
        return sum(view.card.units for view in self.cards)

    @property
    def allotted(self) -> int:
        """The units that somebody has; of a card never more than all."""
        return sum(min(view.charged.units, view.card.units) for view in self.cards)


COUNTED = (names.MEMORY, names.CORE, names.BITFUSION_GPU)
"""The resources of which a quota is shown."""
_ASKED = "requests."
"""How a quota names what pods ask of an extended resource."""


def namespaces(picture: Picture) -> tuple[NamespaceView, ...]:
    """Give those with something allotted or with a quota on it, by name."""
    held = _allotted(picture)
    if picture.quotas is None:
        return tuple(NamespaceView(name, held[name], None) for name in sorted(held))
    bounds: defaultdict[str, list[Quota]] = defaultdict(list)
    for quota in picture.quotas:
        namespace = str(quota["metadata"].get("namespace") or "")
        bounds[namespace] += _said(quota)
    return tuple(
        NamespaceView(name, held.get(name, NOTHING), tuple(bounds.get(name, ())))
        for name in sorted({*held, *(name for name, some in bounds.items() if some)})
    )


def counting_nothing(picture: Picture) -> Iterator[Trouble]:
    """Say which quotas are on Bitfusion's resource, where no pod can ask for it."""
    resource = names.BITFUSION_GPU
    if any(facts.allocatable(node, resource) for node in picture.nodes):
        return
    idle: dict[str, None] = {}
    for quota in picture.quotas or ():
        if any(one.resource == resource for one in _said(quota)):
            idle[str(quota["metadata"].get("namespace") or "")] = None
    for namespace in idle:
        what = f"its quota on {resource} counts nothing: no node offers any"
        yield Trouble(namespace, what, f"gpusharectl migrate-quota -n {namespace}")


def _allotted(picture: Picture) -> Mapping[str, Amount]:
    """Add up what is charged, each pod once: one of unknown card holds one only."""
    found: defaultdict[str, Amount] = defaultdict(Amount)
    for page in picture.books.pages:
        for placement in page.placements.values():
            for share in placement.shares:
                found[placement.pod.namespace] += share.amount
        for asked in page.unplaced.values():
            for claim in asked.claims:
                found[asked.pod.namespace] += claim.amount
    return found


def _said(quota: Json) -> Iterator[Quota]:
    hard = (quota.get("spec") or {}).get("hard") or {}
    used = (quota.get("status") or {}).get("used") or {}
    for resource in COUNTED:
        key = f"{_ASKED}{resource}"
        if key in hard:
            allowed, counted = _number(hard[key]), _number(used.get(key))
            yield Quota(facts.name_of(quota), resource, allowed, counted)


def _number(told: object) -> int | None:
    """Read a quantity; None where nobody has told, or told none that counts things."""
    try:
        return None if told is None else whole(told)
    except (NotAQuantity, NotWhole):
        return None


NO_PLUGIN = "missing"
PLUGIN_NOT_READY = "not ready"
PLUGIN_READY = "ready"


def survey(picture: Picture, only: str = "") -> Survey:
    """Give all nodes that share cards or should, or only the one of this name."""
    pages = {str(page.name): page for page in picture.books.pages}
    known = {facts.name_of(node): node for node in picture.nodes}
    shown = sorted(name for name in {*pages, *known} if _shares(name, pages, known))
    others = len(known.keys() - set(shown))
    if only:
        shown, others = [only], 0
    views = tuple(_node(picture, name, pages.get(name)) for name in shown)
    seen = [pages[name] for name in shown if name in pages]
    return Survey(
        picture.books,
        picture.now,
        views,
        others,
        tuple(_pending(picture)),
        largest_block(seen),
        (*troubles(picture), *counting_nothing(picture)),
        namespaces(picture),
    )


def _shares(name: str, pages: dict[str, Node], known: dict[str, Json]) -> bool:
    page = pages.get(name)
    if page and (page.cards or page.placements or page.unplaced):
        return True
    node = known.get(name)
    return node is not None and (
        facts.is_labelled(node) or bool(facts.annotation(node, names.CARDS))
    )


def _node(picture: Picture, name: str, page: Node | None) -> NodeView:
    node = picture.node(name)
    shown = page or Node(NodeName(name))
    here = {card.uuid for card in shown.cards}
    return NodeView(
        name=name,
        ready=None if node is None else facts.holds(node, "Ready"),
        schedulable=node is not None and not facts.is_unschedulable(node),
        labelled=node is not None and facts.is_labelled(node),
        plugin=plugin_on(picture, name),
        offered_units=facts.allocatable(node, names.MEMORY) if node else None,
        offered_cores=facts.allocatable(node, names.CORE) if node else None,
        cards=tuple(_card(picture, shown, card) for card in shown.cards),
        gone=tuple(one for one in _shares_of(picture, shown) if one[0] not in here),
        complaint=_complaint(node),
    )


def plugin_on(picture: Picture, name: str) -> str:
    """Say how the device plugin's pod on a node is; a mere process is ``missing``."""
    ready = picture.plugins.get(name)
    if ready is None:
        return NO_PLUGIN
    return PLUGIN_READY if ready else PLUGIN_NOT_READY


def _complaint(node: Json | None) -> str:
    if node is None:
        return "the API server knows no such node"
    try:
        codec.cards(node)
    except Malformed as error:
        return str(error)
    return ""


def _card(picture: Picture, page: Node, card: Card) -> CardView:
    cores, units = replace(page, nominations={}).charged.get(card.uuid, (0, 0))
    tenants = [one for uuid, one in _shares_of(picture, page) if uuid == card.uuid]
    tenants += _unplaced(picture, page, card)
    tenants.sort(key=_largest_first)
    return CardView(
        card,
        Amount(cores, units) + page.unknown[card.uuid],
        page.free.get(card.uuid),
        tuple(tenants),
    )


def _largest_first(tenant: Tenant) -> tuple[bool, int, int, str, str]:
    amount, pod = tenant.amount, tenant.pod
    coming = tenant.stay is Stay.NOMINATED
    return (coming, -amount.units, -amount.cores, pod.namespace, pod.name)


def _shares_of(picture: Picture, page: Node) -> Iterator[tuple[CardUUID, Tenant]]:
    yield from _held(picture, page.placements.values(), Stay.PLACED)
    kept = [
        placement
        for uid, placement in page.nominations.items()
        if uid not in page.placements and uid not in page.unplaced
    ]
    yield from _held(picture, kept, Stay.NOMINATED)


def _held(
    picture: Picture, placements: Iterable[Placement], stay: Stay
) -> Iterator[tuple[CardUUID, Tenant]]:
    for placement in placements:
        record, pod = picture.read.get(placement.pod.uid, (None, None))
        for share in placement.shares:
            tenant = Tenant(
                placement.pod,
                share.amount,
                stay,
                whole=share.amount.cores >= CORES_PER_CARD,
                planned=planned_elsewhere(record, placement),
                leaving=record is not None and record.terminating,
                waits="" if pod is None else facts.waits_because(pod),
            )
            yield share.card, tenant


def planned_elsewhere(
    record: PodRecord | None, held: Placement
) -> tuple[CardUUID, ...]:
    """Give the cards that were planned, where they are not those that it has."""
    if record is None or record.plan is None:
        return ()
    planned = record.plan.cards()
    return () if set(planned) == set(held.cards()) else planned


def _unplaced(picture: Picture, page: Node, card: Card) -> Iterator[Tenant]:
    for uid, asked in page.unplaced.items():
        whole = any(claim.whole_cards for claim in asked.claims)
        amount = sum((claim.amount for claim in asked.claims), NOTHING)
        pod = _object(picture, uid)
        yield Tenant(
            asked.pod,
            card.capacity if whole else amount,
            Stay.UNPLACED,
            whole=whole,
            leaving=pod is not None and facts.is_leaving(pod),
            waits="" if pod is None else facts.waits_because(pod),
        )


def _object(picture: Picture, uid: PodUID) -> Json | None:
    found = picture.read.get(uid)
    return None if found is None else found[1]


def _pending(picture: Picture) -> Iterator[Waiting]:
    reserved = {uid for page in picture.books.pages for uid in page.placements}
    waiting = [
        (record, pod)
        for record, pod in picture.read.values()
        if not record.node and record.pod.uid not in reserved and _asks(record)
    ]
    for record, pod in sorted(waiting, key=lambda one: _order(one[0].pod)):
        yield _waiting(picture, record, pod)


def _asks(record: PodRecord) -> bool:
    return record.asks or not isinstance(record.request, PodRequest)


def _order(pod: PodRef) -> tuple[int, str, str]:
    return (-pod.priority, pod.namespace, pod.name)


def _waiting(picture: Picture, record: PodRecord, pod: Json) -> Waiting:
    request = record.request
    claims = request.claims if isinstance(request, PodRequest) else ()
    told = facts.condition(pod, "PodScheduled")
    found = shortage(record, picture.books.pages, picture.books.choice)
    return Waiting(
        record.pod,
        words.claims(claims) or words.NOT_KNOWN,
        tuple(claim.amount for claim in claims),
        request.policy if isinstance(request, PodRequest) else None,
        facts.created(pod),
        found.because,
        bool(found.fits),
        str(told.get("message") or ""),
        str(record.nominated),
    )
