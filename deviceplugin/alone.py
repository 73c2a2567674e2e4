"""One device plugin a node, whatever a rollout or an operator starts."""

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

logger = logging.getLogger(__name__)

_LOOK_S = 1.0


@contextmanager
def only_one(folder: Path, stop: Event) -> Iterator[bool]:
    """Wait for the lock of this node's plugin, and hold it; False when stopped first.

    Of two that register one resource, kubelet would drop the later one for ever when
    the earlier ends (contracts 2.7). The kernel lets go of the lock with the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "serve.lock").open("w") as lock:
        said = False
        while not stop.is_set():
            if _taken(lock.fileno()):
                yield True
                return
            if not said:
                logger.warning("another device plugin runs here; waiting for its end")
            said = True
            stop.wait(_LOOK_S)
        yield False


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
