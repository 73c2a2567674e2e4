"""The card sources that settings name beside the driver."""

from pathlib import Path
from typing import Protocol

from gpushare.cards.inventory import InventoryCards, read_inventory
from gpushare.cards.simulated import SimulatedCards, parse_spec
from gpushare.cards.source import CardSource
from gpushare.domain.model import NodeName


class CardSettings(Protocol):
    """The settings of a process that reads cards."""

    @property
    def node(self) -> NodeName:
        """The node's name, for the UUIDs of simulated cards."""

    @property
    def simulated_cards(self) -> str | None:
        """``4x24GiB`` or a YAML file."""

    @property
    def inventory(self) -> Path | None:
        """A YAML file of cards."""


def simulated_source(settings: CardSettings, complaints: list[str]) -> list[CardSource]:
    """Return the simulated cards that replace the driver's, if any are set."""
    spec = settings.simulated_cards
    made_up = () if spec is None else parse_spec(spec, settings.node)
    if isinstance(made_up, list):
        complaints += [f"GPUSHARE_SIMULATED_CARDS: {problem}" for problem in made_up]
    elif made_up:
        return [SimulatedCards(made_up)]
    return []


def inventory_source(settings: CardSettings, complaints: list[str]) -> list[CardSource]:
    """Return the cards of an inventory file, if one is set."""
    file = settings.inventory
    listed = [] if file is None else read_inventory(file)
    if isinstance(listed, tuple):
        return [InventoryCards(listed)]
    complaints += [f"GPUSHARE_INVENTORY: {problem}" for problem in listed]
    return []
