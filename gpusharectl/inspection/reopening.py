"""Which closed cards would have room for a request, were they open. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpushare.domain.model import Card, NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.scheduling import refusal


@dataclass(frozen=True, slots=True)
class Reopened:
    """The closed cards of a node that would have to be open; the fewest that will do.

    ``sick`` where one of them has to be mended first.
    """

    node: NodeName
    cards: tuple[Card, ...]

    @property
    def sick(self) -> bool:
        """Whether opening is not enough."""
        return any(not card.healthy for card in self.cards)


def reopened(
    request: PodRequest, pages: Iterable[Node], policy: Policy
) -> Reopened | None:
    """Give the nearest way: cordoned cards before sick ones, one before several."""
    found = [way for page in pages for way in _ways(request, page, policy)]
    return min(found, key=lambda way: (way.sick, len(way.cards)), default=None)


def _ways(request: PodRequest, page: Node, policy: Policy) -> Iterator[Reopened]:
    cordoned = [card for card in page.cards if card.healthy and card.cordoned]
    closed = [card for card in page.cards if not card.open]
    for cards in (*([card] for card in closed), cordoned, closed):
        if cards and _fits(request, _with_open(page, cards), policy):
            yield Reopened(page.name, tuple(cards))


def _with_open(page: Node, cards: Iterable[Card]) -> Node:
    chosen = {card.uuid for card in cards}
    return replace(
        page,
        cards=tuple(
            replace(card, healthy=True, cordoned=False) if card.uuid in chosen else card
            for card in page.cards
        ),
    )


def _fits(request: PodRequest, page: Node, policy: Policy) -> bool:
    return refusal(request, page.as_seen_by(request.pod), policy) is None
