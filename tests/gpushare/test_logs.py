"""One event a line."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.logs import JsonLines, LogFormat, TextLines, about, configure_logs

AT = "2026-11-21T10:31:48.120Z"


def record(
    event: str = "bound", *, failed: BaseException | None = None, **facts: Any
) -> logging.LogRecord:
    exc_info = (type(failed), failed, None) if failed else None
    made = logging.LogRecord("room", logging.INFO, "", 0, event, (), exc_info)
    made.created = 1795257108.12
    vars(made).update(facts)
    return made


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, as it was once the test is over."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("facts", "pairs"),
    [
        ({}, ""),
        ({"pod": "edge/a", "units": 20}, "  pod=edge/a units=20"),
        ({"why": "no room"}, '  why="no room"'),
        ({"why": 'say "no"'}, r'  why="say \"no\""'),
        ({"why": "two\nlines"}, r'  why="two\nlines"'),
        ({"why": ""}, '  why=""'),
        ({"why": None}, "  why=None"),
    ],
)
def test_text_is_one_line_with_facts(facts: dict[str, Any], pairs: str) -> None:
    line = TextLines().format(record(**facts))
    assert line == f"{AT} INFO    bound{pairs}"


def test_json_is_one_object_a_line() -> None:
    """Other letters as they are; what is no JSON is text: a log call must not fail."""
    line = JsonLines().format(record(pod="edge/ä", units=20, why="a\nb", odd=Path("x")))
    assert "\n" not in line
    assert "ä" in line
    own = {"pod": "edge/ä", "units": 20, "why": "a\nb", "odd": "x"}
    assert list(json.loads(line).items()) == [
        *(("time", AT), ("level", "INFO"), ("event", "bound"), *own.items())
    ]


def test_a_traceback_is_kept() -> None:
    failed = record(failed=ValueError("odd"))
    assert json.loads(JsonLines().format(failed))["exception"] == "ValueError: odd"
    assert TextLines().format(failed).endswith("bound\nValueError: odd")


def test_what_a_request_is_about_stands_on_its_lines() -> None:
    """Bound once, nested, gone at the end; the line's own facts come last and win."""

    def shown(**facts: Any) -> str:
        return TextLines().format(record(**facts)).partition("bound")[2]

    with about(pod="edge/a"):
        assert shown() == "  pod=edge/a"
        with about(node="n"):
            assert shown(card="c") == "  pod=edge/a node=n card=c"
        assert shown(pod="edge/b") == "  pod=edge/b"
    assert shown() == ""


@pytest.mark.parametrize("form", ["json", "text"])
def test_configure_logs_from_a_level_up(form: LogFormat, root: logging.Logger) -> None:
    stream = io.StringIO()
    root.addHandler(logging.NullHandler())
    configure_logs("WARNING", form, stream)
    logger = logging.getLogger("gpushare.test")
    logger.info("quiet")
    logger.warning("loud", extra={"pod": "edge/a"})
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert ("loud" in lines[0], "edge/a" in lines[0]) == (True, True)
    assert lines[0].startswith("{") == (form == "json")
    assert len(root.handlers) == 1
