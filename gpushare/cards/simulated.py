"""Simulated cards, for demos and tests on nodes without a real card.

They look like NVIDIA's cards, so that the plugin does the same as on a real node. They
have no device nodes, are never in use and never become sick.
"""

import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpushare.cards.inventory import (
    LEAST_MIB,
    MOST_MIB,
    WrittenCard,
    WrittenCards,
    WrittenSource,
    read_cards,
)
from gpushare.cards.source import CardReading, FoundCard
from gpushare.domain import topologies
from gpushare.domain.links import pairs
from gpushare.domain.model import CardUUID
from gpushare.kube.annotations import MOST_CARDS
from gpushare.yaml_file import simplify_yaml

MODEL = "Simulated card"

_TERM = re.compile(r"(?P<count>\d{1,6})x(?P<size>\d{1,12})(?P<unit>[MG]iB)")
_MIB = {"MiB": 1, "GiB": 1024}
_SUFFIXES = (".yaml", ".yml")


class SimulatedCards(WrittenSource):
    """A ``CardSource`` of simulated cards."""

    def readings(self) -> Sequence[CardReading]:
        """Report that no memory of any card is in use."""
        return [CardReading(card.uuid, 0) for card in self._found.cards]

    def driver_load(self) -> str:
        """Return always the same name, because there is no driver to load again."""
        return "simulated"


def parse_spec(spec: str, node: str) -> tuple[FoundCard, ...] | list[str]:
    """Return the cards of ``4x24GiB``, ``1x24259MiB,2x7611MiB`` or a YAML file's path.

    A file has ``cards:``, a list of ``memory_mib`` and, where wished, ``uuid``,
    ``model`` and ``index``. A card without a UUID gets one made of the node's name and
    its place in the list: the same at each start, another on each node. ``links`` is a
    name of ``topologies``, or a row of pair scores for each card of the list. A list
    instead of a tuple holds all complaints, as sentences.

    >>> [card.memory_mib for card in parse_spec("1x24GiB,1x7611MiB", "node")]
    [24576, 7611]
    """
    text = spec.strip()
    if "/" in text or text.endswith(_SUFFIXES):
        file = read_cards(Path(text), WrittenCards)
        if isinstance(file, list):
            return file
        written, links, where = file.cards, file.links, f"{text}: "
    else:
        complaints: list[str] = []
        written, links, where = _terms(text, complaints), None, ""
        if complaints:
            return complaints
    if not 0 < len(written) <= MOST_CARDS:
        return [f"{where}{len(written)} cards are not possible; give 1 to {MOST_CARDS}"]
    cards = _numbered(written, node)
    if links is not None:
        scores = topologies.score_topology(simplify_yaml(links), len(cards))
        if isinstance(scores, str):
            return [f"{where}links: {scores}"]
        cards = _joined(cards, scores)
    return tuple(sorted(cards, key=lambda card: card.index))


def _terms(text: str, complaints: list[str]) -> tuple[WrittenCard, ...]:
    cards: list[WrittenCard] = []
    for number, term in enumerate(text.split(","), 1):
        match = _TERM.fullmatch(term.strip())
        if match is None:
            fix = "write COUNTxSIZE with MiB or GiB, such as 4x24GiB"
            complaints.append(f"term {number}: {term.strip()!r} is not valid; {fix}")
            continue
        count, size = int(match["count"]), int(match["size"]) * _MIB[match["unit"]]
        if not 0 < count <= MOST_CARDS:
            fix = f"give 1 to {MOST_CARDS} cards"
            complaints.append(f"term {number}: {count} cards are not possible; {fix}")
        if not LEAST_MIB <= size <= MOST_MIB:
            fix = f"give each card {LEAST_MIB}MiB to {MOST_MIB}MiB"
            complaints.append(f"term {number}: {size}MiB is not valid; {fix}")
        card = WrittenCard.model_construct(memory_mib=size)
        cards += [card] * min(count, MOST_CARDS + 1)
    return tuple(cards)


def _joined(cards: Sequence[FoundCard], scores: Sequence[int]) -> list[FoundCard]:
    links: list[dict[CardUUID, int]] = [{} for _ in cards]
    for (a, b), score in zip(pairs(len(cards)), scores, strict=True):
        links[a][cards[b].uuid] = links[b][cards[a].uuid] = score
    return [
        replace(card, links=scores) for card, scores in zip(cards, links, strict=True)
    ]


def _numbered(written: Sequence[WrittenCard], node: str) -> list[FoundCard]:
    taken = {card.index for card in written}
    free = iter([i for i in range(2 * len(written)) if i not in taken])
    return [
        FoundCard(
            uuid=CardUUID(card.uuid or _made_up(node, place)),
            index=next(free) if card.index is None else card.index,
            memory_mib=card.memory_mib,
            model=card.model or MODEL,
            simulated=True,
        )
        for place, card in enumerate(written)
    ]


def _made_up(node: str, place: int) -> str:
    name = f"{node}/cards/{place}"
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, name)}"
