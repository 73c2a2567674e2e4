"""What has been logged already: a lasting trouble is one line, not thousands."""

import logging
import threading
from collections.abc import Hashable

logger = logging.getLogger(__name__)


class Remarks:
    """Log lines by what they are about. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: dict[Hashable, str] = {}

    def about(self, what: Hashable, trouble: str, line: str, **facts: object) -> None:
        """Log a line when the trouble is another than before; empty: it is over.

        The end of a trouble that was never logged is none.
        """
        with self._lock:
            was = self._said.get(what, "")
            self._said[what] = trouble
        if trouble and trouble != was:
            logger.warning(line, extra=facts)
        elif was and not trouble:
            logger.info(line, extra=facts)
