"""Several telemetries as one; ``cards/test_combined.py`` has what cards share."""

from pathlib import Path

import pytest

from exporter.telemetry import fields
from exporter.telemetry.amd import AmdTelemetry
from exporter.telemetry.base import (
    CardAnswer,
    PlainTelemetry,
    ProcessesAnswer,
    ProcessUse,
    SmSource,
)
from exporter.telemetry.combined import CombinedTelemetry
from gpushare.cards.combined import CombinedCards
from gpushare.cards.inventory import InventoryCards, read_inventory
from gpushare.cards.source import FoundCard, FoundCards, NoCardsYet
from gpushare.domain.model import CardUUID
from tests.exporter.amd_tree import UNIQUE, AmdTree
from tests.exporter.scripted_telemetry import ScriptedTelemetry
from tests.gpushare.cards.test_combined import Played

USED = fields.FB_USED
UTIL = fields.GPU_UTIL
LISTED = ProcessesAnswer((ProcessUse(7, 512),), SmSource.CARD)


SEVEN, NOBODY = CardAnswer({USED: 7.0}), ProcessesAnswer()


def played(
    name: str,
    *indices: int,
    says: CardAnswer = SEVEN,
    lists: ProcessesAnswer = NOBODY,
    version: str = "",
) -> ScriptedTelemetry:
    """A telemetry of cards with these indices, which all say the same."""
    cards = [FoundCard(CardUUID(f"{name}{i}"), i, 1024) for i in indices]
    made = ScriptedTelemetry(*cards)
    made.found, made.version = FoundCards(tuple(cards)), version
    made.says = dict.fromkeys((card.uuid for card in cards), says)
    made.lists = dict.fromkeys((card.uuid for card in cards), lists)
    return made


def indices(found: FoundCards) -> dict[str, int]:
    return {card.uuid: card.index for card in found.cards}


def told(*sources: ScriptedTelemetry) -> tuple[object, object]:
    """What all are told to say of memory and of processes."""
    joined = CombinedTelemetry(sources)
    return joined.read("memory", [USED]), joined.processes()


@pytest.mark.parametrize(
    ("first", "second"), [((0, 2), (0, 1, 5)), ((), (3, 1)), ((4,), (4, 5)), ((1,), ())]
)
def test_indices_are_as_the_device_plugin_s(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """A card has one number in its placements and in its metrics."""
    telemetry = CombinedTelemetry([played("a", *first), played("b", *second)])
    source = CombinedCards([Played("a", *first), Played("b", *second)])
    assert indices(telemetry.cards()) == indices(source.cards())
    assert telemetry.cards() == telemetry.cards()


def test_no_card_anywhere_says_all_reasons() -> None:
    first, second, third = played("a", 0), played("b"), played("c", 0)
    first.away, third.away = NoCardsYet("no driver"), NoCardsYet("no amdgpu")
    joined = CombinedTelemetry([first, second, third])
    for ask in (joined.cards, joined.processes, lambda: joined.read("memory", [USED])):
        with pytest.raises(NoCardsYet, match=r"^no driver; no amdgpu$"):
            ask()
    first.away = third.away = None
    first.found = third.found = FoundCards(())
    assert joined.cards() == FoundCards(())
    assert joined.read("memory", [USED]) == {}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoCardsYet("it was unloaded"), "it was unloaded"),
        (OSError("input/output error"), "OSError: input/output error"),
    ],
)
def test_a_source_that_breaks_fails_alone(error: Exception, words: str) -> None:
    first, second = played("a", 0), played("b", 0)
    second.away = error
    joined = CombinedTelemetry([first, second])
    assert indices(joined.cards()) == {"a0": 0}
    assert set(joined.read("memory", [USED])) == {"a0"}
    second.away = None
    before = joined.cards()
    assert indices(before) == {"a0": 0, "b0": 1}
    second.away = error
    assert joined.cards() == before
    failed, lost = CardAnswer(failure=words), ProcessesAnswer.failed(words)
    assert joined.read("memory", [USED]) == {"a0": SEVEN, "b0": failed}
    assert joined.processes() == {"a0": NOBODY, "b0": lost}


