"""Closing a card to new pods, opening it again, calling a sick one well.

An operator's word stands in a node annotation as UUIDs with commas; it is changed under
the version that was read, so that two operators do not undo each other's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from gpushare.domain.model import Card, CardUUID
from gpushare.kube import codec, names, words
from gpushare.kube.bookkeeper import UNFINISHED
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Conflict
from gpushare.kube.fields import Malformed
from gpushare.kube.objects import Ref
from gpusharectl.inspection import facts
from gpusharectl.inspection.sources import Reach, everything

_TRIES = 10
"""A busy node's status is written every few seconds; ten in a row do not come."""
_FEWEST_LETTERS = 4
_MOST_NAMES = 5


class Order(Enum):
    """What to do with cards: the annotation, and whether they go in or out of it."""

    CORDON = (names.CORDON, True)
    UNCORDON = (names.CORDON, False)
    CLEAR = (names.CLEAR, True)

    @property
    def key(self) -> str:
        """The annotation that is written."""
        return self.value[0]

    @property
    def adds(self) -> bool:
        """Whether UUIDs are added."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class No:
    """Nothing was changed; the words say why and what there is."""

    words: str


@dataclass(frozen=True, slots=True)
class Done:
    """What was ordered; ``changed`` are those cards of which it was not so before.

    ``node`` is as it was read, ``cards`` in the order in which they were named.
    """

    node: Json
    cards: tuple[CardUUID, ...]
    changed: frozenset[CardUUID]


def carry_out(reach: Reach, order: Order, name: str, cards: Sequence[str]) -> Done | No:
    """Write an order on a node; each card by index, UUID or the beginning of one.

    ``ClusterError`` where the API server does not let us. Writing what stands there
    already is no write at all.
    """
    ref = Ref("v1", "Node", name)
    for _ in range(_TRIES):
        node = reach.objects.get(ref)
        if node is None:
            return No(_no_such_node(reach, name))
        found = _cards(node, order, cards)
        if isinstance(found, No):
            return found
        before = facts.annotation(node, order.key)
        after, changed = edited(before, found, adds=order.adds)
        if not changed:
            return Done(node, found, changed)
        version = node["metadata"]["resourceVersion"]
        written = {"resourceVersion": version, "annotations": {order.key: after}}
        try:
            reach.objects.merge(ref, {"metadata": written})
        except Conflict:
            continue
        return Done(node, found, changed)
    raise Conflict(f"node {name} is written so often that no turn came; try again")


def edited(
    text: str, uuids: Sequence[CardUUID], *, adds: bool
) -> tuple[str | None, frozenset[CardUUID]]:
    """Give the annotation with UUIDs added or taken out, the others kept in order.

    None in place of an empty one: it goes. Beside it, which of the UUIDs are news.

    >>> edited(" GPU-1, ,GPU-2", [CardUUID("GPU-1")], adds=False)
    ('GPU-2', frozenset({'GPU-1'}))
    """
    there = [CardUUID(one.strip()) for one in text.split(",") if one.strip()]
    if adds:
        news = [uuid for uuid in uuids if uuid not in there]
        left = [*there, *dict.fromkeys(news)]
    else:
        news = [uuid for uuid in uuids if uuid in there]
        left = [uuid for uuid in there if uuid not in news]
    return ",".join(left) or None, frozenset(news)


def pods_on(reach: Reach, name: str, uuid: CardUUID) -> list[str]:
    """Name the pods that hold a part of a card, by what stands on them."""
    found = []
    selector = f"spec.nodeName={name},{UNFINISHED}"
    for pod in everything(reach.cluster, Kind.PODS, selector):
        if not codec.is_ours(pod):
            continue
        try:
            held = codec.pod_record(pod).placement
        except Malformed:
            continue
        if held is not None and uuid in held.cards():
            found.append(str(held.pod))
    return sorted(found)


def _cards(node: Json, order: Order, texts: Sequence[str]) -> tuple[CardUUID, ...] | No:
    name = facts.name_of(node)
    try:
        here = codec.cards(node)
    except Malformed as error:
        return No(f"{name}: its cards cannot be told: {error}")
    strays = codec.uuids(facts.annotation(node, order.key)) - {c.uuid for c in here}
    known = [*(card.uuid for card in here), *(() if order.adds else sorted(strays))]
    found = []
    for text in texts:
        one = card_named(text, here, known)
        if isinstance(one, No):
            return No(f"{name}: {one.words}; {_there(here)}")
        found.append(one)
    return tuple(dict.fromkeys(found))


def card_named(
    text: str, cards: Sequence[Card], known: Sequence[CardUUID]
) -> CardUUID | No:
    """Find the card that a person means: its index, its UUID, or how that begins."""
    rules: tuple[Callable[[CardUUID], bool], ...] = (
        lambda uuid: uuid == text,
        lambda uuid: uuid in {c.uuid for c in cards if str(c.index) == text},
        lambda uuid: len(text) >= _FEWEST_LETTERS and _begins(uuid, text),
    )
    for rule in rules:
        found = [uuid for uuid in known if rule(uuid)]
        if len(found) == 1:
            return found[0]
        if found:
            which = words.listed(found, _MOST_NAMES)
            return No(f'"{text}" may be any of {which}; give more of the UUID')
    return No(f'no card is called "{text}"')


def _begins(uuid: str, text: str) -> bool:
    bare = uuid.lower()
    return bare.startswith(text.lower()) or bare.partition("-")[2].startswith(
        text.lower()
    )


def _there(cards: Sequence[Card]) -> str:
    if not cards:
        return "it shares no cards"
    listed = (f"{card.index} ({card.uuid})" for card in cards)
    return f"there are {words.listed(listed, _MOST_NAMES)}"


def _no_such_node(reach: Reach, name: str) -> str:
    sharing = sorted(
        facts.name_of(node)
        for node in everything(reach.cluster, Kind.NODES)
        if facts.annotation(node, names.CARDS)
    )
    there = words.listed(sharing, _MOST_NAMES) or "none"
    return f'there is no node "{name}"; nodes that share cards: {there}'
