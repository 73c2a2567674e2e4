"""Calls at a steady pace, on a clock that is invented."""

import pytest

from bench.scrapes import CALLS_A_SECOND, paced

STEP = 1 / CALLS_A_SECOND


class Slow:
    """A server that stands still for four steps in its second call."""

    def __init__(self) -> None:
        self.now, self.calls = 100.0, 0

    def post(self, request: bytes) -> bytes:
        self.calls += 1
        self.now += 4 * STEP if self.calls == 2 else STEP / 10
        return request

    def sleep(self, seconds: float) -> None:
        # Woken late, which is no fault of the server.
        self.now += seconds + STEP / 10


def test_a_call_counts_from_when_it_was_due() -> None:
    """Those that waited behind the slow one are late by as much as they waited."""
    slow = Slow()
    took = paced(slow, b"", 7 * STEP, lambda: slow.now, slow.sleep)
    assert [each / STEP for each in took] == pytest.approx(
        [0.1, 4, 3.2, 2.3, 1.4, 0.5, 0.1]
    )
