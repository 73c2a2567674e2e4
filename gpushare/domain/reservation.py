"""Whether a node has room for a placement whose cards somebody else has chosen. Pure.

kube-scheduler chooses the card of a ResourceClaim. ``placement`` is where the extender
chooses.
"""

from collections.abc import Iterator

from gpushare.domain.model import (
    CORES_PER_CARD,
    NOTHING,
    Amount,
    Card,
    CardUUID,
    Placement,
)
from gpushare.domain.node import Node


def why_no_room(node: Node, placement: Placement) -> str:
    """Return why a node cannot have this placement; empty if it can.

    Everything else that is charged counts, and what is kept for nominated pods,
    whatever their priority. 100 cores of a card mean that nothing else may be on it.
    """
    others = node.without({placement.pod.key})
    if not others.cards:
        return f"node {node.name} shares no cards, or they are not known yet"
    asked: dict[CardUUID, Amount] = {}
    for share in placement.shares:
        asked[share.card] = asked.get(share.card, NOTHING) + share.amount
    return "; ".join(filter(None, _complaints(others, asked)))


def _complaints(node: Node, asked: dict[CardUUID, Amount]) -> Iterator[str]:
    known = {card.uuid: card for card in node.cards}
    for uuid, amount in asked.items():
        card = known.get(uuid)
        if card is None:
            yield f"node {node.name} has no card {uuid}"
        else:
            yield _complaint(node, card, amount)


def _complaint(node: Node, card: Card, asked: Amount) -> str:
    name = f"card {card.uuid} of node {node.name}"
    if not card.healthy:
        return f"{name} is sick" + (f": {card.reason}" if card.reason else "")
    if card.cordoned:
        return f"{name} is cordoned"
    if asked.cores == CORES_PER_CARD and card not in node.untouched:
        return f"{name} is in use, and {CORES_PER_CARD} cores need a card alone"
    left = node.free[card.uuid]
    short = [
        f"{max(0, of)} {what} left, not {wanted}"
        for what, of, wanted in (
            ("units", left.units, asked.units),
            ("cores", left.cores, asked.cores),
        )
        if wanted > of
    ]
    return f"{name} has {' and '.join(short)}" if short else ""
