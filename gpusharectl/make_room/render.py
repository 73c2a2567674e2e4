"""A plan on a screen: who moves where, each card before and after, the next command."""

from collections.abc import Iterator

from rich.console import Console, RenderableType

from gpushare.domain.eviction.landing import PodMove
from gpushare.domain.eviction.moves import MovePlan, NoPlan, NoPlanReason, apply_moves
from gpushare.domain.model import CardUUID, Placement, PodUID
from gpushare.domain.node import Node
from gpushare.kube import words
from gpusharectl.make_room.proposal import Proposal
from gpusharectl.output import Hanging, Words, bar, fill, show, step

_BAR = 32
_MOST_PODS = 8
_BOLD, _DIM = "bold", "dim"


def draw(console: Console, found: Proposal) -> None:
    """Draw what was found; the next step comes last."""
    show(console, _parts(found))


def _parts(found: Proposal) -> Iterator[RenderableType]:
    asks = words.claims(found.asked.request.claims)
    name = found.asked.name if found.asked.body else "A new pod"
    yield Words(f"{name} requests {asks}.", _BOLD)
    if found.in_sum is not None:
        free = words.bare(found.in_sum.free)
        yield Words(f"{found.in_sum.node} has {free} free in all, but not on one card.")
    for text in found.view.guesses:
        yield Words(text)
    match found.result:
        case NoPlan():
            yield from _no_plan(found, found.result)
        case MovePlan():
            yield from _plan(found, found.result)


def _no_plan(found: Proposal, result: NoPlan) -> Iterator[RenderableType]:
    if result.why is NoPlanReason.FITS:
        yield Words(f"No moves are needed: {result.words}.")
        yield from _next(found)
        return
    yield Words(f"No moves: {result.words}.")
    if not result.exact:
        yield Words("The search was cut short, so there may be a plan.")
    for text in found.hints:
        yield Words(text)
    if stay := found.view.stay:
        listed = (
            f"{words.counted(count, 'pod')} {reason}"
            for reason, count in sorted(stay.items())
        )
        yield Words(f"Not moved: {words.listed(listed, len(stay))}.", _DIM)
    yield from _next(found)


def _next(found: Proposal) -> Iterator[RenderableType]:
    if found.next:
        yield step(found.next, 0)


def _plan(found: Proposal, plan: MovePlan) -> Iterator[RenderableType]:
    moves = words.counted(len(plan.moves), "move")
    where = _where(found, plan.placement)
    yield Words(f"Plan: {moves}; then it fits on {where}.")
    for number, move in enumerate(plan.moves, start=1):
        begin = Words(f"  {number}. ")
        yield Hanging(begin, Words(_move(found, move)))
    if not plan.exact:
        yield Words("The search was cut short, so there may be a better plan.")
    yield from _bars(found, plan)
    yield Words(
        "Each pod is evicted, and its controller makes another one. That one is placed "
        "by kube-scheduler, so where it lands is a prediction.",
        _DIM,
    )
    yield step(found.next, 0)


def _move(found: Proposal, move: PodMove) -> str:
    amount = words.amount(move.source.shares[0].amount)
    return (
        f"{move.pod} ({amount}, priority {move.pod.priority}): "
        f"{_where(found, move.source)} → {_where(found, move.landing)}"
    )


def _where(found: Proposal, held: Placement) -> str:
    indexes = found.indexes(held.node)
    cards = words.listed((str(indexes.get(u, u)) for u in held.cards()), 16)
    return f"{held.node} card {cards}"


def _bars(found: Proposal, plan: MovePlan) -> Iterator[RenderableType]:
    """Draw each card of the plan before and after, with the same fill for a pod."""
    before = {node.name: node for node in found.view.situation.nodes}
    then = {node.name: node for node in apply_moves(before.values(), plan.moves)}
    placed = {**then, plan.node: then[plan.node].with_placement(plan.placement)}
    named = {(plan.node, uuid) for uuid in plan.cards}
    for move in plan.moves:
        for held in (move.source, move.landing):
            named |= {(held.node, uuid) for uuid in held.cards()}
    for name in sorted({name for name, _ in named}):
        for card in before[name].cards:
            if (name, card.uuid) in named:
                label = f"{name} card {card.index}"
                yield from _card(label, card.uuid, before[name], placed[name])


def _card(
    label: str, uuid: CardUUID, before: Node, then: Node
) -> Iterator[RenderableType]:
    capacity = next(card.units for card in before.cards if card.uuid == uuid)
    old, new = _held(before, uuid), _held(then, uuid)
    pods = dict.fromkeys((*old, *new))
    yield Words(label, _BOLD)
    for word, held in (("before", old), ("after", new)):
        units = [held.get(uid, 0) for uid in pods]
        line = Words(f"  {word:<7} ").append_text(bar(capacity, units, _BAR))
        yield line.append(f" {sum(units)}/{capacity}")
    legend = Words()
    at = {**before.placements, **then.placements}
    for number, uid in enumerate(list(pods)[:_MOST_PODS]):
        legend.append("  " if number else "").append_text(fill(number))
        legend.append(f" {at[uid].pod.name}", "default")
    if left := len(pods) - _MOST_PODS:
        legend.append(f"  and {left} more" if left > 0 else "")
    yield Hanging(Words("          "), legend)


def _held(node: Node, uuid: CardUUID) -> dict[PodUID, int]:
    return {
        uid: units
        for uid, placement in node.placements.items()
        if (units := sum(s.amount.units for s in placement.shares if s.card == uuid))
    }
