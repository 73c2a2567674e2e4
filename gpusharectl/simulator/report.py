"""What a simulation has found: one scenario, and a run for each policy. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.kube.annotations import decode_cards
from gpushare.kube.cluster import Json
from gpushare.kube.fields import Malformed
from gpushare.kube.names import CARDS
from gpusharectl.simulator.outcome import Run
from gpusharectl.simulator.scenario import Scenario
from gpusharectl.simulator.unplayed import not_played


@dataclass(frozen=True, slots=True)
class Report:
    """One scenario under one policy or several, in the order asked for."""

    scenario: Scenario
    runs: tuple[Run, ...]
    nodes: int
    cards: int
    units: int

    @property
    def not_played(self) -> tuple[str, ...]:
        """What a real cluster would have that was left out here, as sentences."""
        return tuple(not_played(self.scenario))

    @property
    def unchecked(self) -> str:
        """Why nothing was held against ``expect``; empty where it was, or is none."""
        own = self.scenario.choice.default
        checked = any(run.policy == own for run in self.runs)
        if checked or not self.scenario.expected:
            return ""
        return f"expect is held against {own} alone, which was not played"

    @property
    def as_expected(self) -> bool:
        """Whether every run came out as the scenario's file expects."""
        return not any(run.wrong for run in self.runs)


def reported(scenario: Scenario, runs: Sequence[Run]) -> Report:
    """Put a report together; nodes and cards as they are at the beginning."""
    cards = [size for node in scenario.nodes for size in _units(node)]
    return Report(scenario, tuple(runs), len(scenario.nodes), len(cards), sum(cards))


def _units(node: Json) -> list[int]:
    text = (node["metadata"].get("annotations") or {}).get(CARDS)
    try:
        return [card.units for card in decode_cards(text)] if text else []
    except Malformed:
        # Such a node shares nothing until it is mended; inspect says so.
        return []
