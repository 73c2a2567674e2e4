"""Several telemetries as one."""

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from deviceplugin.cards.combined import CombinedCards
from deviceplugin.cards.inventory import InventoryCards, read_inventory
from deviceplugin.cards.source import Found, FoundCard, LeftOut, NoCardsYet, XidEvent
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
from tests.deviceplugin.amd_tree import AmdTree
from tests.deviceplugin.cards.test_combined import Played as PlayedCards

UNIQUE = "2151e1bb9ee21440"
USED = fields.FB_USED
UTIL = fields.GPU_UTIL


class Played:
    """A telemetry that says what a test tells it to."""

    def __init__(self, name: str, *indices: int) -> None:
        cards = [FoundCard(CardUUID(f"{name}{i}"), i, 1024) for i in indices]
        self.found = Found(tuple(cards))
        self.gone = ""
        self.broken = ""
        self.version = ""
        self.says = CardAnswer({USED: 7.0})
        self.lists = ProcessesAnswer()
        self.events: list[XidEvent] = []
        self.closed = 0

    def cards(self) -> Found:
        if self.broken:
            raise OSError(self.broken)
        if self.gone:
            raise NoCardsYet(self.gone)
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
        return self.events.pop() if self.events else None

    def close(self) -> None:
        self.closed += 1


def indices(found: Found) -> dict[str, int]:
    return {card.uuid: card.index for card in found.cards}


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
    """Cards and processes, each in its own words."""
    first, second = Played("a", 0), Played("b", 0)
    second.says = CardAnswer(unsupported=frozenset({USED}))
    second.lists = ProcessesAnswer(known=False)
    joined = CombinedTelemetry([first, second])
    joined.cards()
    assert joined.read("memory", [USED]) == {"a0": first.says, "b0": second.says}
    assert joined.processes() == {"a0": first.lists, "b0": second.lists}


def test_reading_looks_first() -> None:
    """Where nobody has looked yet."""
    joined = CombinedTelemetry([Played("a", 0), Played("b", 0)])
    assert set(joined.read("memory", [USED])) == {"a0", "b0"}
    assert set(CombinedTelemetry([Played("a", 0)]).processes()) == {"a0"}


def test_a_source_without_cards_hides_no_other() -> None:
    """It is asked again at each look, and joins when it has cards."""
    first, second = Played("a", 0), Played("b", 0)
    first.gone = "no driver"
    joined = CombinedTelemetry([first, second])
    assert indices(joined.cards()) == {"b0": 0}
    assert set(joined.read("memory", [USED])) == {"b0"}
    assert set(joined.processes()) == {"b0"}
    first.gone = ""
    assert indices(joined.cards()) == {"a0": 0, "b0": 1}
    assert set(joined.read("memory", [USED])) == {"a0", "b0"}


def test_no_card_anywhere_says_all_reasons() -> None:
    """Whatever is asked; an empty inventory is no reason, and hides none."""
    first, second, third = Played("a", 0), Played("b"), Played("c", 0)
    first.gone, third.gone = "no driver", "no amdgpu"
    joined = CombinedTelemetry([first, second, third])
    for ask in (joined.cards, joined.processes, lambda: joined.read("memory", [USED])):
        with pytest.raises(NoCardsYet, match=r"^no driver; no amdgpu$"):
            ask()
    third.gone, third.found = "", Found(())
    with pytest.raises(NoCardsYet, match=r"^no driver$"):
        joined.cards()
    first.gone, first.found = "", Found(())
    assert joined.cards() == Found(())
    assert joined.read("memory", [USED]) == {}


def test_cards_stay_while_their_source_is_gone() -> None:
    """They are listed under their indices, and fail with the reason; others do not."""
    first, second = Played("a", 0), Played("b", 0)
    joined = CombinedTelemetry([first, second])
    before = joined.cards()
    first.gone = "the driver was unloaded"
    assert joined.cards() == before
    failed = CardAnswer(failure="the driver was unloaded")
    assert joined.read("memory", [USED]) == {"a0": failed, "b0": second.says}
    lost = ProcessesAnswer(known=False, failure="the driver was unloaded")
    assert joined.processes() == {"a0": lost, "b0": second.lists}


def test_a_source_that_breaks_fails_alone() -> None:
    """Whatever it raises, nobody having expected it: the others' cards are told of."""
    first, second = Played("a", 0), Played("b", 0)
    second.broken = "input/output error"
    joined = CombinedTelemetry([first, second])
    assert indices(joined.cards()) == {"a0": 0}
    second.broken = ""
    before = joined.cards()
    second.broken = "input/output error"
    assert joined.cards() == before
    words = "OSError: input/output error"
    failed, lost = (
        CardAnswer(failure=words),
        ProcessesAnswer(known=False, failure=words),
    )
    assert joined.read("memory", [USED]) == {"a0": first.says, "b0": failed}
    assert joined.processes() == {"a0": first.lists, "b0": lost}


