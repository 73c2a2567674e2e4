"""Ctrl-C while a program starts, waits or ends: it ends at once, without a traceback.

Little is imported here, because nothing catches Ctrl-C before it.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a program that Ctrl-C has ended, as shells count."""
_LOOK_S = 1.0


def end_at_once() -> None:
    """Let Ctrl-C end the process at once, if it would raise ``KeyboardInterrupt``.

    That exception is not enough while modules are imported: Python ignores it in some
    callbacks, and prints that it did.
    """
    # A program that runs in the background may have to ignore Ctrl-C.
    if _on_ctrl_c(signal.default_int_handler):
        signal.signal(signal.SIGINT, die)


def raise_again() -> None:
    """Undo ``end_at_once``: from now on the program handles ``KeyboardInterrupt``."""
    if _on_ctrl_c(die):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Import modules late, as at the start: Ctrl-C ends the process meanwhile."""
    end_at_once()
    try:
        yield
    finally:
        raise_again()


def _on_ctrl_c(handler: object) -> bool:
    # Other threads get no signals, and may not change the handler.
    main = current_thread() is main_thread()
    return main and signal.getsignal(signal.SIGINT) is handler


def die(*_: object) -> None:
    """End the process, with the code that shells show for Ctrl-C."""
    os._exit(INTERRUPTED)


def wait_for_interrupt() -> None:
    """Wait for Ctrl-C or SIGTERM; for the main thread.

    It wakes each second, because a signal may come after Python has last looked for
    one and before the wait begins, and would not end the wait.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(_LOOK_S)
