"""Several telemetries as one; ``cards/test_combined.py`` has what cards share."""

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from deviceplugin.cards.combined import CombinedCards
from deviceplugin.cards.inventory import InventoryCards, read_inventory
from deviceplugin.cards.source import Found, FoundCard, NoCardsYet, XidEvent
from deviceplugin.telemetry import fields
from deviceplugin.telemetry.amd import AmdTelemetry
from deviceplugin.telemetry.base import (
    CardAnswer,
    PlainTelemetry,
    ProcessesAnswer,
    ProcessUse,
    SmSource,
)
from deviceplugin.telemetry.combined import CombinedTelemetry
from gpushare.domain.model import CardUUID
from tests.deviceplugin.amd_tree import UNIQUE, AmdTree
from tests.deviceplugin.cards.test_combined import Played as PlayedCards

USED = fields.FB_USED
UTIL = fields.GPU_UTIL
LISTED = ProcessesAnswer((ProcessUse(7, 512),), SmSource.CARD)
UNKNOWN = ProcessesAnswer(known=False)


class Played:
    """A telemetry that says what a test tells it to."""

    def __init__(self, name: str, *indices: int) -> None:
        cards = [FoundCard(CardUUID(f"{name}{i}"), i, 1024) for i in indices]
        self.found = Found(tuple(cards))
        self.breaks: Exception | None = None
        self.version = ""
        self.says = CardAnswer({USED: 7.0})
        self.lists = ProcessesAnswer()

    def cards(self) -> Found:
        if self.breaks:
            raise self.breaks
        return self.found

    def driver_version(self) -> str:
        return self.version

    def read(
        self, group: str, fields: Collection[str]
    ) -> Mapping[CardUUID, CardAnswer]:
        return dict.fromkeys((card.uuid for card in self.cards().cards), self.says)

    def processes(self) -> Mapping[CardUUID, ProcessesAnswer]:
        return dict.fromkeys((card.uuid for card in self.cards().cards), self.lists)

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        return None

    def close(self) -> None:
        pass


def indices(found: Found) -> dict[str, int]:
    return {card.uuid: card.index for card in found.cards}


def told(*sources: Played) -> tuple[object, object]:
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
    telemetry = CombinedTelemetry([Played("a", *first), Played("b", *second)])
    source = CombinedCards([PlayedCards("a", *first), PlayedCards("b", *second)])
    assert indices(telemetry.cards()) == indices(source.cards())
    assert telemetry.cards() == telemetry.cards()


def test_every_source_is_read() -> None:
    """Cards and processes, each in its own words; nobody need have looked before."""
    first, second = Played("a", 0), Played("b", 0)
    second.says = CardAnswer(unsupported=frozenset({USED}))
    second.lists = UNKNOWN
    cards = {"a0": first.says, "b0": second.says}
    assert told(first, second) == (cards, {"a0": first.lists, "b0": UNKNOWN})


def test_no_card_anywhere_says_all_reasons() -> None:
    """Whatever is asked; an empty inventory is no reason, and hides none."""
    first, second, third = Played("a", 0), Played("b"), Played("c", 0)
    first.breaks, third.breaks = NoCardsYet("no driver"), NoCardsYet("no amdgpu")
    joined = CombinedTelemetry([first, second, third])
    for ask in (joined.cards, joined.processes, lambda: joined.read("memory", [USED])):
        with pytest.raises(NoCardsYet, match=r"^no driver; no amdgpu$"):
            ask()
    first.breaks = third.breaks = None
    first.found = third.found = Found(())
    assert joined.cards() == Found(())
    assert joined.read("memory", [USED]) == {}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoCardsYet("it was unloaded"), "it was unloaded"),
        (OSError("input/output error"), "OSError: input/output error"),
    ],
)
def test_a_source_that_breaks_fails_alone(error: Exception, words: str) -> None:
    """Whatever it raises: its cards stay listed and fail, the others' are told of."""
    first, second = Played("a", 0), Played("b", 0)
    second.breaks = error
    joined = CombinedTelemetry([first, second])
    assert indices(joined.cards()) == {"a0": 0}
    assert set(joined.read("memory", [USED])) == {"a0"}
    second.breaks = None
    before = joined.cards()
    assert indices(before) == {"a0": 0, "b0": 1}
    second.breaks = error
    assert joined.cards() == before
    failed, lost = CardAnswer(failure=words), ProcessesAnswer.failed(words)
    assert joined.read("memory", [USED]) == {"a0": first.says, "b0": failed}
    assert joined.processes() == {"a0": first.lists, "b0": lost}


def test_a_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """As a warning only where cards were; the other kind of card is no news."""
    caplog.set_level("INFO", "deviceplugin.telemetry.combined")
    first, second = Played("a", 0), Played("b", 0)
    second.breaks = NoCardsYet("no amdgpu")
    joined = CombinedTelemetry([first, second])
    for breaks in (None, NoCardsYet("the driver was unloaded"), None):
        first.breaks = breaks
        for _ in range(3):
            joined.cards()
    assert [(one.levelname, one.message) for one in caplog.records] == [
        ("INFO", "a source has no cards"),
        ("WARNING", "a source has no cards"),
        ("INFO", "a source has cards now"),
    ]


def test_a_card_of_two_sources_is_one() -> None:
    """What the first cannot tell the second does; what both tell is the first's.

    What one of them fails to tell just now is missing, and not unsupported.
    """
    first, second = Played("a", 0), Played("a", 0, 1)
    neither = frozenset({fields.GPU_TEMP})
    first.says = CardAnswer({USED: 1.0}, neither | {UTIL, fields.ENC_UTIL})
    second.says = CardAnswer({USED: 2.0, UTIL: 50.0}, neither)
    joined = CombinedTelemetry([first, second])
    found = joined.cards()
    assert (indices(found), found.left_out) == ({"a0": 0, "a1": 1}, ())
    merged = CardAnswer({USED: 1.0, UTIL: 50.0}, neither)
    assert joined.read("memory", [USED]) == {"a0": merged, "a1": second.says}


@pytest.mark.parametrize("order", [1, -1])
def test_one_source_s_failure_or_list_is_the_card_s(order: int) -> None:
    """A missing device node is a failure, however well the card's driver counts.

    Who lists processes counts, not who does not know or merely saw no memory in use.
    """
    well, ill = Played("a", 0), Played("a", 0)
    ill.says, ill.lists = CardAnswer(failure="hung"), ProcessesAnswer.failed("hung")
    assert told(*[well, ill][::order]) == ({"a0": ill.says}, {"a0": ill.lists})
    for other in (UNKNOWN, ProcessesAnswer()):
        ill, well = Played("a", 0), Played("a", 0)
        ill.lists, well.lists = LISTED, other
        assert told(*[ill, well][::order])[1] == {"a0": LISTED}


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
    answers = joined.read("any", [fields.FB_TOTAL, USED, UTIL, fields.GPU_TEMP])
    values = {fields.FB_TOTAL: 16000, USED: 100, UTIL: 0}
    assert answers[ours.uuid] == CardAnswer(values, frozenset({fields.GPU_TEMP}))


def test_the_driver_s_version_is_the_first_there_is() -> None:
    """NVIDIA's, or that of the cards there are."""
    first, second = Played("a", 0), Played("b", 0)
    joined = CombinedTelemetry([first, second])
    for first.version, second.version, wanted in (
        ("", "", ""),
        ("", "6.3.6", "6.3.6"),
        ("550.54.15", "6.3.6", "550.54.15"),
    ):
        assert joined.driver_version() == wanted