def test_a_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """As a warning only where cards were; the other kind of card is no news."""
    caplog.set_level("INFO", "deviceplugin.telemetry.combined")
    first, second = Played("a", 0), Played("b", 0)
    second.gone = "no amdgpu"
    joined = CombinedTelemetry([first, second])
    for _ in range(3):
        joined.cards()
    first.gone = "the driver was unloaded"
    for _ in range(3):
        joined.cards()
    first.gone = ""
    joined.cards()
    assert [(one.levelname, one.message) for one in caplog.records] == [
        ("INFO", "a source has no cards"),
        ("WARNING", "a source has no cards"),
        ("INFO", "a source has cards now"),
    ]


def test_a_card_of_two_sources_is_one() -> None:
    """What the first cannot tell the second does; what both tell is the first's."""
    first, second = Played("a", 0), Played("a", 0, 1)
    first.says = CardAnswer({USED: 1.0}, frozenset({UTIL, fields.GPU_TEMP}))
    second.says = CardAnswer({USED: 2.0, UTIL: 50.0}, frozenset({fields.GPU_TEMP}))
    joined = CombinedTelemetry([first, second])
    found = joined.cards()
    assert indices(found) == {"a0": 0, "a1": 1}
    assert found.left_out == ()
    told = joined.read("memory", [USED, UTIL, fields.GPU_TEMP])
    merged = CardAnswer({USED: 1.0, UTIL: 50.0}, frozenset({fields.GPU_TEMP}))
    assert told == {"a0": merged, "a1": second.says}


def test_a_field_that_one_fails_to_tell_now_is_not_unsupported() -> None:
    """Somebody has it: it is missing until it comes back."""
    first, second = Played("a", 0), Played("a", 0)
    first.says = CardAnswer({}, frozenset({UTIL}))
    second.says = CardAnswer({USED: 2.0}, frozenset())
    joined = CombinedTelemetry([first, second])
    told = joined.read("memory", [USED, UTIL])
    assert told == {"a0": CardAnswer({USED: 2.0}, frozenset())}


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_of_either_is_the_card_s(failing: int) -> None:
    """A missing device node is one, however well its driver counts."""
    sources = [Played("a", 0), Played("a", 0)]
    failed, lost = (
        CardAnswer(failure="hung"),
        ProcessesAnswer(known=False, failure="hung"),
    )
    sources[failing].says, sources[failing].lists = failed, lost
    joined = CombinedTelemetry(sources)
    assert joined.read("memory", [USED]) == {"a0": failed}
    assert joined.processes() == {"a0": lost}


@pytest.mark.parametrize("order", [1, -1])
def test_processes_are_the_word_of_who_lists_them(order: int) -> None:
    """Not of one who does not know, or who merely saw no memory in use."""
    listed = ProcessesAnswer((ProcessUse(7, 512),), SmSource.CARD)
    for other in (ProcessesAnswer(known=False), ProcessesAnswer()):
        first, second = Played("a", 0), Played("a", 0)
        first.lists, second.lists = listed, other
        joined = CombinedTelemetry([first, second][::order])
        assert joined.processes() == {"a0": listed}


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
    assert (ours.uuid, ours.index) == (f"GPU-{UNIQUE}", 4)
    assert (ours.memory_mib, ours.model) == (16000, "AMD 73bf")
    assert ours.bus == "0000:03:00.0"
    assert (other.uuid, other.index) == ("other", 0)
    told = joined.read("any", [fields.FB_TOTAL, USED, UTIL, fields.GPU_TEMP])
    values = {fields.FB_TOTAL: 16000, USED: 100, UTIL: 0}
    assert told[ours.uuid] == CardAnswer(values, frozenset({fields.GPU_TEMP}))


def test_the_driver_s_version_is_the_first_there_is() -> None:
    """NVIDIA's, or that of the cards there are."""
    first, second = Played("a", 0), Played("b", 0)
    joined = CombinedTelemetry([first, second])
    assert joined.driver_version() == ""
    second.version = "6.3.6"
    assert joined.driver_version() == "6.3.6"
    first.version = "550.54.15"
    assert joined.driver_version() == "550.54.15"


def test_what_is_left_out_is_everybody_s() -> None:
    """With the reasons."""
    first, second = Played("a", 0), Played("b", 0)
    left = [LeftOut("card 1", "it is in MIG mode"), LeftOut("b", "no memory")]
    first.found = Found(first.found.cards, (left[0],))
    second.found = Found(second.found.cards, (left[1],))
    assert CombinedTelemetry([first, second]).cards().left_out == tuple(left)


def test_events_come_from_any() -> None:
    """Each once."""
    first, second = Played("a", 0), Played("b", 0)
    joined = CombinedTelemetry([first, second])
    event = XidEvent(None, 79)
    for source in (second, first):
        source.events.append(event)
        assert joined.wait_for_event(600.0) == event
    assert joined.wait_for_event(0.0) is None


def test_all_are_closed() -> None:
    """The driver is let go of."""
    sources = [Played("a"), Played("b")]
    CombinedTelemetry(sources).close()
    assert [source.closed for source in sources] == [1, 1]
