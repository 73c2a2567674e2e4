"""The cluster as inspect shows it: node, card, pods. Frozen values. Pure.

Namespaces: what is allotted to their pods, and what their quotas allow. Pure.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpushare.cache.shortage import Block
from gpushare.domain.model import NOTHING, Amount, Card, CardUUID, PodRef
from gpushare.domain.quantity import NotAQuantity, NotWhole, whole
from gpushare.kube import facts, names
from gpushare.kube.cluster import Json
from gpusharectl.state.placements import Books
from gpusharectl.state.read import Picture, Trouble


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
