"""Nodes as a scenario writes them. Pure."""

import re
from collections.abc import Iterator

from gpushare.domain.model import Card, units_of
from gpushare.kube.cluster import Json
from gpusharectl.simulator import made
from gpusharectl.simulator.yamlfields import Entry
from gpusharectl.simulator.yamltimes import quantity

MOST_CARDS = 64
MOST_NODES = 20_000
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,200}[a-z0-9])?")
_TERM = re.compile(r"(\d{1,3})x(\d{1,9})(MiB|GiB)")
_MIB = {"MiB": 1, "GiB": 1024}
_Size = tuple[int, str]
"""Units of a card, and its model."""


def read_nodes(entry: Entry) -> Iterator[Json]:
    """Read one entry of ``nodes``: so many nodes alike.

    Their names are the entry's, with a number behind it where it counts more than one.
    """
    entry.known(
        *("name", "count", "cards", "model", "cpu", "memory", "pods"),
        *("labels", "unschedulable"),
    )
    name = read_name(entry)
    count = read_count(entry)
    sizes = _sizes(entry)
    host = made.Host(
        quantity(entry, "cpu"),
        quantity(entry, "memory"),
        entry.integer("pods") if entry.has("pods") else None,
        read_labels(entry, "labels"),
        entry.flag("unschedulable", default=False),
    )
    for number in range(count):
        own = f"{name}-{number + 1}" if entry.has("count") else name
        cards = [_card(own, index, size) for index, size in enumerate(sizes)]
        yield made.node(own, cards, host)


def read_count(entry: Entry) -> int:
    """Read of how many nodes an entry tells, 1 where it does not say."""
    count = entry.integer("count", 1)
    if count > MOST_NODES:
        raise entry.wrong("count", f"is {count}; it may be {MOST_NODES}")
    return count


def read_name(entry: Entry, key: str = "name", default: str | None = None) -> str:
    """Read the name of a node, pod or namespace, or what it begins with."""
    name = entry.text(key, default)
    if not _NAME.fullmatch(name):
        problem = f'is "{name}"; a name has small letters, digits, - and .'
        raise entry.wrong(key, problem)
    return name


def read_labels(entry: Entry, key: str) -> dict[str, str]:
    """Read labels, none where the field is not there."""
    if not entry.has(key):
        return {}
    told = entry.entry(key)
    return {label: told.text(label) for label in told.fields()}


def _sizes(entry: Entry) -> list[_Size]:
    model = entry.text("model", "")
    if not entry.has("cards"):
        return []
    if entry.is_text("cards"):
        found = _terms(entry, model)
    else:
        found = [size for one in entry.entries("cards") for size in _cards(one, model)]
    if len(found) > MOST_CARDS:
        raise entry.wrong("cards", f"these are {len(found)}; it may be {MOST_CARDS}")
    return found


def _terms(entry: Entry, model: str) -> list[_Size]:
    """Read ``8x24GiB`` or ``1x24259MiB,2x7611MiB``, as --simulated-cards has it."""
    found: list[_Size] = []
    text = entry.text("cards")
    for term in text.split(","):
        match = _TERM.fullmatch(term.strip())
        if match is None:
            raise entry.wrong(
                "cards",
                f'is "{text}"; write 8x24GiB for eight cards of 24 GiB, or '
                "1x24259MiB,2x7611MiB, or a list of {count, units, model}",
            )
        if not int(match[1]):
            raise entry.wrong(
                "cards", f'"{text}": give 1 card or more, or leave the field out'
            )
        units = units_of(int(match[2]) * _MIB[match[3]])
        if not units:
            raise entry.wrong("cards", f'"{text}": a card has at least 256 MiB')
        found += [(units, model)] * int(match[1])
    return found


def _cards(entry: Entry, model: str) -> list[_Size]:
    entry.known("count", "units", "model")
    size = entry.integer("units", least=1)
    count = entry.integer("count", 1, least=1)
    if count > MOST_CARDS:
        raise entry.wrong("count", f"is {count}; it may be {MOST_CARDS}")
    return [(size, entry.text("model", model))] * count


def _card(node: str, index: int, size: _Size) -> Card:
    return made.card(node, index, *size)