def test_a_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """As a warning only where cards were; the other kind of card is no news."""
    caplog.set_level("INFO", "exporter.telemetry.combined")
    first, second = played("a", 0), played("b", 0)
    second.away = NoCardsYet("no amdgpu")
    joined = CombinedTelemetry([first, second])
    for breaks in (None, NoCardsYet("the driver was unloaded"), None):
        first.away = breaks
        for _ in range(3):
            joined.cards()
    assert [(line.levelname, line.message) for line in caplog.records] == [
        ("INFO", "a source has no cards"),
        ("WARNING", "a source has no cards"),
        ("INFO", "a source has cards now"),
    ]


def test_a_card_of_two_sources_is_one() -> None:
    """What one of them fails to tell just now is missing, and not unsupported."""
    neither = frozenset({fields.GPU_TEMP})
    first = CardAnswer({USED: 1.0}, neither | {UTIL, fields.ENC_UTIL})
    second = CardAnswer({USED: 2.0, UTIL: 50.0}, neither)
    sources = [played("a", 0, says=first), played("a", 0, 1, says=second)]
    joined = CombinedTelemetry(sources)
    found = joined.cards()
    assert (indices(found), found.left_out) == ({"a0": 0, "a1": 1}, ())
    merged = CardAnswer({USED: 1.0, UTIL: 50.0}, neither)
    assert joined.read("memory", [USED]) == {"a0": merged, "a1": second}


@pytest.mark.parametrize("order", [1, -1])
def test_one_source_s_failure_or_list_is_the_card_s(order: int) -> None:
    """A missing device node is a failure, however well the card's driver counts."""
    hung, lost = CardAnswer.failed("hung"), ProcessesAnswer.failed("hung")
    both = [played("a", 0), played("a", 0, says=hung, lists=lost)]
    assert told(*both[::order]) == ({"a0": hung}, {"a0": lost})
    for other in (ProcessesAnswer(known=False), NOBODY):
        both = [played("a", 0, lists=LISTED), played("a", 0, lists=other)]
        assert told(*both[::order])[1] == {"a0": LISTED}


def test_an_amd_card_of_the_inventory_is_one_card(tmp_path: Path) -> None:
    """Shared by its inventory's entry, read by amdgpu's files."""
    tree = AmdTree(tmp_path)
    tree.card(0, unique=UNIQUE, memory_mib=16384, used_mib=100)
    path = tmp_path / "inventory.yaml"
    path.write_text(
        f"cards:\n- {{uuid: GPU-{UNIQUE}, memory_mib: 16000, index: 4}}\n"
        "- {uuid: other, memory_mib: 1024, index: 0}\n"
    )
    cards = read_inventory(path)
    assert isinstance(cards, tuple)
    sources = [PlainTelemetry(InventoryCards(cards)), AmdTelemetry(tmp_path)]
    joined = CombinedTelemetry(sources)
    other, ours = joined.cards().cards
    found = (ours.uuid, ours.index, ours.memory_mib, ours.model, ours.bus)
    assert found == (f"GPU-{UNIQUE}", 4, 16000, "AMD 73bf", "0000:03:00.0")
    assert (other.uuid, other.index) == ("other", 0)
    assert ours.offered
    answers = joined.read("any", [fields.FB_TOTAL, USED, UTIL, fields.GPU_TEMP])
    values = {fields.FB_TOTAL: 16000, USED: 100, UTIL: 0}
    assert answers[ours.uuid] == CardAnswer(values, frozenset({fields.GPU_TEMP}))


def test_the_driver_s_version_is_the_first_there_is() -> None:
    """NVIDIA's, or that of the cards there are."""
    for first, second, wanted in (
        ("", "", ""),
        ("", "6.3.6", "6.3.6"),
        ("550.54.15", "6.3.6", "550.54.15"),
    ):
        sources = [played("a", 0, version=first), played("b", 0, version=second)]
        assert CombinedTelemetry(sources).driver_version() == wanted
