"""NVIDIA's cards and their telemetry over the stub driver."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from exporter.telemetry.base import CardAnswer, ProcessesAnswer, ProcessUse
from exporter.telemetry.fields import FIELDS
from exporter.telemetry.nvml import NvmlTelemetry
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.cards.source import CardReading, FoundCard, FoundCards, NoCardsYet
from gpushare.domain.model import CardUUID
from tests.nvml.build import the_stub
from tests.nvml.driver import StubCard, StubDriver, stub_card, stub_driver
from tests.testbed.waiting import wait_until

P4 = stub_card(0, used_mib=300, reserved_mib=200, odd_bytes=2**20 - 1)
TITAN = stub_card(1, memory_mib=24259, model="TITAN RTX")
THIRD = stub_card(2)
FOREVER_S = 600.0

Pair = tuple[StubDriver, NvmlCards]


@contextmanager
def pair(
    folder: Path,
    *cards: StubCard,
    old: bool = False,
    deadline_s: float = FOREVER_S,
    root: Path = Path("/"),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Pair]:
    with stub_driver(the_stub(), folder, cards, old=old) as driver:
        source = NvmlCards(deadline_s=deadline_s, root=root, clock=clock)
        yield driver, source
        driver.let_go()
        source.close()


def wait_found(source: NvmlCards | NvmlTelemetry, wanted: int) -> FoundCards:
    """Look until so many cards answer: a short deadline a busy machine may miss."""

    def look() -> FoundCards:
        with suppress(NoCardsYet):
            return source.cards()
        return FoundCards(())

    return wait_until(
        look, f"{wanted} cards", accept=lambda found: len(found.cards) == wanted
    )


def card(stub: StubCard, index: int) -> FoundCard:
    return FoundCard(
        CardUUID(stub.uuid), index, stub.memory_mib, stub.model, stub.bus, stub.minor
    )


def readings(source: NvmlCards) -> dict[str, CardReading]:
    return {reading.uuid: reading for reading in source.readings()}


def failures(source: NvmlCards) -> dict[str, str]:
    return {uuid: reading.failure for uuid, reading in readings(source).items()}


CARD = stub_card(0, used_mib=300, reserved_mib=200)
OTHER = stub_card(1, memory_mib=24259, model="TITAN RTX")


class Watch(NamedTuple):
    """A driver, and what is told of its cards."""

    driver: StubDriver
    telemetry: NvmlTelemetry


class Clock:
    """Seconds since 1970, as a test says."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@contextmanager
def watch(
    folder: Path,
    *cards: StubCard,
    old: bool = False,
    middle: bool = False,
    deadline_s: float = FOREVER_S,
    clock: Clock | None = None,
    ticks: Clock | None = None,
) -> Iterator[Watch]:
    stub = the_stub()
    with stub_driver(stub, folder, cards, old=old, middle=middle) as driver:
        source = NvmlCards(deadline_s=deadline_s)
        telemetry = NvmlTelemetry(
            source, clock=clock or Clock(), ticks=ticks or Clock()
        )
        yield Watch(driver, telemetry)
        driver.let_go()
        telemetry.close()


def of_group(group: str) -> frozenset[str]:
    return frozenset(field.name for field in FIELDS if field.group == group)


def says(
    telemetry: NvmlTelemetry, group: str, *names: str, card: StubCard = CARD
) -> CardAnswer:
    """What a card answers to a group, or to some of its fields."""
    told = telemetry.read(group, names or of_group(group))
    return told[CardUUID(card.uuid)]


def processes(telemetry: NvmlTelemetry, card: StubCard = CARD) -> ProcessesAnswer:
    return telemetry.processes()[CardUUID(card.uuid)]


def uses(telemetry: NvmlTelemetry, card: StubCard = CARD) -> dict[int, ProcessUse]:
    return {process.pid: process for process in processes(telemetry, card).processes}
