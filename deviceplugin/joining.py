"""What several sources of cards have in common when they are taken as one."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from deviceplugin.cards import Found, FoundCard, LeftOut, XidEvent

_SLICE_S = 0.25

Again = Callable[[FoundCard, FoundCard], FoundCard | LeftOut]
"""Make something of a card that an earlier source has, and a later one too."""


class Reporting(Protocol):
    """Whatever reports faults."""

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait for a fault."""
        ...


def joined(all_found: Iterable[Found], again: Again) -> Found:
    """Put what was found together, the first one's cards first.

    The first keeps its indices; a later one's card keeps its own too where it is free,
    else it gets the next after all earlier ones.
    """
    cards: dict[str, FoundCard] = {}
    left_out: list[LeftOut] = []
    for found in all_found:
        taken = {card.index for card in cards.values()}
        beside = {card.index for card in found.cards} | taken
        left_out += found.left_out
        for card in found.cards:
            if card.uuid in cards:
                made = again(cards[card.uuid], card)
                if isinstance(made, LeftOut):
                    left_out.append(made)
                else:
                    cards[card.uuid] = made
                continue
            index = max(beside) + 1 if card.index in taken else card.index
            beside.add(index)
            cards[card.uuid] = replace(card, index=index)
    by_index = sorted(cards.values(), key=lambda card: card.index)
    return Found(tuple(by_index), tuple(left_out))


def ends_all(number: int, found: Mapping[int, Found]) -> bool:
    """Tell whether the process is to end for a source whose driver is lost to it.

    Not where this process never had cards of it and serves others: a new one would be
    in the same place, and end again and again.
    """
    its = found.get(number)
    return bool(its and its.cards) or not any(one.cards for one in found.values())


def wait_in_turn(
    sources: Sequence[Reporting], timeout_s: float, closed: Callable[[], bool]
) -> XidEvent | None:
    """Wait at all sources in turn, a moment at each; they keep what comes."""
    ends = time.monotonic() + timeout_s
    while not closed():
        for source in sources:
            left_s = max(0.0, ends - time.monotonic())
            event = source.wait_for_event(min(_SLICE_S, left_s))
            if event is not None:
                return event
        if time.monotonic() >= ends:
            break
    return None
