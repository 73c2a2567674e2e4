"""The one decision that filter, bind, why and simulate ask."""

from collections.abc import Iterable
from functools import cached_property, partial

from gpushare.domain.carving import Found, Room, Search, Spot, spots
from gpushare.domain.model import (
    CORES_PER_CARD,
    Claim,
    NodeName,
    Placement,
    PodRequest,
    Share,
)
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.summary import Refusal, Summary

_MOST_STEPS = 500
"""Steps of the search for several claims on one node: some 5 ms."""
_MOST_STEPS_IN_ALL = 2000
"""Steps on all the nodes that filter looks at: it has a deadline, and any pod may ask
for what only a long search can tell."""


class Decider:
    """Decides about one request on one node after another.

    What searches may cost on all these nodes together has a bound: when their steps
    are used up, each further node gets one try without a way back. Nodes that have the
    same left on their cards are searched once.
    """

    def __init__(self, request: PodRequest, policy: Policy) -> None:
        self._request = request
        self._policy = policy
        self._steps = _MOST_STEPS_IN_ALL
        self._found: dict[tuple[Spot, ...], Found] = {}

    def place(self, node: Node) -> Placement | Refusal:
        """Choose the cards, as the function ``place`` does."""
        request, policy = self._request, self._policy
        summary = node.summary_for(request)
        shares = self._too_much(summary) or self._shares(node)
        if isinstance(shares, Refusal):
            return shares if summary is node.summary else _limited(shares, request)
        if policy.chooser is not None:
            costs = partial(policy.chooser.costs, request, node)
            room = Room.of(node, policy, request, costs)
            shares = _in_order(request.claims, room) or shares
        return Placement(request.pod, node.name, shares)

    def refusal(self, node: Node) -> Refusal | None:
        """Say why the node cannot take the pod, as the function ``refusal`` does."""
        summary = node.summary_for(self._request)
        no = self._too_much(summary)
        if no is None and len(self._request.claims) > 1:
            no = None if self._fit_on_one_card(summary) else self._no_way(node)
        if no is None or summary is node.summary:
            return no
        return _limited(no, self._request)

    def _too_much(self, summary: Summary) -> Refusal | None:
        """Say why one of the claims, by itself, is too much."""
        for claim in self._request.claims:
            no = summary.refusal(claim)
            if no is not None:
                return no
        return None

    def _fit_on_one_card(self, summary: Summary) -> bool:
        """Tell whether a card has room for all claims: then any order finds room."""
        total = self._search.total
        return total.cores < CORES_PER_CARD and summary.has_room(total)

    def _shares(self, node: Node) -> tuple[Share, ...] | Refusal:
        """Place by taste where that succeeds, and by a search where it does not."""
        claims = self._request.claims
        shares = _in_order(claims, Room.of(node, self._policy, self._request))
        if shares is not None:
            return shares
        room = Room.of(node, self._policy, self._request)
        ranked, cards = spots(node, self._request)
        found = self._searched(ranked)
        if found.ways is None:
            return found.no
        taken: list[Share] = []
        for claim, way in zip(claims, found.ways, strict=True):
            taken += room.take(claim, tuple(cards[i] for i in way))
        return one_share_a_card(taken)

    def _no_way(self, node: Node) -> Refusal | None:
        found = self._searched(spots(node, self._request)[0])
        return None if found.ways is not None else found.no

    def _searched(self, ranked: tuple[Spot, ...]) -> Found:
        found = self._found.get(ranked)
        if found is None:
            most = max(len(self._request.claims), min(self._steps, _MOST_STEPS))
            found = self._found[ranked] = self._search.run(ranked, most)
            self._steps = max(0, self._steps - found.steps)
        return found

    @cached_property
    def _search(self) -> Search:
        return Search([claim.amount for claim in self._request.claims])


def place(request: PodRequest, node: Node, policy: Policy) -> Placement | Refusal:
    """Choose the cards for a pod on one node, or say why there are none.

    One claim fits or not whatever the policy. Several are placed in the policy's order
    and, if that fails, by a bounded search, so that taste does not decide about fit.
    Cards that the pod's lists shut out are left alone. What a chooser likes better is
    taken last, so that its costs are asked once a claim and not at each step.
    """
    return Decider(request, policy).place(node)


def refusal(request: PodRequest, node: Node, policy: Policy) -> Refusal | None:
    """Say why the node cannot take the pod, or None; ``place`` without the placement.

    For a single claim, or several of which one alone is too much or which all fit on
    one card, a look at the summary is enough. Nobody is asked what a card costs: that
    is taste.
    """
    return Decider(request, policy).refusal(node)


def score(node: Node, policy: Policy) -> int:
    """Say how much the policy likes the node for a pod that fits there, 0 to 10."""
    return policy.node_score(node)


def schedule(
    request: PodRequest, nodes: Iterable[Node], policy: Policy
) -> Placement | dict[NodeName, Refusal]:
    """Place a pod on the best of the nodes, or give each node's refusal.

    Among nodes of one score the first by name is taken: kube-scheduler draws lots
    there, and a simulation should come out the same twice.
    """
    refused: dict[NodeName, Refusal] = {}
    fitting: list[Node] = []
    decider = Decider(request, policy)
    for node in nodes:
        no = decider.refusal(node)
        if no is None:
            fitting.append(node)
        else:
            refused[node.name] = no
    if not fitting:
        return refused
    best = favourite(request, fitting, policy)
    if best is None:
        best = min(fitting, key=lambda node: (-score(node, policy), node.name))
    placed = place(request, best, policy)
    return {best.name: placed} if isinstance(placed, Refusal) else placed


def favourite(
    request: PodRequest, fitting: Iterable[Node], policy: Policy
) -> Node | None:
    """Give the one node that the policy wants of those on which the pod fits.

    None for a policy that scores each node by itself, as all but ``frag`` do.
    """
    if policy.chooser is None:
        return None
    pages = {node.name: node for node in fitting}
    name = policy.chooser.best(request, tuple(pages), policy)
    return None if name is None else pages[name]


def _limited(no: Refusal, request: PodRequest) -> Refusal:
    """Say that the refusal is about the cards that the pod's lists leave."""
    limits = () if request.cards is None else request.cards.limits
    return Refusal(no.reason, no.detail, limits)


def _in_order(claims: tuple[Claim, ...], room: Room) -> tuple[Share, ...] | None:
    shares: list[Share] = []
    for claim in claims:
        choices = room.choices(claim)
        if not choices:
            return None
        shares += room.take(claim, choices[0])
    return one_share_a_card(shares)


def one_share_a_card(shares: list[Share]) -> tuple[Share, ...]:
    """Merge the shares that several containers of one pod have on the same card."""
    merged: dict[str, Share] = {}
    for share in shares:
        before = merged.get(share.card)
        merged[share.card] = (
            share
            if before is None
            else Share(
                share.card,
                before.amount + share.amount,
                before.containers + share.containers,
            )
        )
    return tuple(merged.values())
