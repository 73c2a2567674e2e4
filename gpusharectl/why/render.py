"""The answer to ``why`` on a screen: the answer first, the next step last."""

from collections.abc import Iterator
from datetime import datetime

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gpushare.domain.model import PodRequest
from gpushare.kube import facts, words
from gpushare.kube.codec import refusal_text
from gpusharectl.output import Words, age
from gpusharectl.state.read import ClusterState
from gpusharectl.state.render import source
from gpusharectl.why.explain import Answer, Held, NoShare, Pending, Placed, Unplaced
from gpusharectl.why.verdict import CardVerdict, Offers, Way

_MOST_NODES = 10
_DIM, _BOLD = "dim", "bold"


def draw_answer(console: Console, answer: Answer, state: ClusterState) -> None:
    """Draw an answer, and where the placements come from, if unusual."""
    for part in _parts(answer, state.now):
        console.print(part)
    if state.placements.not_asked and not isinstance(answer, NoShare):
        console.print(Words(f"({source(state.placements)})", _DIM))


def _parts(answer: Answer, now: datetime) -> Iterator[RenderableType]:
    match answer:
        case NoShare():
            yield from _no_share(answer)
        case Unplaced():
            yield from _unplaced(answer)
        case Placed():
            yield from _placed(answer, now)
        case Pending():
            yield from _pending(answer, now)


def _no_share(answer: NoShare) -> Iterator[Text]:
    on = f" on {answer.node}" if answer.node else ""
    said = f" ({answer.words})" if answer.words else ""
    phase = facts.phase(answer.body)
    text = {
        "asks-nothing": f"{answer.pod} requests no part of a card, so gpushare does "
        f"not affect it. It is {phase}{on}; kubectl describe pod says more.",
        "ended": f"{answer.pod} has ended{on}: {phase}{said}. It holds no part "
        "of a card any more.",
        "invalid": f"{answer.pod} can run on no node. {answer.words}.",
    }[answer.state]
    invalid = answer.state == "invalid"
    yield Words(text, _BOLD if invalid else "")
    yield from _warnings(answer)
    if invalid:
        yield Words("To run it: delete it, and create it again with this corrected.")


def _unplaced(answer: Unplaced) -> Iterator[Text]:
    asks = words.claims(answer.request.claims)
    yield Words(f"{answer.pod} requests {asks} and is on {answer.node}.", _BOLD)
    yield Words(
        "Its card is not known yet, so each card of the node is charged for it. It was "
        "bound without the extender (nodeName set by hand, or by a kube-scheduler "
        "that does not call the extender), and the device plugin has not reported its "
        "card."
    )
    if answer.complaint:
        yield Words(f"Its placement annotation is not valid: {answer.complaint}.")
    if answer.waits:
        yield Words(f"It does not start; kubelet says: {answer.waits}")
    yield from _warnings(answer)
    yield Words(f"Next: gpusharectl inspect --node {answer.node}")


def _placed(answer: Placed, now: datetime) -> Iterator[Text]:
    cards = " and ".join(map(_held, answer.held))
    since = f", since {answer.at} ({age(answer.at, now)})" if answer.at else ""
    yield Words(f"{answer.pod} is on {answer.node}, {cards}{since}.", _BOLD)
    whose = "its own choice" if answer.request.policy else "the cluster's default"
    how = f"Policy: {answer.policy}, {whose}."
    if not answer.is_planned:
        how = (
            "It was bound without the extender, so its card was not planned: the "
            "device plugin chose it."
        )
    yield Words(f"It requests {words.claims(answer.request.claims)}. {how}")
    yield from _allowed(answer)
    if answer.planned:
        where = ", ".join(map(_card_name, answer.planned))
        yield Words(f"The plan was {where}; kubelet chose another card, which counts.")
    if answer.because:
        yield Words(f"Reason, judged by the present state: {answer.because}.")
    for one in answer.earlier:
        card = f"card {one.card.index}"
        yield Words(
            f"  The policy's order has {card} before this one; {card} {one.words}."
        )
    if facts.is_leaving(answer.body):
        yield Words("It is terminating, and holds its share until it has ended.")
    if answer.waits:
        yield Words(f"It does not start; kubelet says: {answer.waits}")
        namespace, _, name = answer.pod.partition("/")
        yield Words(f"Next: kubectl describe pod -n {namespace} {name}")


def _allowed(answer: Pending | Placed) -> Iterator[Text]:
    if answer.request.cards is not None:
        cards = words.allowed(answer.request.cards)
        yield Words(f"It may use cards {cards}, and no others.")
    yield from _warnings(answer)


