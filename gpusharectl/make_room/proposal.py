"""What ``make-room`` proposes: a plan or why there is none, and the next step.

As data::

    v, pod, asks, claims: [amount], policy,
    state: "plan" | "no-plan", why: null | fits | never | closed | apart |
           none-may-move | no-plan, because, exact: the search was not cut short,
    node, cards: [{uuid, index}],
    moves: [{namespace, name, uid, priority, cores, units, memory_mib,
             from: {node, cards}, to: {node, cards}}],
    fits_in_sum: {node, cores, units, memory_mib}, stay: {reason: number of pods},
    notes: [text], next, evicted: [namespace/name], done, outcome, code

``evicted``, ``done`` and ``outcome`` are there with ``--evict`` only.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType

from gpushare.domain.eviction.landing import PodMove
from gpushare.domain.eviction.moves import MovePlan, NoPlan, NoPlanReason, apply_moves
from gpushare.domain.model import CardUUID, NodeName, Placement, PodUID
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.kube import words
from gpusharectl.make_room.situation import PlanInputs, RoomDemand
from gpusharectl.output import (
    VERSION,
    Data,
    Hanging,
    Words,
    draw_bar,
    draw_fill,
    draw_step,
    encode,
    show,
)
from gpusharectl.why.verdict import InSum, find_cards_to_open, find_room_in_sum

FINE, NO_ROOM = 0, 3
"""Exit codes: a plan, or it fits; no plan, or no room was made."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The answer to one question for room; ``again`` is the command that was given."""

    demand: RoomDemand
    inputs: PlanInputs
    result: MovePlan | NoPlan
    again: str

    @property
    def code(self) -> int:
        """The exit code if nothing is evicted."""
        fits = isinstance(self.result, NoPlan) and self.result.why is NoPlanReason.FITS
        return FINE if fits or isinstance(self.result, MovePlan) else NO_ROOM

    @property
    def in_sum(self) -> InSum | None:
        """The node on which it fits by sums alone; None if on none, or if it fits."""
        if isinstance(self.result, NoPlan) and self.result.why in (
            NoPlanReason.FITS,
            NoPlanReason.NEVER,
        ):
            return None
        requested = self.inputs.state.requested
        return find_room_in_sum(self.demand.request, self._nodes, requested)

    @property
    def _nodes(self) -> list[Node]:
        situation = self.inputs.situation
        return [node for node in situation.nodes if situation.may_use(node.name)]

    @property
    def next(self) -> str:
        """The command to give next; empty if there is none."""
        if isinstance(self.result, MovePlan):
            return f"{self.again} --evict"
        if self.demand.body is not None:
            return f"gpusharectl why {self.demand.name}"
        return ""

    def as_data(self) -> Data:
        """Return it as data, without what comes of ``--evict`` and the exit code."""
        request, result = self.demand.request, self.result
        plan = result if isinstance(result, MovePlan) else None
        no_plan = result if isinstance(result, NoPlan) else None
        return {
            "v": VERSION,
            "pod": None if self.demand.body is None else self.demand.name,
            "asks": words.format_claims(request.claims),
            "claims": request.claims,
            "policy": request.policy or self.inputs.choice.default,
            "state": "plan" if plan else "no-plan",
            "why": no_plan and no_plan.why,
            "because": no_plan and no_plan.words,
            "exact": result.exact,
            "node": plan and plan.node,
            "cards": self._cards(plan.placement) if plan else [],
            "moves": [self._move(move) for move in plan.moves] if plan else [],
            "fits_in_sum": self.in_sum,
            "stay": self.inputs.stay,
            "notes": [*self.inputs.guesses, *self.hints],
            "next": self.next or None,
        }

    def _move(self, move: PodMove) -> Data:
        where = {"from": move.source, "to": move.landing}
        return {
            **encode(move.pod),
            **encode(move.source.shares[0].amount),
            **{
                key: {"node": placement.node, "cards": self._cards(placement)}
                for key, placement in where.items()
            },
        }

    def _cards(self, placement: Placement) -> list[Data]:
        indexes = self.indexes(placement.node)
        uuids = placement.cards()
        return [{"uuid": uuid, "index": indexes.get(uuid)} for uuid in uuids]

    def indexes(self, name: NodeName) -> dict[CardUUID, int]:
        """Return the indexes of a node's cards."""
        nodes = self.inputs.situation.nodes
        cards = next((node.cards for node in nodes if node.name == name), ())
        return {card.uuid: card.index for card in cards}

    @property
    def hints(self) -> tuple[str, ...]:
        """Sentences about what would help if no moves do."""
        return tuple(self._hints())

    def _hints(self) -> Iterator[str]:
        if not isinstance(self.result, NoPlan) or self.result.why is NoPlanReason.FITS:
            return
        request, opened = self.demand.request, None
        policy = self.inputs.choice.policy(request.policy)
        if isinstance(policy, Policy):
            opened = find_cards_to_open(request, self._nodes, policy)
        if opened is not None and not opened.sick:
            indexes = " ".join(str(card.index) for card in opened.cards)
            yield (
                f"It would fit if cordoned cards were opened: gpusharectl "
                f"uncordon-card {opened.node} {indexes}"
            )
        if self.in_sum is None:
            yield (
                "Fragmentation is not what keeps it waiting: no node that it may use "
                "has enough free in all."
            )


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
