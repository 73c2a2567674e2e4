"""What happens once the first lists were read."""

import gc
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from extender.main import _warm
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName
from tests.builders import card


@pytest.fixture
def collected() -> Iterator[list[int]]:
    """Note the generation of each garbage collection."""
    found: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.unfreeze()


def test_the_ledger_is_ready_and_nothing_stops_the_threads(
    collected: list[int],
) -> None:
    """A collection of all that the lists have left would hold up the first filters."""
    ledger, synced = Ledger(), Event()
    ledger.set_cards(NodeName("n"), [card(0, 29)])
    synced.set()
    _warm(ledger, [synced], Event())
    node = ledger.node(NodeName("n"))
    assert "summary" in vars(node)
    assert gc.get_freeze_count() > 0
    assert gc.isenabled()
    assert 2 not in collected
