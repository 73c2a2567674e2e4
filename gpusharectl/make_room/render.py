"""A plan on a screen: who moves where, each card before and after, the next command."""

from collections.abc import Iterator

from rich.console import Console, RenderableType

from gpushare.domain.eviction.landing import PodMove
from gpushare.domain.eviction.moves import MovePlan, NoPlan, NoPlanReason, apply_moves
from gpushare.domain.model import CardUUID, Placement, PodUID
from gpushare.domain.node import Node
from gpushare.kube import words
from gpusharectl.make_room.proposal import Proposal
from gpusharectl.output import Hanging, Words, draw_bar, draw_fill, draw_step, show

_BAR = 32
_MOST_PODS = 8
_BOLD, _DIM = "bold", "dim"


def draw_proposal(console: Console, proposal: Proposal) -> None:
    """Draw the proposal; the next step comes last."""
    show(console, _parts(proposal))


def _parts(proposal: Proposal) -> Iterator[RenderableType]:
    asks = words.format_claims(proposal.demand.request.claims)
    name = proposal.demand.name if proposal.demand.body else "A new pod"
    yield Words(f"{name} requests {asks}.", _BOLD)
    if proposal.in_sum is not None:
        free = words.format_bare_amount(proposal.in_sum.free)
        yield Words(
            f"{proposal.in_sum.node} has {free} free in all, but not on one card."
        )
    for text in proposal.inputs.guesses:
        yield Words(text)
    match proposal.result:
        case NoPlan():
            yield from _no_plan(proposal, proposal.result)
        case MovePlan():
            yield from _plan(proposal, proposal.result)


def _no_plan(proposal: Proposal, result: NoPlan) -> Iterator[RenderableType]:
    if result.why is NoPlanReason.FITS:
        yield Words(f"No moves are needed: {result.words}.")
        yield from _next(proposal)
        return
    yield Words(f"No moves: {result.words}.")
    if not result.exact:
        yield Words("The search was cut short, so there may be a plan.")
    for text in proposal.hints:
        yield Words(text)
    if stay := proposal.inputs.stay:
        listed = (
            f"{words.counted(count, 'pod')} {reason}"
            for reason, count in sorted(stay.items())
        )
        yield Words(f"Not moved: {words.listed(listed, len(stay))}.", _DIM)
    yield from _next(proposal)


def _next(proposal: Proposal) -> Iterator[RenderableType]:
    if proposal.next:
        yield draw_step(proposal.next, 0)


def _plan(proposal: Proposal, plan: MovePlan) -> Iterator[RenderableType]:
    moves = words.counted(len(plan.moves), "move")
    where = _where(proposal, plan.placement)
    yield Words(f"Plan: {moves}; then it fits on {where}.")
    for number, move in enumerate(plan.moves, start=1):
        begin = Words(f"  {number}. ")
        yield Hanging(begin, Words(_move(proposal, move)))
    if not plan.exact:
        yield Words("The search was cut short, so there may be a better plan.")
    yield from _bars(proposal, plan)
    yield Words(
        "Each pod is evicted, and its controller makes another one. That one is placed "
        "by kube-scheduler, so where it lands is a prediction.",
        _DIM,
    )
    yield draw_step(proposal.next, 0)


def _move(proposal: Proposal, move: PodMove) -> str:
    amount = words.format_amount(move.source.shares[0].amount)
    return (
        f"{move.pod} ({amount}, priority {move.pod.priority}): "
        f"{_where(proposal, move.source)} → {_where(proposal, move.landing)}"
    )


def _where(proposal: Proposal, place: Placement) -> str:
    indexes = proposal.indexes(place.node)
    cards = words.listed((str(indexes.get(u, u)) for u in place.cards()), 16)
    return f"{place.node} card {cards}"


def _bars(proposal: Proposal, plan: MovePlan) -> Iterator[RenderableType]:
    """Draw each card of the plan before and after, with the same fill for a pod."""
    before = {node.name: node for node in proposal.inputs.situation.nodes}
    then = {node.name: node for node in apply_moves(before.values(), plan.moves)}
    placed = {**then, plan.node: then[plan.node].with_placement(plan.placement)}
    named = {(plan.node, uuid) for uuid in plan.cards}
    for move in plan.moves:
        for place in (move.source, move.landing):
            named |= {(place.node, uuid) for uuid in place.cards()}
    for name in sorted({name for name, _ in named}):
        for card in before[name].cards:
            if (name, card.uuid) in named:
                label = f"{name} card {card.index}"
                yield from _card(label, card.uuid, before[name], placed[name])


def _card(
    label: str, uuid: CardUUID, before: Node, then: Node
) -> Iterator[RenderableType]:
    capacity = next(card.units for card in before.cards if card.uuid == uuid)
    old, new = _units_by_pod(before, uuid), _units_by_pod(then, uuid)
    pods = dict.fromkeys((*old, *new))
    yield Words(label, _BOLD)
    for word, units_of in (("before", old), ("after", new)):
        units = [units_of.get(uid, 0) for uid in pods]
        line = Words(f"  {word:<7} ").append_text(draw_bar(capacity, units, _BAR))
        yield line.append(f" {sum(units)}/{capacity}")
    legend = Words()
    at = {**before.placements, **then.placements}
    for number, uid in enumerate(list(pods)[:_MOST_PODS]):
        legend.append("  " if number else "").append_text(draw_fill(number))
        legend.append(f" {at[uid].pod.name}", "default")
    if (more := len(pods) - _MOST_PODS) > 0:
        legend.append(f"  and {more} more")
    yield Hanging(Words("          "), legend)


def _units_by_pod(node: Node, uuid: CardUUID) -> dict[PodUID, int]:
    return {
        uid: units
        for uid, placement in node.placements.items()
        if (units := sum(s.amount.units for s in placement.shares if s.card == uuid))
    }
