"""How much work a call makes, in a number that is the same on every machine."""

import sys
from collections.abc import Callable
from types import FrameType


def work(call: Callable[[], object]) -> int:
    """Count the functions that a call enters, ours and those in C."""
    count = 0

    def tally(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(tally)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count
