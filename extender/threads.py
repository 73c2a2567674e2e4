"""Threads without which a process of ours is of no use."""

import logging
import os
import signal
from collections.abc import Callable
from threading import Thread

logger = logging.getLogger(__name__)


def start(name: str, target: Callable[[], None]) -> None:
    """Start a thread that ends with the process, and the process with the thread.

    Without it the books would no longer follow the cluster. gunicorn starts a new
    worker, which reads everything anew.
    """

    def run() -> None:
        try:
            target()
        except Exception:
            logger.exception("thread ended; starting anew", extra={"thread_name": name})
            os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=run, name=name, daemon=True).start()
