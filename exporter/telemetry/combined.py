"""Several telemetries as one: NVIDIA's cards, an inventory's, AMD's, a Jetson's."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from exporter.telemetry.base import Answer, CardAnswer, ProcessesAnswer, Telemetry
from gpushare.cards.combined import Combined, error_text
from gpushare.cards.source import FoundCard, FoundCards, NoCardsYet
from gpushare.domain.model import CardUUID

logger = logging.getLogger(__name__)


class CombinedTelemetry(Combined[Telemetry]):
    """A ``Telemetry`` over others; the first one's cards come first.

    A card has the same index as with ``CombinedCards``. A card that several sources
    know (an AMD card of the inventory, under the same UUID) is one card: what the first
    cannot tell of it, the next one tells. An error of one source does not hide the
    others.
    """

    expected = Exception

    def driver_version(self) -> str:
        """Return the first version that any of them has."""
        versions = (source.driver_version() for source in self._sources)
        return next((version for version in versions if version), "")

    def read(
        self, group: str, fields: Collection[str]
    ) -> Mapping[CardUUID, CardAnswer]:
        """Read every source's cards."""
        return self._each(CardAnswer, lambda source: source.read(group, fields), _both)

    def processes(self) -> Mapping[CardUUID, ProcessesAnswer]:
        """Read the processes of every source's cards."""
        return self._each(ProcessesAnswer, lambda source: source.processes(), _better)

    def _each(
        self,
        kind: type[Answer],
        ask: Callable[[Telemetry], Mapping[CardUUID, Answer]],
        merged: Callable[[Answer, Answer], Answer],
    ) -> Mapping[CardUUID, Answer]:
        all_found, reasons = self._noted()
        if not all_found and not reasons:
            self.cards()
            all_found, reasons = self._noted()
        answers_of_all: dict[CardUUID, Answer] = {}
        for number, cards in all_found.items():
            try:
                answers = ask(self._sources[number])
            except Exception as error:  # noqa: BLE001  it must not hide the others
                failed = kind.failed(error_text(error))
                answers = {card.uuid: failed for card in cards.cards}
            for uuid, says in answers.items():
                answers_of_all[uuid] = (
                    merged(answers_of_all[uuid], says)
                    if uuid in answers_of_all
                    else says
                )
        if not answers_of_all and reasons:
            raise NoCardsYet("; ".join(reasons))
        return answers_of_all

    def _twice(self, first: FoundCard, card: FoundCard) -> FoundCard:
        return replace(
            first, model=first.model or card.model, bus=first.bus or card.bus
        )

    def _log_found(self, _: int, cards: FoundCards) -> None:
        logger.info("a source has cards now", extra={"cards": len(cards.cards)})

    def _log_none(self, number: int, because: str) -> None:
        # Few nodes have cards of every kind, so it is a problem only if there were any.
        level = logging.WARNING if number in self._found else logging.INFO
        logger.log(level, "a source has no cards", extra={"because": because})


def _both(first: CardAnswer, second: CardAnswer) -> CardAnswer:
    """Join two answers about one card; a failure of either is the card's."""
    if first.failure or second.failure:
        return CardAnswer(failure=first.failure or second.failure)
    values = {**second.values, **first.values}
    unsupported = (first.unsupported & second.unsupported) - set(values)
    return CardAnswer(values, unsupported)


def _better(first: ProcessesAnswer, second: ProcessesAnswer) -> ProcessesAnswer:
    """Return the answer that lists processes; a failure of either is the card's."""
    if first.failure or second.failure:
        return first if first.failure else second
    # An empty list may only mean that no memory is used: one with names is better.
    return second if second.known and not first.processes else first
