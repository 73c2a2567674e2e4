"""Log one event a line, with its facts as fields, as JSON or text.

Modules call ``logger.info("bound", extra={"card": ..., "units": ...})``. ``about()``
adds the pod and node of a request to every line of that request.
"""

import json
import logging
import sys
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TextIO

LogFormat = Literal["json", "text"]
LOG_FORMATS: tuple[LogFormat, ...] = ("json", "text")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_ABOUT: ContextVar[dict[str, str] | None] = ContextVar("about", default=None)
_NOT_FACTS = frozenset(
    [*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime"]
)


@contextmanager
def about(**facts: str) -> Iterator[None]:
    """Add facts to every line that this thread logs inside the block."""
    token = _ABOUT.set({**(_ABOUT.get() or {}), **facts})
    try:
        yield
    finally:
        _ABOUT.reset(token)


def configure_logs(level: str, form: LogFormat, stream: TextIO = sys.stderr) -> None:
    """Log everything from ``level`` up to a stream; replace earlier handlers."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _facts(record: logging.LogRecord) -> dict[str, object]:
    fields = {k: v for k, v in vars(record).items() if k not in _NOT_FACTS}
    return {**(_ABOUT.get() or {}), **fields}


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonLines(logging.Formatter):
    """``{"time": ..., "level": ..., "event": ..., ...}``, one object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record; a traceback goes into ``exception``."""
        line = {
            "time": _time(record),
            "level": record.levelname,
            "event": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextLines(logging.Formatter):
    """``2026-11-21T10:31:48.120Z INFO    bound  pod=edge/a units=20``."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record; values with spaces are quoted."""
        pairs = " ".join(f"{k}={_value(v)}" for k, v in _facts(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.getMessage()}"
        if pairs:
            line += f"  {pairs}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _value(value: object) -> str:
    text = str(value)
    plain = text and not any(char.isspace() or char == '"' for char in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


class LogOnce:
    """Logs a lasting problem once, and its end. Any thread may call.

    ``logger`` is that of the module whose problems these are.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._problems: dict[Hashable, str] = {}

    def problem(self, about: Hashable, why: str, message: str, **facts: object) -> None:
        """Log a warning unless the problem is the same as before, or empty."""
        if self._change(about, why) != why and why:
            self._logger.warning(message, extra=facts)

    def recovered(self, about: Hashable, message: str = "", **facts: object) -> None:
        """Forget the problem; log the recovery only if the problem was logged."""
        if self._change(about, "") and message:
            self._logger.info(message, extra=facts)

    def _change(self, about: Hashable, why: str) -> str:
        with self._lock:
            before = self._problems.pop(about, "")
            if why:
                self._problems[about] = why
        return before
