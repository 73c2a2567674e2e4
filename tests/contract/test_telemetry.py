"""What every ``Telemetry`` keeps to: made-up cards, a file's, AMD's, NVML's, all."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.telemetry import fields
from exporter.telemetry.base import Telemetry
from exporter.telemetry.fields import FIELDS, GROUPS
from tests.contract.telemetry_seats import seat_of
from tests.contract.threads import asked_at_once, woken

SEATS = [
    *("simulated", "inventory", "amd", "tegra", "nvml", "nvml-old", "joined"),
    pytest.param("real", marks=pytest.mark.gpu),
]
OF_A_GROUP = [one.name for one in GROUPS if any(f.group == one.name for f in FIELDS)]
MEMORY = frozenset({fields.FB_USED, fields.FB_FREE, fields.FB_TOTAL})


def names_of(group: str) -> frozenset[str]:
    return frozenset(one.name for one in FIELDS if one.group == group)


@pytest.fixture(params=SEATS)
def telemetry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Telemetry]:
    with seat_of(request.param, tmp_path) as found:
        yield found


def uuids(telemetry: Telemetry) -> set[str]:
    return {card.uuid for card in telemetry.cards().cards}


def test_cards_are_told_apart(telemetry: Telemetry) -> None:
    """UUIDs and indices are each card's own; cards come by index."""
    cards = telemetry.cards().cards
    assert cards
    assert len({card.uuid for card in cards}) == len(cards)
    indices = [card.index for card in cards]
    assert indices == sorted(set(indices))
    assert all(card.memory_mib > 0 for card in cards)


def test_looking_again_finds_the_same(telemetry: Telemetry) -> None:
    """Nothing of a card changes while its driver is loaded, whoever reads it."""
    before = telemetry.cards()
    telemetry.read(fields.MEMORY, MEMORY)
    telemetry.processes()
    assert telemetry.cards() == before


@pytest.mark.parametrize("group", OF_A_GROUP)
def test_every_card_answers_every_group(telemetry: Telemetry, group: str) -> None:
    """With numbers for fields it has, and the names of those it has not."""
    wanted = names_of(group)
    cards = uuids(telemetry)
    answers = telemetry.read(group, wanted)
    assert set(answers) == cards
    for says in answers.values():
        assert says.failure == ""
        assert set(says.values) <= wanted
        assert says.unsupported <= wanted
        assert not says.unsupported & set(says.values)
        assert all(math.isfinite(value) for value in says.values.values())


def test_only_what_is_asked_is_told(telemetry: Telemetry) -> None:
    """A group may be asked for some of its fields only, or for none."""
    telemetry.cards()
    for wanted in (frozenset({fields.FB_TOTAL}), frozenset[str]()):
        for says in telemetry.read(fields.MEMORY, wanted).values():
            assert set(says.values) | says.unsupported == wanted


def test_an_unheard_of_field_is_unsupported(telemetry: Telemetry) -> None:
    """Of another maker, or of a later time: no error."""
    telemetry.cards()
    name = "DCGM_FI_DEV_OF_SOMEBODY_ELSE"
    for says in telemetry.read(fields.MEMORY, [name, fields.FB_TOTAL]).values():
        assert says.unsupported == {name}
        assert set(says.values) == {fields.FB_TOTAL}


def test_memory_adds_up(telemetry: Telemetry) -> None:
    """In MiB, as the card was found; what is unknown is unsupported, not 0."""
    total = {card.uuid: card.memory_mib for card in telemetry.cards().cards}
    for uuid, says in telemetry.read(fields.MEMORY, MEMORY).items():
        told = says.values
        assert told[fields.FB_TOTAL] == total[uuid]
        assert set(told) | says.unsupported == MEMORY
        if fields.FB_USED in told:
            used, free = told[fields.FB_USED], told[fields.FB_FREE]
            assert used >= 0
            assert free >= 0
            assert used + free <= total[uuid]


def test_shares_of_time_are_percent(telemetry: Telemetry) -> None:
    """From 0, which is idle, to 100."""
    telemetry.cards()
    names = names_of(fields.UTILIZATION)
    for says in telemetry.read(fields.UTILIZATION, names).values():
        assert all(0 <= value <= 100 for value in says.values.values())


def test_every_card_tells_of_its_processes(telemetry: Telemetry) -> None:
    """Each process once; where nobody lists them, none are listed."""
    cards = uuids(telemetry)
    answers = telemetry.processes()
    assert set(answers) == cards
    for says in answers.values():
        assert says.failure == ""
        assert says.known or not says.processes
        pids = [one.pid for one in says.processes]
        assert len(set(pids)) == len(pids)
        for one in says.processes:
            assert one.memory_mib is None or one.memory_mib >= 0
            shares = (one.sm, one.memory_copy, one.encoder, one.decoder)
            assert all(share is None or 0 <= share <= 100 for share in shares)


def test_reading_without_a_look_is_of_no_other_cards(telemetry: Telemetry) -> None:
    """Whoever reads first need not have looked."""
    answers = telemetry.read(fields.MEMORY, MEMORY)
    told = telemetry.processes()
    assert set(answers) == set(told) == uuids(telemetry)


def test_the_version_is_a_word_and_stays(telemetry: Telemetry) -> None:
    """Empty where there is none; also for one who has not looked."""
    telemetry.driver_version()
    telemetry.cards()
    version = telemetry.driver_version()
    assert version == version.strip()
    assert telemetry.driver_version() == version


def test_waiting_in_vain_ends(telemetry: Telemetry) -> None:
    """No fault: None, before the first look and after it, at once where so asked."""
    assert telemetry.wait_for_event(0.0) is None
    telemetry.cards()
    assert telemetry.wait_for_event(0.0) is None
    assert telemetry.wait_for_event(0.05) is None


def test_any_thread_may_ask(telemetry: Telemetry) -> None:
    """Threads that look, read and wait at once all get the same cards."""

    def ask() -> object:
        found = telemetry.cards()
        memory = telemetry.read(fields.MEMORY, MEMORY)
        assert telemetry.wait_for_event(0.01) is None
        return found, set(memory), set(telemetry.processes())

    seen = asked_at_once(ask)
    assert all(one == seen[0] for one in seen)


def test_closing_wakes_who_waits(telemetry: Telemetry) -> None:
    """A thread that waits for a fault comes back when the telemetry is closed."""
    telemetry.cards()
    assert woken(lambda: telemetry.wait_for_event(600.0), telemetry.close) is None


def test_closing_twice_is_harmless(telemetry: Telemetry) -> None:
    """Whether or not anybody looked before."""
    telemetry.close()
    telemetry.close()
