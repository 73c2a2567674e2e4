"""One device plugin a node, whatever a rollout or an operator starts."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

logger = logging.getLogger(__name__)

_LOOK_S = 1.0


@contextmanager
def only_one(folder: Path, stop: Event) -> Iterator[bool]:
    """Wait for the lock on kubelet's folder, and hold it; False when stopped first.

    Of two that register one resource, kubelet would drop the later one for ever when
    the earlier ends (contracts 2.7). The kernel lets go of the lock with the process.
    The folder itself is locked: kubelet removes files in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _wait_for(lock, stop)
    finally:
        os.close(lock)


def _wait_for(lock: int, stop: Event) -> bool:
    said = False
    while not stop.is_set():
        if _taken(lock):
            return True
        if not said:
            logger.warning("another device plugin runs here; waiting for its end")
        said = True
        stop.wait(_LOOK_S)
    return False


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
