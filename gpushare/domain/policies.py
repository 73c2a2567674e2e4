"""Which card, and which node, is liked best where several would do.

One policy is one card key and one node score. To add one: write the two functions, add
a line to ``POLICIES``, and a row to the tables in ``tests/gpushare/test_policies.py``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from gpushare.domain.model import Amount, Card
from gpushare.domain.node import Node
from gpushare.domain.summary import Refusal, invalid, users_words

SortKey = tuple[int, ...]
Rank = tuple[SortKey, str | int]
CardOrder = Literal["index", "uuid"]
CARD_ORDERS: tuple[CardOrder, ...] = ("index", "uuid")

HIGHEST_SCORE = 10
"""kube-scheduler takes 0 to 10 from an extender and does not clamp (contracts 1.4)."""


def _no_preference(_card: Card, _room: Amount) -> SortKey:
    return ()


def _least_left(_card: Card, room: Amount) -> SortKey:
    return (room.units, room.cores)


def _most_left(_card: Card, room: Amount) -> SortKey:
    return (-room.units, -room.cores)


def _fuller(node: Node) -> int:
    """0 for an empty node, else 1 to 10: rounded up, so that any use counts."""
    return math.ceil(HIGHEST_SCORE * node.fullness)


def _emptier(node: Node) -> int:
    return HIGHEST_SCORE - _fuller(node)


@dataclass(frozen=True, slots=True)
class Policy:
    """How to choose among what fits; whether something fits is never its business.

    ``card_key`` takes a card and what it has free and gives a sort key, least first;
    ``node_score`` takes a node as it is now and gives 0 to 10, most first.
    """

    name: str
    card_key: Callable[[Card, Amount], SortKey]
    node_score: Callable[[Node], int]
    card_order: CardOrder = "index"

    def rank(self, card: Card, room: Amount) -> Rank:
        """Give the card's place in the choice: the key, then the card order."""
        last = card.uuid if self.card_order == "uuid" else card.index
        return (self.card_key(card, room), last)


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "first-fit": Policy("first-fit", _no_preference, _fuller),
        "best-fit": Policy("best-fit", _least_left, _fuller),
        "spread": Policy("spread", _most_left, _emptier),
    }
)
DEFAULT_POLICY = "first-fit"


@dataclass(frozen=True, slots=True)
class Choice:
    """The cluster's own policy and card order, and how a pod's wish bears on them."""

    default: str = DEFAULT_POLICY
    card_order: CardOrder = "index"

    def policy(self, wish: str | None) -> Policy | Refusal:
        """Give the policy that the pod wishes, or the cluster's; refuse unknown names.

        >>> Choice().policy("best-fit").name
        'best-fit'
        """
        name = self.default if wish is None else wish
        found = POLICIES.get(name)
        if found is None:
            known = ", ".join(POLICIES)
            return invalid(f'no policy "{users_words(name)}"; known are {known}')
        return Policy(found.name, found.card_key, found.node_score, self.card_order)
