"""``cordon-card``, ``uncordon-card`` and ``clear-card``: orders for a node's cards.

An order is a node annotation with UUIDs, separated by commas. It is written only if the
node is still as it was read, so that two operators do not undo each other's orders.
A command that cordons for a while is the owner of its cordon: ``GPU-1,GPU-1=owner``. It
opens only what it still owns. An operator's cordon has no owner, and replaces one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import click

from gpushare.domain.model import Card, CardUUID
from gpushare.informers.pods import UNFINISHED
from gpushare.kube import codec, facts, names, words
from gpushare.kube.annotations import read_cards, read_uuids
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import Conflict
from gpushare.kube.json_reader import Malformed
from gpushare.kube.objects import Ref
from gpusharectl.access import Access, access_options, reached
from gpusharectl.completion import complete_cards, complete_nodes
from gpusharectl.output import fit_to_show
from gpusharectl.state.read import list_all

_TRIES = 10
"""A busy node's status is written every few seconds."""
_FEWEST_LETTERS = 4
_MOST_NAMES = 5
_CODES = (
    "Exit codes: 0 the cards are now as requested; 1 it could not be done; 2 wrong "
    "command line."
)


class Order(Enum):
    """What to do with cards: the annotation, and whether UUIDs are added to it."""

    CORDON = (names.CORDON, True)
    UNCORDON = (names.CORDON, False)
    CLEAR = (names.CLEAR, True)


class OrderRefused(Exception):
    """Nothing was changed; the message says why, and what there is."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was ordered; ``changed`` are the cards of which it was not so before.

    ``node`` is as it was read, ``cards`` in the order in which they were named.
    """

    node: Json
    cards: tuple[CardUUID, ...]
    changed: frozenset[CardUUID]


def carry_out_order(
    reach: Access, order: Order, name: str, cards: Sequence[str], owner: str = ""
) -> Done:
    """Write an order on a node; each card is an index, a UUID or the start of one.

    ``owner`` is who cordons for a while, and who opens no more than that.
    ``OrderRefused`` if there is no such node or card, ``ClusterError`` if the API
    server refuses. If nothing changes, nothing is written.
    """
    ref, (key, adds) = Ref("v1", "Node", name), order.value
    for _ in range(_TRIES):
        node = reach.objects.get(ref)
        if node is None:
            raise OrderRefused(_no_such_node(reach, name))
        uuids = _cards(node, order, cards)
        text = facts.annotation(node, key)
        after, changed = edit_uuids(text, uuids, adds=adds, owner=owner)
        if not changed:
            return Done(node, uuids, changed)
        version = node["metadata"]["resourceVersion"]
        written = {"resourceVersion": version, "annotations": {key: after}}
        try:
            reach.objects.merge(ref, {"metadata": written})
        except Conflict:
            continue
        return Done(node, uuids, changed)
    raise Conflict(f"node {name} changes all the time; try again")


def edit_uuids(
    text: str, uuids: Sequence[CardUUID], *, adds: bool, owner: str = ""
) -> tuple[str | None, frozenset[CardUUID]]:
    """Return the annotation with UUIDs added or removed, and those that changed.

    The other UUIDs keep their order. None in place of an empty annotation. An order
    without an owner is an operator's: it replaces and removes those with one.

    >>> edit_uuids(" GPU-1, ,GPU-2", [CardUUID("GPU-1")], adds=False)
    ('GPU-2', frozenset({'GPU-1'}))
    >>> edit_uuids("GPU-1,GPU-1=a", [CardUUID("GPU-1")], adds=True)
    ('GPU-1', frozenset({'GPU-1'}))
    """
    entries = _entries(text)
    owned = {entry.partition("=")[0] for entry in entries if "=" in entry}

    def changes(uuid: CardUUID) -> bool:
        if owner:
            return uuid not in entries if adds else f"{uuid}={owner}" in entries
        if adds:
            return uuid not in entries or uuid in owned
        return uuid in entries or uuid in owned

    changed = [*filter(changes, dict.fromkeys(uuids))]
    rest = [entry for entry in entries if entry.partition("=")[0] not in changed]
    if adds:
        rest += changed
        rest += [f"{uuid}={owner}" for uuid in changed if owner]
    return ",".join(rest) or None, frozenset(changed)


def owns(node: Json, owner: str, cards: Iterable[CardUUID]) -> bool:
    """Return whether all these cards of a node are cordoned by this owner alone."""
    entries = _entries(facts.annotation(node, names.CORDON))
    return all(uuid in entries and f"{uuid}={owner}" in entries for uuid in cards)


