"""All that filter looks at: a node's frontier, and the fixed reasons to refuse it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpushare.domain.card_selector import Limit
from gpushare.domain.model import NOTHING, Amount, Claim

_MOST_OF_USERS_WORDS = 100


class Reason(StrEnum):
    """Why a node cannot take a pod; the words for people stand in ``kube.codec``."""

    MEMORY = "memory"
    CORE = "core"
    CORE_AND_MEMORY = "core-and-memory"
    UNTOUCHED_CARDS = "untouched-cards"
    NO_CARDS = "no-cards"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node cannot take a pod, as a value.

    Equal refusals give equal words, since kube-scheduler counts nodes by their words
    (contracts 1.6). ``detail`` is used with ``INVALID`` only: what is wrong.
    ``limits`` are the pod's lists, where they shut out cards of the node that are open.
    """

    reason: Reason
    detail: str = ""
    limits: tuple[Limit, ...] = ()


def invalid(detail: str) -> Refusal:
    """Refuse a pod whose request can be met by no node at all."""
    return Refusal(Reason.INVALID, detail)


# Made once: where a pod fits nowhere, filter gives one for each node.
NO_CARDS = Refusal(Reason.NO_CARDS)
UNTOUCHED_CARDS = Refusal(Reason.UNTOUCHED_CARDS)
_CORE = Refusal(Reason.CORE)
_MEMORY = Refusal(Reason.MEMORY)
_CORE_AND_MEMORY = Refusal(Reason.CORE_AND_MEMORY)


def shortage(amount: Amount, most: Amount) -> Refusal:
    """Say which part of an amount is more than the most there is; else both."""
    short_of_cores = amount.cores > most.cores
    short_of_units = amount.units > most.units
    if short_of_cores == short_of_units:
        return _CORE_AND_MEMORY
    return _CORE if short_of_cores else _MEMORY


def users_words(text: str) -> str:
    """Make a user's text fit to stand in an event.

    Without ``%``, which kube-scheduler takes for a format (contracts 1.6), without
    control characters, and cut at 100 characters.
    """
    clean = "".join(char for char in text if char.isprintable() and char != "%")
    if len(clean) <= _MOST_OF_USERS_WORDS:
        return clean
    return clean[: _MOST_OF_USERS_WORDS - 1] + "…"


@dataclass(frozen=True, slots=True)
class Summary:
    """What a node still offers, small enough to compare once for each name.

    ``most`` is the largest free amount of each part, seldom on the same card;
    ``untouched`` the units of the untouched cards, largest first; ``cards`` the number
    of open cards.
    """

    cards: int
    most: Amount
    frontier: tuple[Amount, ...]
    untouched: tuple[int, ...]

    def refusal(self, claim: Claim) -> Refusal | None:
        """Say why no card can meet the claim, or None where one can."""
        if not self.cards:
            return NO_CARDS
        amount, whole = claim.amount, claim.whole_cards
        if whole:
            return None if self._has_untouched(amount, whole) else UNTOUCHED_CARDS
        return None if self.has_room(amount) else shortage(amount, self.most)

    def has_room(self, amount: Amount) -> bool:
        """Tell whether one card has both parts of the amount free."""
        # Written out: filter asks this of all nodes, for each new kind of pod.
        for room in self.frontier:  # noqa: SIM110
            if amount.fits(room):
                return True
        return False

    def _has_untouched(self, amount: Amount, number: int) -> bool:
        largest = self.untouched[:number]
        return len(largest) == number and sum(largest) >= amount.units


def frontier(free: Iterable[Amount]) -> tuple[Amount, ...]:
    """Give the room that no other card beats in both parts.

    Cores fall and units rise along the tuple; a card below zero offers none.
    """
    best: list[Amount] = []
    for room in sorted(free, key=lambda room: (-room.cores, -room.units)):
        if min(room.cores, room.units) < 0:
            continue
        if not best or room.units > best[-1].units:
            best.append(room)
    return tuple(best)


def summarize(free: Iterable[Amount], untouched: Iterable[int]) -> Summary:
    """Sum up the free amounts of a node's open cards and its untouched units."""
    rooms = tuple(free)
    most = Amount(
        max((room.cores for room in rooms), default=NOTHING.cores),
        max((room.units for room in rooms), default=NOTHING.units),
    )
    ordered = tuple(sorted(untouched, reverse=True))
    return Summary(len(rooms), most, frontier(rooms), ordered)


NOTHING_LEFT = summarize((), ())
"""Of a node without open cards, or for a pod that may have none of them."""
