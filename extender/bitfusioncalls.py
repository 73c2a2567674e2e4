"""What ``bitfusion run`` asks, where its container's resources do not say. Pure."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from extender.bitfusionasks import (
    Asked,
    bad_percent,
    cards_of,
    memory_of,
    too_many,
)
from extender.bitfusionruns import Run
from extender.bitfusionsizes import Ask
from gpushare.domain.summary import users_words

_MOST_DIGITS = 20


def asked_by_calls(runs: Sequence[Run], path: str) -> Asked:
    """Read the calls of one container, each of which must have enough of its own."""
    denials: list[str] = []
    asks = [_ask(run, f"{path}.command", denials) for run in runs]
    if not denials:
        where = f"{path}.command, bitfusion run -n"
        several = [ask for ask in asks if ask.cards > 1 and not ask.whole]
        denials += [too_many(ask, where) for ask in several]
    return Asked(tuple(asks), tuple(dict.fromkeys(denials)))


def _ask(run: Run, where: str, denials: list[str]) -> Ask:
    cards = percent = memory = None
    if run.cards is not None:
        cards = cards_of(run.cards, f"{where}, bitfusion run -n", denials)
    if run.part is not None:
        percent = _percent(run.part, f"{where}, bitfusion run -p", denials)
    if run.memory is not None:
        # A plain number is in MB.
        raw = f"{run.memory}M" if run.memory.isdigit() else run.memory
        memory = memory_of(raw, f"{where}, bitfusion run -m", denials)
    return Ask(cards or 1, percent or 100, memory)


def _percent(text: str, where: str, denials: list[str]) -> int | None:
    """Read a fraction, 0.5 for 50 percent; rounded down, so that two of 0.5 fit."""
    try:
        part = Decimal(text) if len(text) < _MOST_DIGITS else Decimal(0)
    except InvalidOperation:
        part = Decimal(0)
    if part.is_finite() and 0 < part <= 1:
        return max(int(part * 100), 1)
    fix = "a number above 0, up to 1; write 0.5"
    denials.append(bad_percent(users_words(text), where, fix))
    return None