def _entries(text: str) -> Sequence[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def find_pods_on(reach: Access, name: str, uuid: CardUUID) -> list[str]:
    """Return the pods that hold a part of a card, by their placements."""
    names_of_pods = []
    selector = f"spec.nodeName={name},{UNFINISHED}"
    for pod in list_all(reach.cluster, Kind.PODS, selector):
        if not codec.is_ours(pod):
            continue
        try:
            placement = codec.read_pod_record(pod).placement
        except Malformed:
            continue
        if placement is not None and uuid in placement.cards():
            names_of_pods.append(str(placement.pod))
    return sorted(names_of_pods)


def _cards(node: Json, order: Order, texts: Sequence[str]) -> tuple[CardUUID, ...]:
    name = facts.name_of(node)
    try:
        here = read_cards(node)
    except Malformed as error:
        raise OrderRefused(f"{name}: its cards cannot be read: {error}") from error
    key, adds = order.value
    gone = read_uuids(facts.annotation(node, key)) - {c.uuid for c in here}
    known = [*(card.uuid for card in here), *(() if adds else sorted(gone))]
    try:
        uuids = [find_card(text, here, known) for text in texts]
    except OrderRefused as error:
        raise OrderRefused(f"{name}: {error}; {_there(here)}") from error
    return tuple(dict.fromkeys(uuids))


def find_card(text: str, cards: Sequence[Card], known: Sequence[CardUUID]) -> CardUUID:
    """Find a card by its index, its UUID, or the start of it.

    ``OrderRefused`` if it is unclear. A UUID goes before an index, an index before the
    start of a UUID.
    """
    rules: tuple[Callable[[CardUUID], bool], ...] = (
        lambda uuid: uuid == text,
        lambda uuid: uuid in {c.uuid for c in cards if str(c.index) == text},
        lambda uuid: len(text) >= _FEWEST_LETTERS and _begins(uuid, text),
    )
    for rule in rules:
        matching = [uuid for uuid in known if rule(uuid)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            which = words.listed(matching, _MOST_NAMES)
            raise OrderRefused(f'"{text}" may be any of {which}; give more of the UUID')
    raise OrderRefused(f'there is no card "{text}"')


def _begins(uuid: str, text: str) -> bool:
    whole, start = uuid.lower(), text.lower()
    return whole.startswith(start) or whole.partition("-")[2].startswith(start)


def _there(cards: Sequence[Card]) -> str:
    if not cards:
        return "the node shares no cards"
    listed = (f"{card.index} ({card.uuid})" for card in cards)
    return f"there are {words.listed(listed, _MOST_NAMES)}"


def _no_such_node(reach: Access, name: str) -> str:
    sharing = sorted(
        facts.name_of(node)
        for node in list_all(reach.cluster, Kind.NODES)
        if facts.annotation(node, names.CARDS)
    )
    there = words.listed(sharing, _MOST_NAMES) or "none"
    return f'there is no node "{name}"; nodes that share cards: {there}'


def describe_order(
    order: Order, done: Done, pods: Mapping[CardUUID, Sequence[str]]
) -> Iterator[str]:
    """Say what is so now, in a line or two for each card."""
    name = facts.name_of(done.node)
    known = {card.uuid: card for card in read_cards(done.node)}
    for uuid in done.cards:
        card, changed = known.get(uuid), uuid in done.changed
        if card is None:
            now = "has been removed" if changed else "was not there"
            yield f"{name}: {uuid}, which is no card of the node, {now}."
        elif order is Order.CORDON:
            now = "is cordoned now" if changed else "was already cordoned"
            yield f"{_which(name, card)} {now}: no new pod comes to it."
            yield _staying(pods.get(uuid, ()))
        elif order is Order.UNCORDON:
            now = "is open again" if changed else "was not cordoned"
            sick = "" if card.healthy else "; it is sick, so no pod comes to it yet"
            yield f"{_which(name, card)} {now}{sick}."
        else:
            yield from _cleared(name, card, changed=changed)
    if order is Order.CORDON:
        closed = set(done.cards)
        if all(not card.open or card.uuid in closed for card in known.values()):
            yield f"No card of {name} is open any more."


def _which(name: str, card: Card) -> str:
    model = f", {card.model}" if card.model else ""
    return f"{name} card {card.index} ({card.uuid}{model})"


def _staying(pods: Sequence[str]) -> str:
    if not pods:
        return "  No pod holds a part of it."
    verb = "keeps its share" if len(pods) == 1 else "keep their shares"
    return (
        f"  {words.counted(len(pods), 'pod')} on it {verb}: "
        f"{words.listed(pods, _MOST_NAMES)}. If you delete one, its controller's new "
        "pod goes to another card."
    )


def _cleared(name: str, card: Card, *, changed: bool) -> Iterator[str]:
    which = _which(name, card)
    if card.healthy:
        yield f"{which} is not reported as sick; the annotation is written anyway."
    now = "is to be cleared" if changed else "was already to be cleared"
    yield (
        f"{which} {now}: the device plugin there forgets the card's faults and removes "
        f"the annotation {names.CLEAR}, within seconds."
    )
    yield "  A card that does not answer stays sick until it answers."
    yield f"  Next: gpusharectl inspect --node {name}"


def _command(name: str, order: Order, text: str) -> click.Command:
    @click.command(name, epilog=_CODES, help=text)
    @access_options
    @click.argument("node", shell_complete=complete_nodes)
    @click.argument("cards", nargs=-1, required=True, shell_complete=complete_cards)
    def command(
        node: str, cards: tuple[str, ...], kubeconfig: str | None, context: str | None
    ) -> None:
        with reached(kubeconfig, context) as access:
            try:
                done = carry_out_order(access, order, node, cards)
            except OrderRefused as error:
                raise click.ClickException(str(error)) from error
            there = done.cards if order is Order.CORDON else ()
            pods = {uuid: find_pods_on(access, node, uuid) for uuid in there}
        for line in describe_order(order, done, pods):
            click.echo(fit_to_show(line))

    return command


_NAMED = "A card is named by its index, its UUID, or the start of the UUID"
cordon_card = _command(
    "cordon-card",
    Order.CORDON,
    f"Let no new pod come to NODE's CARDS; running pods stay.\n\n{_NAMED}.",
)
uncordon_card = _command(
    "uncordon-card",
    Order.UNCORDON,
    f"Open NODE's CARDS to new pods again.\n\n{_NAMED}. A card that the node no longer "
    "has can be removed from the list, too.",
)
clear_card = _command(
    "clear-card",
    Order.CLEAR,
    "Declare NODE's sick CARDS healthy, after you have repaired them.\n\nThe device "
    "plugin there forgets the faults that the driver reported. A card that does not "
    f"answer stays sick. {_NAMED}.",
)
