"""Policies: the preference among several cards, and among several nodes.

A policy is one card key, one node score, and a sentence that says which card it takes.
To add one, write the two functions, add a line to ``POLICIES``, and a row to the tables
in ``tests/gpushare/domain/test_policies.py``.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, Protocol

from gpushare.domain.model import (
    Amount,
    Card,
    CardUUID,
    Claim,
    NodeName,
    PodRequest,
    Refusal,
    clean_text,
    refuse_invalid,
)
from gpushare.domain.node import Node

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
    """Return 0 for an empty node, else 1 to 10, rounded up so that any use counts."""
    return math.ceil(HIGHEST_SCORE * node.fullness)


def _emptier(node: Node) -> int:
    return HIGHEST_SCORE - _fuller(node)


class Chooser(Protocol):
    """Choose by learned costs instead of a fixed key."""

    def best(
        self, request: PodRequest, names: Collection[NodeName], policy: "Policy"
    ) -> NodeName | None:
        """Return the node with the least cost, of those on which the pod fits.

        None while too little was learned.
        """
        ...

    def costs(
        self,
        request: PodRequest,
        node: Node,
        claim: Claim,
        free: Mapping[CardUUID, Amount],
    ) -> Mapping[CardUUID, float]:
        """Return what a share costs on each card with room; empty as with ``best``.

        ``free`` has the free amounts of the cards that the pod may have.
        """
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """How to choose among cards and nodes that fit; it never decides what fits.

    ``card_key`` returns a sort key of a card and its free amount; the least is best.
    ``node_score`` returns 0 to 10 for a node; the most is best. A ``chooser`` comes
    before both, as soon as it has learned enough. ``takes`` says for people which card
    it takes; ``{order}`` stands for the card order.
    """

    name: str
    takes: str
    card_key: Callable[[Card, Amount], SortKey]
    node_score: Callable[[Node], int]
    card_order: CardOrder = "index"
    chooser: Chooser | None = None

    def rank(self, card: Card, room: Amount) -> Rank:
        """Return the card's sort key: the policy's key, then the card order."""
        last = card.uuid if self.card_order == "uuid" else card.index
        return (self.card_key(card, room), last)

    def explain(self, request: PodRequest) -> str:
        """Say by which rule a pod gets its cards, without a full stop."""
        if any(claim.whole_cards for claim in request.claims):
            return "whole cards are taken from the largest untouched ones"
        order = "UUID" if self.card_order == "uuid" else self.card_order
        return f"{self.name} takes {self.takes.format(order=order)}"


FRAG = "frag"
"""Learns what pods ask, and keeps free what the others need (decision 0038)."""

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "first-fit": Policy(
            name="first-fit",
            takes="the first card by {order} with room",
            card_key=_no_preference,
            node_score=_fuller,
        ),
        "best-fit": Policy(
            name="best-fit",
            takes="the card with the least room that is enough",
            card_key=_least_left,
            node_score=_fuller,
        ),
        "spread": Policy(
            name="spread",
            takes="the card with the most room",
            card_key=_most_left,
            node_score=_emptier,
        ),
        FRAG: Policy(
            name=FRAG,
            takes="the card with the best score",
            card_key=_least_left,
            node_score=_fuller,
        ),
    }
)
DEFAULT_POLICY = "first-fit"


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The cluster's policy and card order, and the policy of a single pod.

    ``packer`` chooses for ``frag``; without it, ``frag`` is best-fit.
    """

    default: str = DEFAULT_POLICY
    card_order: CardOrder = "index"
    packer: Chooser | None = None

    def policy(self, name: str | None) -> Policy | Refusal:
        """Return the pod's policy, or the cluster's; refuse an unknown name.

        >>> PolicyChoice().policy("best-fit").name
        'best-fit'
        """
        name = self.default if name is None else name
        policy = POLICIES.get(name)
        if policy is None:
            known = ", ".join(POLICIES)
            return refuse_invalid(f'no policy "{clean_text(name)}"; known are {known}')
        packer = self.packer if name == FRAG else None
        return replace(policy, card_order=self.card_order, chooser=packer)
