"""What ``make-room`` proposes: a plan or why there is none, and the next step. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpushare.domain.eviction.moves import NoPlan, Plan, Why
from gpushare.domain.policies import Policy
from gpusharectl.make_room.situation import Asked, View
from gpusharectl.why.verdict import InSum, reopened, room_in_sum

FINE, NO_ROOM = 0, 3
"""Exit codes: a plan, or it fits; no plan, or no room was made."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The answer to one question for room; ``again`` is the command that was given."""

    asked: Asked
    view: View
    result: Plan | NoPlan
    again: str

    @property
    def code(self) -> int:
        """The exit code if nothing is evicted."""
        fits = isinstance(self.result, NoPlan) and self.result.why is Why.FITS
        return FINE if fits or isinstance(self.result, Plan) else NO_ROOM

    @property
    def in_sum(self) -> InSum | None:
        """The node on which it fits by sums alone; None if on none, or if it fits."""
        if isinstance(self.result, NoPlan) and self.result.why in (Why.FITS, Why.NEVER):
            return None
        situation = self.view.situation
        nodes = [node for node in situation.nodes if situation.may_use(node.name)]
        return room_in_sum(self.asked.request, nodes, self.view.state.requested)

    @property
    def next(self) -> str:
        """The command to give next; empty if there is none."""
        if isinstance(self.result, Plan):
            return f"{self.again} --evict"
        if self.asked.body is not None:
            return f"gpusharectl why {self.asked.name}"
        return ""

    @property
    def hints(self) -> tuple[str, ...]:
        """Sentences about what would help if no moves do."""
        return tuple(self._hints())

    def _hints(self) -> Iterator[str]:
        if not isinstance(self.result, NoPlan) or self.result.why is Why.FITS:
            return
        situation, request = self.view.situation, self.asked.request
        nodes = [node for node in situation.nodes if situation.may_use(node.name)]
        policy = situation.choice.policy(request.policy)
        opened = (
            reopened(request, nodes, policy) if isinstance(policy, Policy) else None
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
