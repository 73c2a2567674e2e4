"""The one decision that filter, bind, why and simulate ask."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from gpushare.domain.carving import Room
from gpushare.domain.model import NOTHING, Claim, NodeName, Placement, PodRequest, Share
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.summary import Reason, Refusal

_MOST_STEPS = 500
"""Steps of the search for several claims on one node: some 5 ms, and filter may ask it
of many nodes within its deadline."""


def place(request: PodRequest, node: Node, policy: Policy) -> Placement | Refusal:
    """Choose the cards for a pod on one node, or say why there are none.

    One claim fits or not whatever the policy. Several are placed in the policy's order
    and, if that fails, by a bounded search, so that taste does not decide about fit.
    Cards that the pod's lists shut out are left alone. What a chooser likes better is
    taken last, so that its costs are asked once a claim and not at each step.
    """
    found = _fit(request, node, policy)
    if isinstance(found, Refusal) or policy.chooser is None:
        return found
    costs = partial(policy.chooser.costs, request, node)
    room = Room.of(node.as_limited_by(request), policy, costs)
    liked = _in_order(request.claims, room)
    return found if isinstance(liked, Refusal) else replace(found, shares=liked)


def refusal(request: PodRequest, node: Node, policy: Policy) -> Refusal | None:
    """Say why the node cannot take the pod, or None; ``place`` without the placement.

    For a single claim, or several of which one alone is too much, one comparison with
    the summary is enough. Nobody is asked what a card costs: that is taste.
    """
    if not request.claims:
        return None
    summary = node.summary_for(request)
    for claim in request.claims:
        no = summary.refusal(claim)
        if no is not None:
            return no if summary is node.summary else _limited(no, request)
    if len(request.claims) == 1:
        return None
    decision = _fit(request, node, policy)
    return decision if isinstance(decision, Refusal) else None


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
    for node in nodes:
        no = refusal(request, node, policy)
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


def _fit(request: PodRequest, node: Node, policy: Policy) -> Placement | Refusal:
    """Place a pod without asking a chooser."""
    seen = node.as_limited_by(request)
    found = _place(request, seen, policy)
    if isinstance(found, Refusal) and seen is not node:
        return _limited(found, request)
    return found


def _place(request: PodRequest, node: Node, policy: Policy) -> Placement | Refusal:
    if not request.claims:
        return Placement(request.pod, node.name, ())
    if not node.free:
        return Refusal(Reason.NO_CARDS)
    shares = _in_order(request.claims, Room.of(node, policy))
    if isinstance(shares, Refusal) and _may_fit_otherwise(request, node):
        found = _search(request.claims, Room.of(node, policy))
        shares = shares if found is None else found
    if isinstance(shares, Refusal):
        return shares
    return Placement(request.pod, node.name, shares)


def _limited(no: Refusal, request: PodRequest) -> Refusal:
    """Say that the refusal is about the cards that the pod's lists leave."""
    limits = () if request.cards is None else request.cards.limits
    return replace(no, limits=limits)


def _may_fit_otherwise(request: PodRequest, node: Node) -> bool:
    """Tell whether a search is worth its steps: several claims, and room in sum."""
    asked = sum((claim.amount for claim in request.claims), NOTHING)
    room = sum((NOTHING.peak(left) for left in node.free.values()), NOTHING)
    return len(request.claims) > 1 and asked.fits(room)


def _in_order(claims: tuple[Claim, ...], room: Room) -> tuple[Share, ...] | Refusal:
    shares: list[Share] = []
    for claim in claims:
        no = room.summary().refusal(claim)
        if no is not None:
            return no
        shares += room.take(claim, room.choices(claim)[0])
    return one_share_a_card(shares)


def _search(claims: tuple[Claim, ...], room: Room) -> tuple[Share, ...] | None:
    """Try the claims largest first on every card that differs from those tried."""
    order = sorted(
        range(len(claims)),
        key=lambda i: (-claims[i].amount.cores, -claims[i].amount.units, i),
    )
    found: dict[int, list[Share]] = {}
    steps = 0

    def fill(depth: int) -> bool:
        nonlocal steps
        if depth == len(order):
            return True
        claim = claims[order[depth]]
        for choice in room.distinct_choices(claim):
            steps += 1
            if steps > _MOST_STEPS:
                return False
            before = room.mark()
            found[order[depth]] = room.take(claim, choice)
            if fill(depth + 1):
                return True
            room.undo(before)
        return False

    if not fill(0):
        return None
    return one_share_a_card([s for i in range(len(claims)) for s in found[i]])


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
