"""The page about hardware, made on a machine without any."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from exporter.telemetry.base import ProcessesAnswer, ProcessUse
from exporter.telemetry.nvml import NvmlTelemetry
from gpushare.cards.nvml_cards import NvmlCards
from tests.gpu import checklist
from tests.gpu.checklist import Card, Missing, Step, page
from tests.isolation.build import build_driver, needs_compiler

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
    assert "### Bad\n\n\n- 6 MiB\n- **failed**: ValueError: no more\n" in text
    assert "- not tried: a tool is missing\n" in text
    assert text.endswith("### Good\nWhat was looked for.\n\n- 5 MiB\n")


def children() -> Iterator[ProcessUse]:
    """The processes that this one has started."""
    tasks = Path("/proc/self/task").glob("*/children")
    pids = " ".join(path.read_text() for path in tasks).split()
    yield from (ProcessUse(int(pid), 900) for pid in pids)


class StandIn:
    """A card whose programs run over the stand-in for the driver, in 900 MiB each."""

    telemetry = SimpleNamespace(
        cards=lambda: SimpleNamespace(cards=[SimpleNamespace(uuid="GPU-1")]),
        processes=lambda: {"GPU-1": ProcessesAnswer(tuple(children()))},
    )

    def used_mib(self) -> float:
        return 0


def test_the_preload_library_ends_programs_at_their_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a card, but for the driver."""
    needs_compiler()
    build_driver(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    told = list(checklist.preload(cast("Card", StandIn())))
    full = "free 1024 MiB of 1024 MiB; got 1024 MiB; then error 2"
    assert told[0] == f"- alone: {full}"
    half = "free 512 MiB of 1024 MiB; got 512 MiB; then error 2"
    assert told[1] == f"- beside one that holds 512 MiB: {half}"
    assert told[2] == f"- after that one has ended: {full}"
    assert told[4] == "- with it a process is held; NVML shows 900 MiB"
    assert "without it a process is not held: its process " in told[5]


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


def test_the_section_is_what_the_program_writes() -> None:
    """Whether it has seen a card or not."""
    head = checklist.NOTHING.partition("\n**Nothing")[0]
    _, heading, rest = checklist.PAGE.read_text().partition(head)
    assert heading
    assert heading + rest == checklist.NOTHING or "**Nothing" not in rest
