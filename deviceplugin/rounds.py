"""One pass of a group over all cards: asks the telemetry, and remarks on what is news.

Whatever goes wrong ends in the round, in words: the other groups must go on.
"""

import logging
import time
from collections.abc import Mapping, Sequence

from deviceplugin.attribution import Owner
from deviceplugin.cards import NoCardsYet
from deviceplugin.fields import PROCESSES
from deviceplugin.procfs import ProcFs
from deviceplugin.remarks import Remarks
from deviceplugin.snapshot import ProcessRound, Round
from deviceplugin.telemetry import CardSays, ProcessesSay, Telemetry
from gpushare.domain.model import CardUUID

logger = logging.getLogger(__name__)

Processes = Mapping[CardUUID, ProcessesSay]


class Rounds:
    """Makes rounds. Methods may be called from any thread, one a group at a time."""

    def __init__(self, telemetry: Telemetry, whose: ProcFs) -> None:
        self._telemetry = telemetry
        self._whose = whose
        self._remarks = Remarks()
        self._lacking: dict[tuple[str, CardUUID], frozenset[str]] = {}

    def cards(self, group: str, names: Sequence[str]) -> Round:
        """Read these fields of all cards."""
        began = time.monotonic()
        cards: Mapping[CardUUID, CardSays] = {}
        failure = ""
        try:
            cards = self._telemetry.read(group, names)
        except Exception as error:  # noqa: BLE001  whatever it is, it stays here
            failure = self._failed(group, error)
        took_s = time.monotonic() - began
        self._remark(group, failure, cards)
        for uuid, says in cards.items():
            self._remark_lacking((group, uuid), says)
        return Round(group, time.time(), took_s, cards, failure)

    def processes(self) -> tuple[ProcessRound, str]:
        """Read the processes of all cards, and why owners cannot be told, if so."""
        began = time.monotonic()
        cards: Processes = {}
        owners: Mapping[int, Owner] = {}
        failure = ""
        try:
            cards = self._telemetry.processes()
            owners = self._owners(cards)
        except Exception as error:  # noqa: BLE001  whatever it is, it stays here
            cards, failure = {}, self._failed(PROCESSES, error)
        took_s = time.monotonic() - began
        self._remark(PROCESSES, failure, cards)
        made = ProcessRound(time.time(), took_s, cards, owners, failure)
        return made, self._whose.trouble

    def _owners(self, cards: Processes) -> Mapping[int, Owner]:
        return self._whose.owners(
            {use.pid for says in cards.values() for use in says.processes}
        )

    def _failed(self, group: str, error: Exception) -> str:
        if isinstance(error, NoCardsYet):
            # Whoever looks for cards tells of it, once for all groups.
            return str(error)
        why = in_words(error)
        facts = {"group": group, "because": why}
        self._remarks.about(group, why, "a group cannot be read", **facts)
        return why

    def _remark_lacking(self, who: tuple[str, CardUUID], says: CardSays) -> None:
        """Log what a card does not have, each once and for good."""
        known = self._lacking.get(who, frozenset())
        if new := says.unsupported - known:
            self._lacking[who] = known | new
            facts = {"card": who[1], "metrics": ",".join(sorted(new))}
            logger.info("a card does not have all metrics", extra=facts)

    def _remark(
        self, group: str, failure: str, cards: Mapping[CardUUID, CardSays] | Processes
    ) -> None:
        if not failure:
            self._remarks.about(group, "", "a group is read again", group=group)
        for uuid, says in cards.items():
            facts = {"card": uuid, "group": group}
            line = "a card answers again"
            if says.failure:
                facts["because"] = says.failure
                line = "a card does not answer"
            self._remarks.about((group, uuid), says.failure, line, **facts)


def in_words(error: Exception) -> str:
    """Give an error's words, with its kind where nobody expected it."""
    kind = "" if isinstance(error, NoCardsYet) else f"{type(error).__name__}: "
    return f"{kind}{error}"