def _warnings(answer: Answer) -> Iterator[Text]:
    for text in answer.warnings:
        yield Words(f"Note: {text}")


def _held(held: Held) -> str:
    if held.card is None:
        return f"a card that no longer exists ({held.uuid})"
    model = f" ({held.card.model})" if held.card.model else ""
    return f"card {held.card.index}{model}, {words.amount(held.amount)}"


def _card_name(held: Held) -> str:
    return f"card {held.card.index}" if held.card else str(held.uuid)


def _pending(answer: Pending, now: datetime) -> Iterator[RenderableType]:
    since = facts.created(answer.body)
    old = f"has waited for {age(since, now)}" if since else "waits"
    asks = words.claims(answer.request.claims)
    yield Words(f"{answer.pod} requests {asks}. It {old}:", _BOLD)
    yield Words(f"{answer.because}.", _BOLD)
    yield from _allowed(answer)
    if answer.nominated:
        yield Words(f"Pods on {answer.nominated} are being preempted for it.")
    if answer.nodes:
        yield Words("")
        yield _table(answer)
        yield Words("")
    for way in [way for way in answer.ways if way.card is None][:_MOST_NODES]:
        yield Words(f"{way.node} would have room without {_pods(way)}.")
    if answer.evicts and not answer.nominated:
        yield Words(
            "Those pods have a lower priority, so kube-scheduler may preempt them."
        )
    if scheduler := facts.scheduler_says(answer.body):
        yield Words(f"kube-scheduler says: {scheduler}")
    fits = answer.nominated or any(node.fits for node in answer.nodes)
    yield Words(f"{'Next' if fits else 'To run it'}: {answer.next_step}.", _BOLD)
    yield Words("-o json prints this as data.", _DIM)


def _table(answer: Pending) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=_DIM)
    for head in ("node", "card", "free now"):
        table.add_column(head, no_wrap=True)
    table.add_column("result", ratio=1)
    ways = {(way.node, way.card.uuid): way for way in answer.ways if way.card}
    nearest = sorted(answer.nodes, key=lambda node: (node.distance, node.name))
    shown = nearest[:_MOST_NODES]
    for node in sorted(shown, key=lambda node: node.name):
        name = str(node.name)
        for card in node.cards:
            way = ways.get((node.name, card.card.uuid))
            free = _free(card, answer.request)
            said = _missing(card, answer.request, way)
            table.add_row(*map(Words, (name, str(card.card.index), free, said)))
            name = ""
        told = f"fits now: {_largest(node.offers)}"
        if node.no is not None and len(answer.request.claims) > 1:
            told = f"{refusal_text(node.no)}; {told}"
        table.add_row(name, "", "", Words(told, _DIM))
    if left := len(answer.nodes) - len(shown):
        more = f"{left} more {'node' if left == 1 else 'nodes'}, not nearer to fitting"
        table.add_row("…", "", "", Words(f"{more} (-o json)", _DIM))
    return table


def _free(card: CardVerdict, request: PodRequest) -> str:
    if card.free is None:
        return words.NOT_KNOWN if card.card.open else "closed"
    units = any(claim.amount.units for claim in request.claims)
    cores = any(claim.amount.cores for claim in request.claims)
    parts = [words.units(card.free.units)] if units else []
    parts += [words.cores(card.free.cores)] if cores else []
    return ", ".join(parts)


def _missing(card: CardVerdict, request: PodRequest, way: Way | None) -> str:
    if card.excluded:
        return words.excluded_by(card.excluded)
    if card.free is None:
        state = "cordoned" if card.card.healthy else "sick"
        return state if card.ever else f"{state}; {_in_all(card)}"
    if len(request.claims) > 1:
        return ""
    if card.whole:
        return "untouched" if card.untouched else "pods hold parts of it"
    if card.fits:
        return "fits"
    lacks = f"lacks {words.bare(card.missing)}"
    if not card.ever:
        return f"{lacks}; {_in_all(card)}"
    if way is None:
        return lacks
    return f"{lacks}; would fit without {_pods(way)}"


def _in_all(card: CardVerdict) -> str:
    return f"the card has only {words.units(card.card.units)}"


def _pods(way: Way) -> str:
    return words.listed(
        (f"{one.pod} ({words.bare(one.amount)})" for one in way.pods), 3
    )


def _largest(offers: Offers) -> str:
    shares = [
        f"{words.units(room.units)} with up to {words.cores(room.cores)}"
        if room.units
        else words.cores(room.cores)
        for room in offers.shares
    ]
    if offers.whole:
        shares.append(words.counted(offers.whole, "whole card"))
    return ", or ".join(shares) or "nothing"
