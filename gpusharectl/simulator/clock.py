"""The time of a simulation, which passes only where the scenario says so."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
_MOST_S = 200e9
"""Some 6,000 years; the calendar of Python ends a little later."""


@dataclass(slots=True)
class Clock:
    """Seconds since the beginning."""

    now_s: float = 0.0

    def moment(self) -> datetime:
        """Give the time of day, for timestamps, which stand still at their end."""
        return _BEGINNING + timedelta(seconds=min(self.now_s, _MOST_S))
