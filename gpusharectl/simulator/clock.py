"""The time of a simulation, which passes only where the scenario says so."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Clock:
    """Seconds since the beginning."""

    now_s: float = 0.0

    def moment(self) -> datetime:
        """Give the time of day, for timestamps."""
        return _BEGINNING + timedelta(seconds=self.now_s)
