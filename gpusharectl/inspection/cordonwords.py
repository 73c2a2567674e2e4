"""What ``cordon-card`` and its sisters say: what is so now, and for whom. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from gpushare.domain.model import Card, CardUUID
from gpushare.kube import codec, words
from gpusharectl.inspection import facts
from gpusharectl.inspection.cordon import Done, Order

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
