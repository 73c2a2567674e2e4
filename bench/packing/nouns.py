"""The trace's nodes and pods in the product's own nouns. Pure.

As in the simulator a card has 1000 units, so a unit is one milli. A share of a card
asks its milli and one core, of which none runs out first; whole cards are asked by
their cores. Nothing is rounded.
"""

from bench.packing.cluster import Shape
from bench.packing.trace import WHOLE, TraceNode
from gpushare.domain.card_selector import CardSelector
from gpushare.domain.model import (
    CORES_PER_CARD,
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    HostAmount,
    NodeName,
    PodRef,
    PodRequest,
    PodUID,
)


def name_of(row: int) -> NodeName:
    """Name a node: of equal ones the first by name is taken, so by its place."""
    return NodeName(f"{row:06d}")


def cards_of(row: int, node: TraceNode) -> tuple[Card, ...]:
    """Give a node's cards."""
    return tuple(
        Card(CardUUID(f"{name_of(row)}-{index}"), index, WHOLE, model=node.model)
        for index in range(node.cards)
    )


def index_of(card: CardUUID) -> int:
    """Give the place on its node of a card that ``cards_of`` made."""
    return int(card.rpartition("-")[2])


def request_of(shape: Shape, name: str) -> PodRequest:
    """Give what a pod asks, who has one container."""
    amount = _amount(shape)
    return PodRequest(
        PodRef(PodUID(name), "openb", name),
        (Claim(amount, (ContainerAmount("main", amount),)),) if amount else (),
        cards=None if shape.models is None else CardSelector.of(shape.models),
        host=HostAmount(shape.cpu_milli, shape.memory_mib),
    )


def _amount(shape: Shape) -> Amount:
    if shape.cards > 1:
        return Amount(CORES_PER_CARD * shape.cards)
    return Amount(shape.cards, shape.milli)
