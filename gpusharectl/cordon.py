"""Closing a card to new pods, opening it again, calling a sick one well.

An operator's word stands in a node annotation as UUIDs with commas; it is changed under
the version that was read, so that two operators do not undo each other's.

What ``cordon-card`` and its sisters say: what is so now, and for whom. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import click

from gpushare.cache.pods import UNFINISHED
from gpushare.domain.model import Card, CardUUID
from gpushare.kube import codec, facts, names, words
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Conflict
from gpushare.kube.json_reader import Malformed
from gpushare.kube.objects import Ref
from gpusharectl.access import access_options, reached
from gpusharectl.completion import card_names, node_names
from gpusharectl.output import fit_to_show
from gpusharectl.state.read import Reach, everything

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


_MOST = 5


def told(
    order: Order, done: Done, pods: Mapping[CardUUID, Sequence[str]]
) -> Iterator[str]:
    """Say what came of an order, a line or two for each card."""
    name = facts.name_of(done.node)
    known = {card.uuid: card for card in codec.cards(done.node)}
    for uuid in done.cards:
        card, news = known.get(uuid), uuid in done.changed
        if card is None:
            now = "is off the list now" if news else "was not on the list"
            yield f"{name}: {uuid}, which is no card there, {now}."
        elif order is Order.CORDON:
            now = "is cordoned now" if news else "was cordoned already"
            yield f"{_which(name, card)} {now}: it gets nothing new."
            yield _staying(pods.get(uuid, ()))
        elif order is Order.UNCORDON:
            now = "is open again" if news else "was not cordoned"
            sick = "" if card.healthy else "; it is sick, so nothing comes there yet"
            yield f"{_which(name, card)} {now}{sick}."
        else:
            yield from _cleared(name, card, news=news)
    if order is Order.CORDON:
        yield from _all_closed(name, done, known)


def _which(name: str, card: Card) -> str:
    model = f", {card.model}" if card.model else ""
    return f"{name} card {card.index} ({card.uuid}{model})"


def _staying(pods: Sequence[str]) -> str:
    if not pods:
        return "  No pod has a part of it."
    verb = "goes on and stays" if len(pods) == 1 else "go on and stay"
    return (
        f"  {words.counted(len(pods), 'pod')} there {verb} charged: "
        f"{words.listed(pods, _MOST)}. Delete one, and its controller's new pod "
        "goes to another card."
    )


def _cleared(name: str, card: Card, *, news: bool) -> Iterator[str]:
    if card.healthy:
        yield (
            f"{_which(name, card)} is not sick, by what its device plugin has told; "
            "the order is given all the same."
        )
    done = "is to be well" if news else "was to be well already"
    yield (
        f"{_which(name, card)} {done}: the device plugin there takes the order off "
        "when it has forgotten the card's faults, within seconds."
    )
    yield "  A card that does not answer stays sick until it does."
    yield f"  Next: gpusharectl inspect --node {name}"


def _all_closed(name: str, done: Done, known: Mapping[CardUUID, Card]) -> Iterator[str]:
    closed = set(done.cards)
    if all(not card.open or card.uuid in closed for card in known.values()):
        yield f"No card of {name} is open any more."


_CODES = (
    "Exit codes: 0 it is so now, 1 it could not be done, "
    "2 the command line is not understood."
)


@click.command(epilog=_CODES)
@access_options
@click.argument("node", shell_complete=node_names)
@click.argument("cards", nargs=-1, required=True, shell_complete=card_names)
def cordon_card(
    node: str, cards: tuple[str, ...], kubeconfig: str | None, context: str | None
) -> None:
    """Let NODE's CARDS get nothing new; what runs there goes on.

    A card is named by its index, its UUID, or how the UUID begins.
    """
    _order(Order.CORDON, node, cards, kubeconfig, context)


@click.command(epilog=_CODES)
@access_options
@click.argument("node", shell_complete=node_names)
@click.argument("cards", nargs=-1, required=True, shell_complete=card_names)
def uncordon_card(
    node: str, cards: tuple[str, ...], kubeconfig: str | None, context: str | None
) -> None:
    """Open NODE's CARDS to pods again.

    A card is named by its index, its UUID, or how the UUID begins; one that is not
    there any more may be taken off the list too.
    """
    _order(Order.UNCORDON, node, cards, kubeconfig, context)


@click.command(epilog=_CODES)
@access_options
@click.argument("node", shell_complete=node_names)
@click.argument("cards", nargs=-1, required=True, shell_complete=card_names)
def clear_card(
    node: str, cards: tuple[str, ...], kubeconfig: str | None, context: str | None
) -> None:
    """Say that NODE's sick CARDS are well again, once you have seen to them.

    It makes the device plugin there forget faults that the driver reported; a card
    that does not answer stays sick. A card is named by its index, its UUID, or how the
    UUID begins.
    """
    _order(Order.CLEAR, node, cards, kubeconfig, context)


def _order(
    order: Order,
    node: str,
    cards: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
) -> None:
    with reached(kubeconfig, context) as access:
        done = carry_out(access, order, node, cards)
        if isinstance(done, No):
            raise click.ClickException(done.words)
        there = order is Order.CORDON
        pods = {uuid: pods_on(access, node, uuid) for uuid in done.cards if there}
    for line in told(order, done, pods):
        click.echo(fit_to_show(line))
