"""What links between cards were worth in a run, and the same scenario without them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from gpushare.domain.links import NVLINK
from gpushare.domain.model import Card
from gpushare.kube import codec, names
from gpushare.kube.annotations import encode_cards
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpusharectl.simulator.engine import PodOutcome
from gpusharectl.simulator.scenario import ExpectedResult, Join, Scenario, ScenarioStep


@dataclass(frozen=True, slots=True)
class Linked:
    """The pods of several whole cards that were placed where links are known.

    ``pair_score`` is the mean of the pair scores of each pod, and of those the mean
    over all pods. ``nvlinked`` are pods of which each pair of cards has an NVLink.
    """

    pods: int
    nvlinked: int
    pair_score: float

    @property
    def share(self) -> float:
        """The share of the pods that have NVLinks between all their cards, 0 to 1."""
        return self.nvlinked / self.pods


def measure_links(scenario: Scenario, outcomes: Sequence[PodOutcome]) -> Linked | None:
    """Sum up; None if no such pod was placed."""
    scores_of_pods = [scores for _, scores in score_pods(scenario, outcomes)]
    if not scores_of_pods:
        return None
    means = [sum(scores) / len(scores) for scores in scores_of_pods]
    nvlinked = sum(min(scores) >= NVLINK for scores in scores_of_pods)
    return Linked(len(scores_of_pods), nvlinked, sum(means) / len(means))


def score_pods(
    scenario: Scenario, outcomes: Sequence[PodOutcome]
) -> Iterator[tuple[PodOutcome, list[int]]]:
    """Yield each pod for which links count, with the scores of all pairs of its cards.

    Those of the scenario's nodes, whether or not they were used to choose.
    """
    rows = {name: _rows(cards) for name, cards in _linked_nodes(scenario).items()}
    for result in outcomes:
        row = rows.get(result.node)
        if row is not None and result.wants_links:
            yield result, [row[a][b] for a, b in combinations(result.cards, 2)]


def drop_links(scenario: Scenario) -> Scenario:
    """Return the scenario as if no device plugin told links; nothing is expected."""

    def changed(step: ScenarioStep) -> ScenarioStep:
        if isinstance(step.what, Join):
            return replace(step, what=Join(_without(step.what.node)))
        return step

    return replace(
        scenario,
        nodes=tuple(map(_without, scenario.nodes)),
        steps=tuple(map(changed, scenario.steps)),
        expected=ExpectedResult(),
    )


def has_links(scenario: Scenario) -> bool:
    """Return whether any node of the scenario has links."""
    return bool(_linked_nodes(scenario))


def _linked_nodes(scenario: Scenario) -> Mapping[str, Sequence[Card]]:
    joined = (s.what.node for s in scenario.steps if isinstance(s.what, Join))
    linked = {}
    for node in (*scenario.nodes, *joined):
        cards = _cards(node)
        if any(card.links for card in cards):
            linked[node["metadata"]["name"]] = cards
    return linked


def _cards(node: Json) -> Sequence[Card]:
    try:
        return codec.read_cards(node)
    except Malformed:
        return ()


def _rows(cards: Sequence[Card]) -> Mapping[int, Mapping[int, int]]:
    """Return the score of each pair by the cards' indexes."""
    none = (0,) * len(cards)
    return {
        card.index: {
            other.index: score
            for other, score in zip(cards, card.links or none, strict=True)
        }
        for card in cards
    }


def _without(node: Json) -> Json:
    cards = _cards(node)
    if not any(card.links for card in cards):
        return node
    metadata = node["metadata"]
    text = encode_cards(replace(card, links=()) for card in cards)
    notes = {**metadata["annotations"], names.CARDS: text}
    return {**node, "metadata": {**metadata, "annotations": notes}}
