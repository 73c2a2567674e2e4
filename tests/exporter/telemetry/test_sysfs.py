"""Values from a driver's files, and which errors are failures of the card."""

from pathlib import Path

import pytest

from exporter.telemetry.base import CardAnswer
from exporter.telemetry.sysfs import NotThere, read_number, read_values


def failing(error: Exception) -> CardAnswer:
    """The answer of a card where reading ``bad`` fails and nothing else is wanted."""

    def bad(_: Path) -> float:
        raise error

    return read_values({"bad": bad}, Path(), ["bad"])


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (NotThere("bad"), CardAnswer(unsupported=frozenset({"bad"}))),
        # A thermal zone of a part without power says so.
        (BlockingIOError(11, "try again"), CardAnswer()),
        (
            OSError(5, "I/O error", "/sys/bad"),
            CardAnswer(failure="/sys/bad: I/O error"),
        ),
    ],
    ids=["absent", "no-data-now", "broken"],
)
def test_an_error_is_absence_silence_or_failure(
    error: Exception, answer: CardAnswer
) -> None:
    assert failing(error) == answer


def test_a_file_without_a_number_has_no_value(tmp_path: Path) -> None:
    (tmp_path / "load").write_text("none\n")
    with pytest.raises(NotThere, match="holds no number"):
        read_number(tmp_path / "load")
