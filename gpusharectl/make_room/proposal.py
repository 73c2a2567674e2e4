"""What ``make-room`` proposes: a plan or why there is none, and the next step. Pure.

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

from gpushare.domain.eviction.landing import PodMove
from gpushare.domain.eviction.moves import MovePlan, NoPlan, NoPlanReason
from gpushare.domain.model import CardUUID, NodeName, Placement
from gpushare.domain.policies import Policy
from gpushare.kube import words
from gpusharectl.make_room.situation import PlanInputs, RoomDemand
from gpusharectl.output import VERSION, Data, encode
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
        situation = self.inputs.situation
        nodes = [node for node in situation.nodes if situation.may_use(node.name)]
        return find_room_in_sum(self.demand.request, nodes, self.inputs.state.requested)

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
        situation, request = self.inputs.situation, self.demand.request
        nodes = [node for node in situation.nodes if situation.may_use(node.name)]
        policy = situation.choice.policy(request.policy)
        opened = (
            find_cards_to_open(request, nodes, policy)
            if isinstance(policy, Policy)
            else None
        )
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
