"""What NVIDIA's driver says of limits of a card's memory by control group."""

from collections.abc import Iterable, Mapping
from functools import partial

from gpushare.cards import nvml
from gpushare.cards.deadline import DeadlineCalls, DeadlineExceeded
from gpushare.cards.nvml_cards import DEADLINE_S
from gpushare.domain.model import CardUUID


class DriverLimits:
    """Asks the driver that a ``NvmlCards`` of this process has opened.

    ``calls`` are those of that one, which closes the driver only when none is made.
    """

    def __init__(self, calls: DeadlineCalls | None = None) -> None:
        self._calls = calls or DeadlineCalls(DEADLINE_S)

    def version(self) -> str:
        """Return the driver's version; empty if it does not answer."""
        try:
            return self._calls.run_one("version", nvml.version)
        except (nvml.NoDriver, DeadlineExceeded):
            return ""

    def refused(self, uuids: Iterable[CardUUID]) -> Mapping[CardUUID, str]:
        """Return why the driver cannot limit memory on each card; empty where it can.

        A card that does not answer cannot have limits either.
        """
        answers = self._calls.run(
            {uuid: partial(nvml.why_no_limits, uuid) for uuid in uuids}
        )
        return {uuid: str(answer) for uuid, answer in answers.items()}
