"""Whether a node has room for a placement whose cards somebody else has chosen. Pure.

kube-scheduler chooses the card of a ResourceClaim. ``placement`` is where the extender
chooses.
"""

from collections.abc import Iterator

from gpushare.domain.model import (
    CORES_PER_CARD,
    Amount,
    Card,
    Placement,
)
from gpushare.domain.node import Node


def why_no_room(node: Node, placement: Placement) -> str:
    """Return why a node cannot have this placement; empty if it can.

    Everything else that is charged counts, and what is kept for nominated pods,
    whatever their priority. Nothing else may be on a whole card.
    """
    others = node.without({placement.pod.key})
    if not others.cards:
        return f"node {node.name} shares no cards, or they are not known yet"
    return "; ".join(filter(None, _complaints(others, placement)))


def _complaints(node: Node, placement: Placement) -> Iterator[str]:
    known = {card.uuid: card for card in node.cards}
    whole = {share.card for share in placement.shares if share.is_whole}
    for uuid, amount in placement.by_card().items():
        card = known.get(uuid)
        if card is None:
            yield f"node {node.name} has no card {uuid}"
        else:
            yield _complaint(node, card, amount, whole=uuid in whole)


def _complaint(node: Node, card: Card, amount: Amount, *, whole: bool) -> str:
    name = f"card {card.uuid} of node {node.name}"
    if not card.healthy:
        return f"{name} is sick" + (f": {card.reason}" if card.reason else "")
    if card.cordoned:
        return f"{name} is cordoned"
    if whole and card not in node.untouched:
        return f"{name} is in use, and {CORES_PER_CARD} cores need a card alone"
    free = node.free[card.uuid]
    short = [
        f"{max(0, remaining)} {what} left, not {wanted}"
        for what, remaining, wanted in (
            ("units", free.units, amount.units),
            ("cores", free.cores, amount.cores),
        )
        if wanted > remaining
    ]
    return f"{name} has {' and '.join(short)}" if short else ""
