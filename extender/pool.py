"""What the rules for new pods know of the cluster's cards. Pure.

From here come warnings and the size of a Bitfusion card, never a placement: whether a
node can hold a pod is filter's business.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from gpushare.domain.model import UNIT_MIB
from gpushare.domain.quantity import NotAQuantity, NotWhole, whole
from gpushare.kube import codec, names
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed, Reader

_HOSTNAME = "kubernetes.io/hostname"
_INTERNAL = "InternalIP"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What one node adds to the pool."""

    units: tuple[int, ...] = ()
    """Of each of its cards, sick and cordoned ones too, which may be well again."""
    has_resource: bool = False
    """Whether it offers card memory, or has cards and is about to offer it."""
    addresses: tuple[str, ...] = ()
    """Its InternalIPs."""
    hostname: str = ""
    """Its label ``kubernetes.io/hostname``, by which a pod can ask for it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Facts on the cluster's cards; None is unknown, or there is no card."""

    largest_units: int | None = None
    smallest_units: int | None = None
    has_resource: bool | None = None
    """Whether any node has cards to share; None before the nodes were read."""
    node_of_address: Mapping[str, str] = field(default_factory=dict)
    """From an InternalIP to the label ``kubernetes.io/hostname`` of its node."""

    @property
    def largest_mib(self) -> int | None:
        """Memory of the largest card, in the units that can be asked of it."""
        return None if self.largest_units is None else self.largest_units * UNIT_MIB

    @property
    def smallest_mib(self) -> int | None:
        """Memory of the smallest card, in the units that can be asked of it."""
        return None if self.smallest_units is None else self.smallest_units * UNIT_MIB

    @classmethod
    def of(cls, nodes: Iterable[NodeFacts]) -> Self:
        """Sum up the nodes of a cluster, all of them known."""
        units: set[int] = set()
        has_resource = False
        node_of_address = {}
        for node in nodes:
            units.update(node.units)
            has_resource = has_resource or node.has_resource
            for address in node.addresses:
                node_of_address[address] = node.hostname
        return cls(
            largest_units=max(units, default=None),
            smallest_units=min(units, default=None),
            has_resource=has_resource,
            node_of_address=node_of_address,
        )


UNKNOWN = Pool()
"""Before the nodes were read."""


def node_facts(node: Json) -> NodeFacts:
    """Read what a node adds; ``Malformed`` where its annotation is broken."""
    units = tuple(card.units for card in codec.cards(node) if card.units)
    status = Reader(node).optional_object("status")
    labels = Reader(node).object("metadata").optional_object("labels")
    return NodeFacts(
        units=units,
        has_resource=bool(units) or _offers(status),
        addresses=tuple(
            one.text("address")
            for one in status.optional_objects("addresses")
            if one.optional_text("type") == _INTERNAL
        ),
        hostname=labels.optional_text(_HOSTNAME),
    )


def _offers(status: Reader) -> bool:
    raw = status.optional_object("allocatable").raw.get(names.MEMORY)
    try:
        return raw is not None and whole(raw) > 0
    except (NotAQuantity, NotWhole) as error:
        raise Malformed(status.path(f"allocatable.{names.MEMORY}"), str(error)) from (
            error
        )
