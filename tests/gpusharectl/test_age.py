"""Ages as kubectl writes them."""

from datetime import UTC, datetime, timedelta

import pytest

from gpusharectl.output import UNKNOWN, age

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (timedelta(seconds=-5), "0s"),
        (timedelta(seconds=119), "119s"),
        (timedelta(seconds=200), "3m20s"),
        (timedelta(minutes=4), "4m"),
        (timedelta(minutes=90), "90m"),
        (timedelta(hours=3, minutes=5), "3h5m"),
        (timedelta(hours=20), "20h"),
        (timedelta(days=3, hours=4), "3d4h"),
        (timedelta(days=100), "100d"),
        (timedelta(days=800), "2y"),
    ],
)
def test_age(ago: timedelta, text: str) -> None:
    """The longer ago, the coarser (``k8s.io/apimachinery/pkg/util/duration``)."""
    assert age((NOW - ago).strftime("%Y-%m-%dT%H:%M:%SZ"), NOW) == text


@pytest.mark.parametrize("moment", ["", "yesterday", "2026-01-02"])
def test_no_time(moment: str) -> None:
    """What is no time is unknown."""
    assert age(moment, NOW) == UNKNOWN
