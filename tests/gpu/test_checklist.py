"""The page about hardware, made on a machine without any."""

from collections.abc import Iterator

import pytest

from deviceplugin.cards.nvml_cards import NvmlCards
from deviceplugin.telemetry.nvml import NvmlTelemetry
from tests.gpu import checklist
from tests.gpu.checklist import Card, Missing, Step, page

pytestmark = pytest.mark.unit
NO_CARD = Card(NvmlTelemetry(NvmlCards()))


def good(_card: Card) -> Iterator[str]:
    """What was looked for."""
    yield "- 5 MiB"


def bad(_card: Card) -> Iterator[str]:
    yield "- 6 MiB"
    raise ValueError("no more")


def poor(_card: Card) -> Iterator[str]:
    yield from ()
    raise Missing("a tool")


def test_a_step_that_fails_is_on_the_page_and_others_go_on() -> None:
    steps = (Step("Bad", bad), Step("Poor", poor), Step("Good", good))
    text = page("2026-11-24: a card.", steps, NO_CARD)
    assert "2026-11-24: a card." in text
    assert "## Bad\n\n\n- 6 MiB\n- **failed**: ValueError: no more\n" in text
    assert "- not tried: a tool is missing\n" in text
    assert text.endswith("## Good\nWhat was looked for.\n\n- 5 MiB\n")


def no_tool(*_fields: str) -> list[str]:
    raise FileNotFoundError("nvidia-smi")


def test_without_a_card_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = checklist.PAGE.read_text()
    # As where there is no card, also if this machine has one.
    monkeypatch.setattr(checklist, "smi", no_tool)
    assert checklist.main() == 1
    assert "no card to look at: " in capsys.readouterr().err
    assert checklist.PAGE.read_text() == before


def test_the_page_is_what_the_program_writes() -> None:
    """Whether it has seen a card or not."""
    text = checklist.PAGE.read_text()
    head = checklist.NOTHING.partition("\n**Nothing")[0]
    assert text == checklist.NOTHING or text.startswith(head)
