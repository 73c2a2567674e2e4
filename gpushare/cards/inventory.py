"""Cards that the driver does not know: a node's accelerators, listed in a YAML file.

```yaml
cards:
- uuid: 0f0e5d42-made-by-hand   # any text without blanks and commas
  memory_mib: 24576
  model: Accelerator X
  index: 4
  nodes: [/dev/accel0]
  variables: {ACCEL_VISIBLE: "0"}
  used_mib_file: /sys/class/accel/accel0/used_mib
shared_nodes: [/dev/accel_ctl]  # device nodes that go with every card
```
"""

import os.path
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field

from gpushare.cards.deadline import DeadlineCalls
from gpushare.cards.source import CardReading, FoundCard, FoundCards, WithoutFaults
from gpushare.domain.model import UNIT_MIB, CardUUID
from gpushare.kube.names import VISIBLE
from gpushare.yaml_file import (
    Location,
    Text,
    YamlError,
    YamlFile,
    YamlValue,
    bounded_number,
    format_path,
    read_bytes,
)

LEAST_MIB = UNIT_MIB
MOST_MIB = 16 * 2**20
MOST_INDEX = 9999

_DEADLINE_S = 5.0
_MOST_FILE_MIB = 1
_MOST_DIGITS = 12
_UUID = re.compile(r"[!-+\--~]{1,128}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = ("VCUDA_", VISIBLE)


def _checked_uuid(text: str) -> str:
    if not _UUID.fullmatch(text):
        raise ValueError(
            f"is {text!r}; use at most 128 characters without blanks and commas"
        )
    return text


def _checked_path(text: str) -> str:
    if text[0] != "/" or os.path.normpath(text) != text:
        raise ValueError(f"is {text!r}; give an absolute path")
    return text


def _checked_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError("is not the name of an environment variable")
    if name.startswith(_OURS):
        raise ValueError("is set by the device plugin itself; leave it out")
    return name


_Path = Annotated[Text, AfterValidator(_checked_path)]
_Variable = Annotated[str, AfterValidator(_checked_variable)]


class WrittenCard(YamlValue):
    """A card as a file describes it; empty or None where the file does not say."""

    uuid: Annotated[Text, AfterValidator(_checked_uuid)] = ""
    memory_mib: Annotated[int, bounded_number(LEAST_MIB, MOST_MIB)]
    model: Text = ""
    index: Annotated[int | None, bounded_number(0, MOST_INDEX)] = None


class _Accelerator(WrittenCard):
    uuid: Annotated[Text, AfterValidator(_checked_uuid)]
    nodes: tuple[_Path, ...] = ()
    variables: dict[_Variable, Text] = Field(default_factory=dict)
    used_mib_file: _Path | None = None


class WrittenCards(YamlValue):
    """A file of simulated cards; ``links`` as ``topologies.scores`` reads them."""

    cards: tuple[WrittenCard, ...] = ()
    links: Any = None


class _Inventory(YamlValue):
    cards: tuple[_Accelerator, ...] = ()
    shared_nodes: tuple[_Path, ...] = ()


_File = TypeVar("_File", bound=YamlValue)


def read_cards(file: Path, model: type[_File]) -> _File | list[str]:
    """Read a file of cards, or return all complaints about it, one sentence each."""
    try:
        text = read_bytes(file, _MOST_FILE_MIB)
        file_ = YamlFile(text, str(file), example="list cards under 'cards:'")
        first: dict[Hashable, Location] = {}
        for location, key in _unique(file_.root):
            if (other := first.setdefault(key, location)) != location:
                same = f"is the same as {format_path(other)}"
                file_.complain(location, f"{same}; each needs a value of its own")
        return file_.read(model)
    except YamlError as error:
        return list(error.complaints)


def _unique(root: Any) -> Iterator[tuple[Location, Hashable]]:  # noqa: ANN401
    """Yield what may stand once in a file only, with its location.

    The models look at one value at a time, so this looks at the file as it is written.
    """
    fields = root if isinstance(root, dict) else {}
    cards = fields.get("cards")
    for number, card in enumerate(cards if isinstance(cards, list) else ()):
        if isinstance(card, dict):
            for name in ("uuid", "index"):
                if isinstance(value := card.get(name), str):
                    yield ("cards", number, name), (name, value.lower())
            yield from _nodes(card, ("cards", number), "nodes")
    yield from _nodes(fields, (), "shared_nodes")


def _nodes(
    fields: dict[str, Any], location: Location, name: str
) -> Iterator[tuple[Location, Hashable]]:
    nodes = fields.get(name)
    for number, node in enumerate(nodes if isinstance(nodes, list) else ()):
        if isinstance(node, str):
            yield (*location, name, number), ("node", node)


@dataclass(frozen=True, slots=True)
class InventoryCard:
    """One card of the file, and the file that has its memory in use, if any does."""

    card: FoundCard
    used_mib_file: str | None = None


def read_inventory(file: Path) -> tuple[InventoryCard, ...] | list[str]:
    """Return the cards of an inventory file by index, or all complaints about it.

    Cards without an index follow, in the file's order, those that have one.
    """
    inventory = read_cards(file, _Inventory)
    if isinstance(inventory, list):
        return inventory
    given = (
        accelerator.index
        for accelerator in inventory.cards
        if accelerator.index is not None
    )
    following = 1 + max(given, default=-1)
    cards = []
    for accelerator in inventory.cards:
        index = accelerator.index
        if index is None:
            index, following = following, following + 1
        card = FoundCard(
            uuid=CardUUID(accelerator.uuid),
            index=index,
            memory_mib=accelerator.memory_mib,
            model=accelerator.model,
            device_nodes=(*accelerator.nodes, *inventory.shared_nodes),
            variables=accelerator.variables,
            known_to_driver=False,
        )
        cards.append(InventoryCard(card, accelerator.used_mib_file))
    return tuple(sorted(cards, key=lambda listed: listed.card.index))


class WrittenSource(WithoutFaults):
    """Cards from a file or the settings: always the same, and none reports faults."""

    def __init__(self, cards: Iterable[FoundCard]) -> None:
        super().__init__()
        self._found = FoundCards(tuple(sorted(cards, key=lambda card: card.index)))

    def cards(self) -> FoundCards:
        """Return the cards, whether or not their device nodes are there."""
        return self._found


class InventoryCards(WrittenSource):
    """A ``CardSource`` of the cards in an inventory file.

    A card is there while its device nodes are: one that is missing is a failure, for
    no container could open the card. That the file of the memory in use is missing, or
    holds no number, is none: such files come and go with the vendor's own daemon, and
    the card works without. Its use is then unknown, None.
    """

    def __init__(self, cards: Sequence[InventoryCard]) -> None:
        super().__init__(listed.card for listed in cards)
        self._cards = tuple(cards)
        self._calls = DeadlineCalls(_DEADLINE_S)

    def readings(self) -> Sequence[CardReading]:
        """Look for each card's device nodes, and read its memory in use."""
        answers = self._calls.make_all(
            {listed.card.uuid: partial(_reading, listed) for listed in self._cards}
        )
        return [
            CardReading(uuid, None, str(answer))
            if isinstance(answer, Exception)
            else answer
            for uuid, answer in answers.items()
        ]

    def driver_load(self) -> str:
        """Return nothing: their drivers are not known."""
        return ""


def _reading(listed: InventoryCard) -> CardReading:
    card = listed.card
    missing = [node for node in card.device_nodes if not os.path.exists(node)]  # noqa: PTH110
    if missing:
        return CardReading(card.uuid, None, f"{', '.join(missing)} is missing")
    used = _used_mib(listed.used_mib_file)
    # A number above the card's memory is some other number: then nothing is known.
    known = used is not None and used <= card.memory_mib
    return CardReading(card.uuid, used if known else None)


def _used_mib(path: str | None) -> int | None:
    if path is None:
        return None
    try:
        with Path(path).open("rb") as opened:
            text = opened.read(64).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else None
