"""Wait for something to come true, and say what was seen when it does not."""

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")


def wait_until(
    look: Callable[[], Seen],
    what: str,
    timeout_s: float = 120.0,
    *,
    accept: Callable[[Seen], bool] = bool,
    every_s: float = 0.05,
) -> Seen:
    """Call ``look`` until ``accept`` accepts its answer, and return that answer.

    The first calls follow each other faster than ``every_s``, because most waits are
    short. A look that takes long, as kubectl does, is made less often, and so is any
    look after a long wait: the machine has to do what is waited for too. Raises
    AssertionError with ``what`` was waited for and the last answer. ``timeout_s`` is
    for what never comes: on a machine under load, what comes in a second may take half
    a minute.
    """
    start = time.monotonic()
    pause_s = min(0.002, every_s)
    while True:
        began = time.monotonic()
        if accept(seen := look()):
            return seen
        now = time.monotonic()
        if now > start + timeout_s:
            raise AssertionError(f"no {what} within {timeout_s} s; last seen: {seen!r}")
        seldom_s = min(max(2 * (now - began), (now - start) / 20), 0.5)
        time.sleep(max(pause_s, seldom_s))
        pause_s = min(2 * pause_s, every_s)
