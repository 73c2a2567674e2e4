"""Summarize the cluster's cards for the rules about new pods. Pure.

The rules need it for warnings and for the size of a Bitfusion card. Only filter decides
whether a node can hold a pod.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from gpushare.domain.card_selector import CardSelector
from gpushare.domain.quantity import NotAQuantity, NotWhole, parse_whole
from gpushare.kube import names
from gpushare.kube.annotations import read_cards
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed, Reader

HOSTNAME = "kubernetes.io/hostname"
_INTERNAL = "InternalIP"
AlikeCards = tuple[tuple[str, int], ...]
"""Model and units of each of a node's cards that may serve one claim together."""


@dataclass(frozen=True, slots=True)
class PoolNode:
    """What one node adds to the pool."""

    kinds: tuple[AlikeCards, ...] = ()
    """Its cards; also unhealthy and cordoned ones, which may come back."""
    has_resource: bool = False
    """Whether it offers card memory, or has cards and will offer it."""
    addresses: tuple[str, ...] = ()
    """Its InternalIPs."""
    hostname: str = ""
    """Its label ``kubernetes.io/hostname``, which a pod can select."""


@dataclass(frozen=True, slots=True)
class CardPool:
    """Facts about the cluster's cards; None if unknown, or if there is no card."""

    largest_units: int | None = None
    smallest_units: int | None = None
    has_resource: bool | None = None
    """Whether any node has cards to share; None before the nodes are read."""
    node_of_address: Mapping[str, str] = field(default_factory=dict)
    """The label ``kubernetes.io/hostname`` of a node, by its InternalIPs."""
    kinds: frozenset[AlikeCards] = frozenset()
    """What single nodes have for claims of whole cards; equal ones once."""

    def whole_card_units(
        self, count: int, chosen: CardSelector | None = None
    ) -> int | None:
        """Return the units that each of so many whole cards has at least.

        It is the smallest card that such a claim could get, by the pod's list of models
        too; of the whole cluster, if no node has so many. So a pod that asks for that
        much memory fits on every node on which it fits without. A list of UUIDs could
        only leave larger cards, so it does not count.
        """
        models = CardSelector(chosen.models) if chosen else CardSelector()
        sizes = (
            [units for model, units in kind if models.allows("", model)]
            for kind in self.kinds
        )
        enough = (min(units) for units in sizes if len(units) >= max(1, count))
        return min(enough, default=self.smallest_units)

    @classmethod
    def of(cls, nodes: Iterable[PoolNode]) -> Self:
        """Sum up all nodes of a cluster."""
        every = tuple(nodes)
        kinds = frozenset(kind for node in every for kind in node.kinds)
        units = {size for kind in kinds for _, size in kind}
        return cls(
            largest_units=max(units, default=None),
            smallest_units=min(units, default=None),
            has_resource=any(node.has_resource for node in every),
            node_of_address={
                address: node.hostname for node in every for address in node.addresses
            },
            kinds=kinds,
        )


UNKNOWN = CardPool()
"""Before the nodes are read."""


def read_pool_node(node: Json) -> PoolNode:
    """Read what a node adds; raise ``Malformed`` if its annotation is broken."""
    kinds: dict[str, list[tuple[str, int]]] = {}
    for card in read_cards(node):
        if card.units:
            kinds.setdefault(card.kind, []).append((card.model, card.units))
    status = Reader(node).optional_object("status")
    labels = Reader(node).object("metadata").optional_object("labels")
    raw = status.optional_object("allocatable").raw.get(names.MEMORY)
    try:
        offers = raw is not None and parse_whole(raw) > 0
    except (NotAQuantity, NotWhole) as error:
        where = status.path(f"allocatable.{names.MEMORY}")
        raise Malformed(where, str(error)) from error
    return PoolNode(
        kinds=tuple(tuple(sorted(cards)) for cards in kinds.values()),
        has_resource=bool(kinds) or offers,
        addresses=tuple(
            address.text("address")
            for address in status.optional_objects("addresses")
            if address.optional_text("type") == _INTERNAL
        ),
        hostname=labels.optional_text(HOSTNAME),
    )
