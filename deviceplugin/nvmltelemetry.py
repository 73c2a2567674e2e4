"""NVIDIA's cards at work, as the driver tells of them: a ``Telemetry`` over NVML."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from deviceplugin import fields
from deviceplugin.cards import Found, XidEvent
from deviceplugin.nvml import Handle, NotTold
from deviceplugin.nvmlcards import NvmlCards
from deviceplugin.nvmlprocesses import ProcessLists
from deviceplugin.nvmlprofiling import Profiler
from deviceplugin.nvmlvalues import Rates, values
from deviceplugin.telemetry import CardSays, ProcessesSay
from gpushare.domain.model import CardUUID

logger = logging.getLogger(__name__)

_SIGNS = frozenset(
    {fields.FB_TOTAL, fields.GPU_UTIL, fields.GPU_TEMP, fields.POWER_USAGE}
)
"""Of life: any one of them is told by any card, to any user."""


class NvmlTelemetry:
    """A ``Telemetry`` over the cards of NVIDIA's driver, which it closes with itself.

    Each group's question to a card has the cards' deadline, and a card that hangs at
    one group is still asked the others. ``clock`` gives seconds since 1970, ``ticks``
    those of a clock that nobody sets.
    """

    def __init__(
        self,
        cards: NvmlCards,
        *,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rates = Rates(ticks)
        self._cards = cards
        self._lists = ProcessLists(clock)
        self._profiler = Profiler()
        self._refused: set[tuple[CardUUID, str]] = set()

    def cards(self) -> Found:
        """Look at the node now: cards known from before stay. ``NoCardsYet``."""
        return self._cards.cards()

    def driver_version(self) -> str:
        """Give the driver's version; empty while it is not open."""
        return self._cards.driver_version()

    def read(self, group: str, fields: Collection[str]) -> Mapping[CardUUID, CardSays]:
        """Read some fields of a group, of every card last found. ``NoCardsYet``.

        A field in neither of a card's answers was refused just now, and is logged once.
        A card that refuses a whole group has answered, as long as it tells anything.
        """
        wanted = frozenset(fields)
        answers = self._cards.ask(group, partial(self._read, group, wanted))
        return {
            card.uuid: CardSays(failure=str(answer))
            if isinstance(answer, Exception)
            else answer
            for card, answer in answers
        }

    def processes(self) -> Mapping[CardUUID, ProcessesSay]:
        """Read who uses each card last found. ``NoCardsYet``.

        What a card refuses to list just now is not known, and is logged once.
        """
        answers = self._cards.ask(fields.PROCESSES, self._who)
        return {
            card.uuid: ProcessesSay(known=False, failure=str(answer))
            if isinstance(answer, Exception)
            else answer
            for card, answer in answers
        }

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait for an XID; None after ``timeout_s``."""
        return self._cards.wait_for_event(timeout_s)

    def close(self) -> None:
        """Let go of the driver."""
        self._profiler.close()
        self._cards.close()

    def _read(
        self, group: str, wanted: frozenset[str], uuid: CardUUID, handle: Handle
    ) -> CardSays:
        if group == fields.PROFILING:
            said = self._profiler.read(uuid, handle, wanted)
        else:
            said = values(handle, wanted - {fields.XID_ERRORS})
            said = self._rates.put(uuid, said)
        for name, why in said.refused.items():
            self._note(uuid, name, why)
        says = said.says
        if said.refused and not says.values and not _lives(handle):
            says = CardSays(failure=next(iter(said.refused.values())))
        if fields.XID_ERRORS not in wanted or self._cards.reports_faults_of(uuid):
            return says
        # No fault so far would be a lie about a card that never tells of any.
        silent = says.unsupported | {fields.XID_ERRORS}
        return CardSays(says.values, silent, says.failure)

    def _who(self, uuid: CardUUID, handle: Handle) -> ProcessesSay:
        try:
            return self._lists.read(uuid, handle)
        except NotTold as error:
            self._note(uuid, fields.PROCESSES, str(error))
            if not _lives(handle):
                raise
        return ProcessesSay(known=False)

    def _note(self, uuid: CardUUID, name: str, why: str) -> None:
        if (uuid, name) not in self._refused:
            extra = {"card": uuid, "field": name, "why": why}
            logger.warning("a card does not tell a field just now", extra=extra)
        self._refused.add((uuid, name))


def _lives(handle: Handle) -> bool:
    """Ask a card that refused everything for some sign. ``CardFailed``, ``NoDriver``.

    A driver may keep all of a group to itself; a card that is sick tells nothing.
    """
    return bool(values(handle, _SIGNS).says.values)
