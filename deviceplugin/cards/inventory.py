"""Cards that the driver does not know: a node's accelerators, listed in a file.

Read a YAML file that lists cards, with every complaint at once, by line and field.

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
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from deviceplugin.cards.deadline import Asking
from deviceplugin.cards.source import CardReading, Found, FoundCard, XidEvent
from gpushare.domain.model import UNIT_MIB, CardUUID

LEAST_MIB = UNIT_MIB
MOST_MIB = 16 * 2**20
MOST_INDEX = 9999
FIELDS = (
    *("uuid", "memory_mib", "model", "index"),
    *("nodes", "variables", "used_mib_file"),
)

_MOST_BYTES = 2**20
_MOST_DIGITS = 12
_UUID = re.compile(r"[!-+\--~]{1,128}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = ("VCUDA_", "NVIDIA_VISIBLE_DEVICES")
_NULL = "tag:yaml.org,2002:null"


@dataclass(slots=True)
class Written:
    """One card as the file has it; empty or None where it says nothing."""

    uuid: str = ""
    memory_mib: int = 0
    model: str = ""
    index: int | None = None
    nodes: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    used_mib_file: str | None = None


def cards_in(
    path: Path, fields: Collection[str] = FIELDS, needed: Collection[str] = ()
) -> tuple[Written, ...] | list[str]:
    """Give the file's cards in their order, or complaints: sentences for a person.

    ``fields`` are those that a card may have, ``needed`` those that it must.
    """
    page = _Page(str(path), fields, needed)
    try:
        with path.open("rb") as opened:
            text = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        return [f"{path}: cannot be read ({error.strerror}); give a file of cards"]
    if len(text) > _MOST_BYTES:
        return [f"{path}: is longer than 1 MiB; give a file of cards"]
    cards = tuple(page.read(text))
    return page.complaints or cards


class _Page:
    """One pass over one file."""

    def __init__(
        self, name: str, fields: Collection[str], needed: Collection[str]
    ) -> None:
        self.complaints: list[str] = []
        self._name = name
        self._fields = fields
        self._needed = needed
        self._seen: dict[Hashable, str] = {}

    def read(self, text: bytes) -> list[Written]:
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            self.complaints.append(f"{self._name}: is not YAML ({_in_one_line(error)})")
            return []
        if root is None:
            self.complaints.append(f"{self._name}: is empty; list cards under 'cards:'")
            return []
        cards: list[Written] = []
        shared = Written()
        for name, node in self._pairs(root, ""):
            if name == "cards":
                for number, one in enumerate(self._items(node, "cards")):
                    cards.append(self._card(one, f"cards[{number}]"))
            elif name == "shared_nodes" and "nodes" in self._fields:
                self._nodes(shared, node, name)
            else:
                known = "'cards'"
                if "nodes" in self._fields:
                    known += " and 'shared_nodes'"
                self._complain(node, name, f"is not known; use only {known}")
        for card in cards:
            card.nodes += shared.nodes
        return cards

    def _card(self, node: yaml.Node, where: str) -> Written:
        card = Written()
        readers: dict[str, Callable[[Written, yaml.Node, str], None]] = {
            "uuid": self._uuid,
            "memory_mib": self._memory,
            "model": self._model,
            "index": self._index,
            "nodes": self._nodes,
            "variables": self._variables,
            "used_mib_file": self._used,
        }
        given = set()
        for name, value in self._pairs(node, where):
            given.add(name)
            if name in self._fields:
                readers[name](card, value, f"{where}.{name}")
            else:
                known = ", ".join(self._fields)
                self._complain(value, f"{where}.{name}", f"is not known; use {known}")
        if isinstance(node, yaml.MappingNode):
            for name in self._needed:
                if name not in given:
                    self._complain(node, f"{where}.{name}", "is missing")
        return card

    def _uuid(self, card: Written, node: yaml.Node, where: str) -> None:
        text = self._text(node, where)
        if text and not _UUID.fullmatch(text):
            fix = "use at most 128 characters without blanks and commas"
            self._complain(node, where, f"{text!r} will not do; {fix}")
        elif text:
            card.uuid = text
            self._once(node, where, ("uuid", text.lower()))

    def _memory(self, card: Written, node: yaml.Node, where: str) -> None:
        found = self._whole(node, where, LEAST_MIB, MOST_MIB)
        card.memory_mib = found or 0

    def _model(self, card: Written, node: yaml.Node, where: str) -> None:
        card.model = self._text(node, where)

    def _index(self, card: Written, node: yaml.Node, where: str) -> None:
        card.index = self._whole(node, where, 0, MOST_INDEX)
        if card.index is not None:
            self._once(node, where, ("index", card.index))

    def _nodes(self, card: Written, node: yaml.Node, where: str) -> None:
        found = []
        for number, one in enumerate(self._items(node, where)):
            path = self._path(one, f"{where}[{number}]")
            if path:
                found.append(path)
                self._once(one, f"{where}[{number}]", ("node", path))
        card.nodes = tuple(found)

    def _variables(self, card: Written, node: yaml.Node, where: str) -> None:
        for name, value in self._pairs(node, where):
            text = self._text(value, f"{where}.{name}")
            if not _VARIABLE.fullmatch(name):
                self._complain(value, f"{where}.{name}", "is no name of a variable")
            elif name.startswith(_OURS):
                problem = "is set by the device plugin itself; leave it out"
                self._complain(value, f"{where}.{name}", problem)
            else:
                card.variables[name] = text

    def _used(self, card: Written, node: yaml.Node, where: str) -> None:
        card.used_mib_file = self._path(node, where) or None

    def _pairs(self, node: yaml.Node, where: str) -> Iterator[tuple[str, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self._complain(node, where, "must be a mapping, 'name: value'")
            return
        seen = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            if name in seen:
                place = f"{where}.{name}".lstrip(".")
                self._complain(key, place, "stands here a second time; keep one")
            seen.add(name)
            yield name, value

    def _items(self, node: yaml.Node, where: str) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            self._complain(node, where, "must be a list")
            return []
        return list(node.value)

    def _text(self, node: yaml.Node, where: str) -> str:
        # As it is written, whatever YAML would make of it: 'yes' and 007 stay so.
        if isinstance(node, yaml.ScalarNode) and node.tag != _NULL and node.value:
            return str(node.value)
        self._complain(node, where, "must be a text and not empty")
        return ""

    def _whole(self, node: yaml.Node, where: str, least: int, most: int) -> int | None:
        raw = node.value if isinstance(node, yaml.ScalarNode) else ""
        plain = raw.isascii() and raw.isdigit() and len(raw) <= _MOST_DIGITS
        if plain and least <= int(raw) <= most:
            return int(raw)
        fix = f"give a whole number from {least} to {most}"
        self._complain(node, where, f"{raw!r} will not do; {fix}" if raw else fix)
        return None

    def _path(self, node: yaml.Node, where: str) -> str:
        text = self._text(node, where)
        if not text or (text[0] == "/" and os.path.normpath(text) == text):
            return text
        self._complain(node, where, f"{text!r} will not do; give an absolute path")
        return ""

    def _once(self, node: yaml.Node, where: str, key: Hashable) -> None:
        first = self._seen.setdefault(key, where)
        if first != where:
            self._complain(node, where, f"is the same as {first}; give each its own")

    def _complain(self, node: yaml.Node, where: str, problem: str) -> None:
        line = node.start_mark.line + 1
        place = f"{where}: " if where else ""
        self.complaints.append(f"{self._name}, line {line}: {place}{problem}")


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_READ_BYTES = 64


@dataclass(frozen=True, slots=True)
class InventoryCard:
    """One card of the file, and the file that tells its memory in use, if any does."""

    card: FoundCard
    used_mib_file: str | None = None


def read_inventory(path: Path) -> tuple[InventoryCard, ...] | list[str]:
    """Give the cards of an inventory file (``cardfile`` shows one), or all complaints.

    Cards without an index follow, in the file's order, those that have one.
    """
    written = cards_in(path, needed=("uuid", "memory_mib"))
    if isinstance(written, list):
        return written
    following = 1 + max(
        (one.index for one in written if one.index is not None), default=-1
    )
    found = []
    for one in written:
        index = one.index
        if index is None:
            index, following = following, following + 1
        card = FoundCard(
            uuid=CardUUID(one.uuid),
            index=index,
            memory_mib=one.memory_mib,
            model=one.model,
            nodes=one.nodes,
            variables=one.variables,
            known_to_driver=False,
        )
        found.append(InventoryCard(card, one.used_mib_file))
    return tuple(sorted(found, key=lambda one: one.card.index))


class InventoryCards:
    """A ``CardSource`` of the cards in an inventory file.

    A card is there while its device nodes are: one that is missing is a failure, for
    no container could open the card. That the file of the memory in use is missing, or
    holds no number, is none: such files come and go with the vendor's own daemon, and
    the card works without. Its use is then unknown, None.
    """

    def __init__(
        self, cards: Sequence[InventoryCard], *, deadline_s: float = 5.0
    ) -> None:
        self._cards = tuple(cards)
        self._asking = Asking(deadline_s)
        self._closed = threading.Event()

    def cards(self) -> Found:
        """Give the file's cards, whether or not their device nodes are there."""
        return Found(tuple(one.card for one in self._cards))

    def readings(self) -> Sequence[CardReading]:
        """Look for each card's device nodes, and read its memory in use."""
        answers = self._asking.ask(
            {one.card.uuid: _Reading(one) for one in self._cards}
        )
        return [
            CardReading(uuid, None, str(answer))
            if isinstance(answer, Exception)
            else answer
            for uuid, answer in answers.items()
        ]

    def wait_for_event(self, timeout_s: float) -> XidEvent | None:
        """Wait in vain: nobody reports faults of such cards."""
        self._closed.wait(timeout_s)
        return None

    def driver_load(self) -> str:
        """Give nothing: their drivers are not known."""
        return ""

    def close(self) -> None:
        """Wake whoever waits for an event."""
        self._closed.set()


@dataclass(frozen=True, slots=True)
class _Reading:
    """The question that is asked of one card."""

    one: InventoryCard

    def __call__(self) -> CardReading:
        card = self.one.card
        missing = [node for node in card.nodes if not os.path.exists(node)]  # noqa: PTH110
        if missing:
            return CardReading(card.uuid, None, f"{', '.join(missing)} is missing")
        used = _used_mib(self.one.used_mib_file)
        # A number above the card's memory is some other number: then nothing is known.
        known = used is not None and used <= card.memory_mib
        return CardReading(card.uuid, used if known else None)


def _used_mib(path: str | None) -> int | None:
    if path is None:
        return None
    try:
        with Path(path).open("rb") as opened:
            text = opened.read(_READ_BYTES).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else None
