"""``gpusharectl why``: why a pod waits, or why it is on its card.

As data its shape is a promise, as inspect's. Always ``{v, state, pod, code, warnings,
books}``: ``code`` is the exit code, ``pod`` is ``namespace/name``, and ``warnings`` are
sentences about annotations of the pod without a meaning, and about quotas of its
namespace that count nothing or are not known. Beside it, by ``state``::

    absent        suggestions: [namespace/name]; near, its old name
    asks-nothing  phase, node
    ended         phase, node, because
    invalid       because, node
    unplaced      asks, node, complaint, waits
    placed        asks, node, cards: [{uuid, index, model, cores, units, memory_mib}],
                  at, policy, own_policy, models, uuids, planned: [uuid], is_planned,
                  because, earlier: [{uuid, index, because}], phase, leaving, waits,
                  isolation: the tier with which it started; null: none or not known
    pending       asks, claims: [amount], policy, models, uuids, since, because,
                  kube_scheduler, scheduler_name, nominated, never, next, steps: [text],
                  evicts, ways_of, fits_in_sum: {node, cores, units, memory_mib},
                  nodes: [{name, fits, barred, because, fits_now,
                  cards: [{uuid, index, model, units, memory_mib, healthy, cordoned,
                  reason: why it is not healthy,
                  free, missing, untouched, fits, ever, excluded_by}]}],
                  ways: [{node, card, index, pods: [{namespace, name, uid, priority,
                  cores, units, memory_mib}]}]
    by-claims     node, phase, claims: [{name, allocated, because,
                  room: [card of node], refusals: [text], not_judged: [text]}],
                  not_judged: [text], kube_scheduler

``fits_now`` is ``{shares: [amount], whole_cards, whole_units}``: the largest requests
that fit on the node. ``barred`` is why the pod may not use the node whatever is free
there: labels or taints. ``never``: the pod would wait even if all cards were empty and
open. Each of ``steps`` would help alone; ``next`` is all of them. ``missing`` is null
for a closed card, or if whole cards are requested. ``models`` and ``uuids`` limit the
cards of the pod, null if it has no such limit; ``excluded_by`` are the annotations that
exclude the card. ``fits_in_sum`` is a node that has enough in all, while no card has,
so that no autoscaler adds a node; null if there is none. ``ways`` are pods to delete to
make room; they were looked for on the ``ways_of`` nearest cards or nodes. ``evicts``:
kube-scheduler may preempt pods for the pod's cards.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import click
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from gpushare.domain.model import NOTHING, Amount, PodRequest
from gpushare.kube import codec, facts, words
from gpushare.kube.cluster import Kind
from gpushare.kube.codec import refusal_text
from gpushare.kube.errors import NotFound
from gpushare.kube.facts import full_name
from gpusharectl.access import Access, access_options, reached
from gpusharectl.completion import (
    complete_pods,
    parse_pod_name,
    pod_namespace_option,
    suggest_pods,
)
from gpusharectl.output import (
    VERSION,
    Data,
    Hanging,
    Words,
    data_option,
    encode,
    fit_column,
    fit_to_show,
    format_age,
    open_console,
    print_data,
    show,
)
from gpusharectl.state.read import (
    ClusterState,
    Placements,
    Trouble,
    list_all,
    read_quotas,
    read_state,
)
from gpusharectl.state.render import describe_source
from gpusharectl.state.scrape import find_not_held
from gpusharectl.state.troubles import check_quotas
from gpusharectl.why.claims import ByClaims, explain_claims
from gpusharectl.why.explain import (
    HeldCard,
    NoShare,
    Pending,
    Placed,
    ShareAnswer,
    Unplaced,
    explain_pod,
)
from gpusharectl.why.verdict import (
    CardVerdict,
    DeletionPlan,
    LargestRequests,
    NodeVerdict,
    needs_node,
)

Explanation = ShareAnswer | ByClaims
_CODES = (
    "Exit codes: 0 the pod holds its card, requests none, or has ended; 3 it waits, "
    "can never run, or its card is not known; 1 there is no such pod, or the cluster "
    "could not be read; 2 wrong command line."
)


@click.command(epilog=_CODES)
@pod_namespace_option
@data_option
@click.option(
    "-v", "--verbose", is_flag=True, help="Show all cards, and where this is read."
)
@access_options
@click.argument("pod", shell_complete=complete_pods)
def why(
    *,
    pod: str,
    namespace: str | None,
    output: str | None,
    verbose: bool,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Explain why POD waits, or why it is on its card.

    POD is a name, or NAMESPACE/NAME. For a pod that waits: what each card lacks, what
    would fit now, and which pods would have to be deleted.
    """
    place, name = parse_pod_name(pod, namespace)
    with reached(kubeconfig, context) as access:
        try:
            body = access.cluster.get(Kind.PODS, place, name)
        except NotFound:
            sys.exit(_absent(access, place, name, output))
        state = read_state(access, datetime.now(UTC))
        claims = explain_claims(access.cluster, access.objects, state, body)
        answer = claims or explain_pod(state, body)
        troubles: list[Trouble] = []
        if codec.is_ours(body):
            troubles += check_quotas(read_quotas(access.objects, troubles, place) or ())
        notes = [f"{trouble.about}: {trouble.what}" for trouble in troubles]
        if answer.isolation and answer.node:
            not_held = find_not_held(access.objects, state, answer.node)
            notes += [each.what for each in not_held if each.about == answer.pod]
        answer = replace(answer, notes=notes)
    if output:
        print_data(encode_answer(answer, state.placements), output)
    else:
        draw_answer(open_console(), answer, state, verbose=verbose)
    sys.exit(answer.code)


def encode_answer(answer: Explanation, placements: Placements) -> Data:
    """Return an answer in full."""
    data: Data = encode(
        {
            "v": VERSION,
            "state": answer.state,
            "pod": answer.pod,
            "code": answer.code,
            "warnings": answer.warnings,
            "books": placements,
            **answer.details(),
        }
    )
    return data


def _absent(access: Access, namespace: str, name: str, output: str | None) -> int:
    pods = list_all(access.cluster, Kind.PODS)
    similar = suggest_pods(namespace, name, [full_name(pod) for pod in pods])
    pod = f"{namespace}/{name}"
    if output:
        absent = {"v": VERSION, "state": "absent", "pod": pod, "code": 1}
        print_data({**absent, "suggestions": similar, "near": similar}, output)
    else:
        hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
        click.echo(f"Error: there is no pod {pod}.{hint}", err=True)
    return 1


_MOST_LINES = 10
_NEAREST = 3
_WIDEST = 30
_AMOUNT = "{}"
_DIM, _BOLD = "dim", "bold"


def draw_answer(
    console: Console,
    answer: Explanation,
    state: ClusterState,
    *,
    verbose: bool = False,
) -> None:
    """Draw an answer; ``verbose``: all cards, and where the placements come from."""
    show(console, _parts(answer, state.now, verbose=verbose))
    if verbose and (text := describe_source(state.placements)):
        console.print(Words(f"({text})", _DIM))


def _parts(
    answer: Explanation, now: datetime, *, verbose: bool
) -> Iterator[RenderableType]:
    match answer:
        case NoShare():
            yield from _no_share(answer)
        case Unplaced():
            yield from _unplaced(answer)
        case Placed():
            yield from _placed(answer, now)
        case Pending():
            yield from _pending(answer, now, verbose=verbose)
        case ByClaims():
            yield from _by_claims(answer, verbose=verbose)


def _by_claims(answer: ByClaims, *, verbose: bool) -> Iterator[RenderableType]:
    on = f" It is on {answer.node}." if answer.node else " It has no node yet."
    yield Words(
        f"{answer.pod} asks for cards by ResourceClaims; kube-scheduler chooses them."
        f"{on}",
        _BOLD,
    )
    for claim in answer.claims:
        yield Words(f"  {claim.name}: {claim.because}")
        lines = [f"{card} has room" for card in claim.room] + [*claim.refusals]
        shown = lines if verbose else lines[:_MOST_LINES]
        for line in shown:
            yield Hanging(Words("    "), Words(line))
        if more := len(lines) - len(shown):
            yield Words(f"    and {more} more (-v)", _DIM)
        for text in claim.not_judged:
            yield Hanging(Words("    not judged: "), Words(text))
    for text in answer.not_judged:
        yield Hanging(Words("  not judged: "), Words(text))
    if not answer.node and (message := answer.kube_scheduler):
        yield Words(f"kube-scheduler says: {message}")
    yield from _warnings(answer)


def _no_share(answer: NoShare) -> Iterator[Text]:
    on = f" on {answer.node}" if answer.node else ""
    reason = f" ({answer.words})" if answer.words else ""
    phase = facts.phase(answer.body)
    text = {
        "asks-nothing": f"{answer.pod} requests no part of a card, so gpushare does "
        f"not affect it. It is {phase}{on}; kubectl describe pod says more.",
        "ended": f"{answer.pod} has ended{on}: {phase}{reason}. It holds no part "
        "of a card any more.",
        "invalid": f"{answer.pod} can run on no node. {answer.words}.",
    }[answer.state]
    invalid = answer.state == "invalid"
    yield Words(text, _BOLD if invalid else "")
    yield from _warnings(answer)
    if invalid:
        yield Words("To run it: delete it, and create it again with this corrected.")


def _unplaced(answer: Unplaced) -> Iterator[Text]:
    asks = words.format_claims(answer.request.claims)
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
    since = f", since {answer.at} ({format_age(answer.at, now)})" if answer.at else ""
    yield Words(f"{answer.pod} is on {answer.node}, {cards}{since}.", _BOLD)
    whose = "its own choice" if answer.request.policy else "the cluster's default"
    how = f"Policy: {answer.policy}, {whose}."
    if not answer.is_planned:
        how = (
            "It was bound without the extender, so its card was not planned: the "
            "device plugin chose it."
        )
    yield Words(f"It requests {words.format_claims(answer.request.claims)}. {how}")
    yield from _allowed(answer)
    if answer.planned:
        where = ", ".join(map(_card_name, answer.planned))
        yield Words(f"The plan was {where}; kubelet chose another card, which counts.")
    if answer.because:
        yield Words(f"Reason, judged by the present state: {answer.because}.")
    for earlier in answer.earlier:
        card, because = f"card {earlier.index}", earlier.because
        yield Words(
            f"  The policy's order has {card} before this one; {card} {because}."
        )
    if answer.isolation:
        yield Words(
            f"Its containers started with isolation tier {answer.isolation}; the limit "
            "of each is in its /etc/vcuda/allocation.json."
        )
    if facts.is_leaving(answer.body):
        yield Words("It is terminating, and holds its share until it has ended.")
    if answer.waits:
        yield Words(f"It does not start; kubelet says: {answer.waits}")
        namespace, _, name = answer.pod.partition("/")
        yield Words(f"Next: kubectl describe pod -n {namespace} {name}")


def _allowed(answer: Pending | Placed) -> Iterator[Text]:
    if answer.request.cards is not None:
        cards = words.format_selector(answer.request.cards)
        yield Words(f"It may use cards {cards}, and no others.")
    yield from _warnings(answer)


def _warnings(answer: Explanation) -> Iterator[Text]:
    for text in answer.warnings:
        yield Words(f"Note: {text}")


def _held(held_card: HeldCard) -> str:
    card, amount = held_card.card, words.format_amount(held_card.amount)
    if card is None:
        return f"a card that no longer exists ({held_card.uuid})"
    model = f" ({card.model})" if card.model else ""
    return f"card {card.index}{model}, {amount}"


def _card_name(held_card: HeldCard) -> str:
    return f"card {held_card.card.index}" if held_card.card else str(held_card.uuid)


def _pending(
    answer: Pending, now: datetime, *, verbose: bool
) -> Iterator[RenderableType]:
    since = facts.created(answer.body)
    old = f"has waited for {format_age(since, now)}" if since else "waits"
    asks = words.format_claims(answer.request.claims)
    yield Words(f"{answer.pod} requests {asks}. It {old}:", _BOLD)
    yield Words(f"{answer.because}.", _BOLD)
    yield from _allowed(answer)
    if answer.nominated:
        yield Words(f"Pods on {answer.nominated} are being preempted for it.")
    if answer.nodes:
        yield Words("")
        yield from _table(answer, whole=verbose)
        yield Words("")
    if answer.preempts_on and not answer.nominated:
        where = words.listed(answer.preempts_on, 3)
        yield Words(f"kube-scheduler may preempt pods of a lower priority on {where}.")
    if answer.spared:
        yield Words(
            "Pods of a lower priority are in the way, but kube-scheduler preempts none "
            f"for its cards: {answer.spared}."
        )
    if scheduler := answer.kube_scheduler:
        yield Words(f"kube-scheduler says: {scheduler}")
    if answer.in_sum is not None:
        free = words.format_bare_amount(answer.in_sum.free)
        yield Words(
            f"No autoscaler adds a node for its card: {answer.in_sum.node} has {free} "
            "free in all, and autoscalers compare only such sums. The steps below "
            "help, or a node that you add yourself."
        )
    fits = answer.nominated or any(node.fits for node in answer.nodes)
    first = "Next" if fits else "To run it"
    for number, suggestion in enumerate(answer.steps):
        begin = Words(f"{'or' if number else first:>{len(first)}}: ", _BOLD)
        yield Hanging(begin, Words(suggestion, _BOLD))
    yield Words("-o json prints this as data.", _DIM)


@dataclass(frozen=True, slots=True)
class _TableLine:
    """A line of the table: a card or a node, what is free there, and the answer.

    ``near`` sorts lines that fit or could fit; it is None for the others. Lines with
    the same ``alike`` are grouped. ``amount`` is what differs among them: what each
    lacks, or the units of a card that is too small.
    """

    node: str
    name: str
    free: str
    result: str
    near: tuple[int, ...] | None = None
    alike: str = ""
    amount: Amount = NOTHING

    @property
    def row(self) -> "Row":
        """What is drawn of it."""
        return self.name, self.free, self.result


Row = tuple[str, str, str]
"""Which card or cards, what is free there, and the answer."""


def _table(answer: Pending, *, whole: bool) -> Iterator[RenderableType]:
    """Draw a line for each card; of many only the nearest, and the others grouped.

    ``whole`` draws all of them. Nodes that the pod may not use come last.
    """
    nodes = sorted(answer.nodes, key=lambda node: node.name)
    mine = [node for node in nodes if not node.barred]
    few = whole or sum(len(node.cards) for node in mine) <= _MOST_LINES
    rows = [*_spelled_out(answer, mine)] if few else [*_grouped(answer, mine)]
    rows += _barred(nodes)
    head: Row = ("card", "free now", "result")
    name, free = (
        min(_WIDEST, max(cell_len(row[at]) for row in (head, *rows))) for at in (0, 1)
    )
    for number, (which, room, result) in enumerate((head, *rows)):
        style = "" if number else _DIM
        begin = which
        if cell_len(which) > name:
            yield Words(which)
            begin = ""
        begin = f"{fit_column(begin, name)}  {fit_column(room, free)}  "
        yield Hanging(Words(begin, style), Words(result, style))


def _spelled_out(answer: Pending, nodes: Sequence[NodeVerdict]) -> Iterator[Row]:
    for node in nodes:
        yield from (line.row for line in _cards(answer, [node]))
        if needs_node(answer.request):
            yield from (line.row for line in _nodes(answer, [node]))


def _grouped(answer: Pending, nodes: Sequence[NodeVerdict]) -> Iterator[Row]:
    """Yield the nearest lines, and one for all others with the same answer."""
    by_node = needs_node(answer.request)
    lines = [*(_nodes if by_node else _cards)(answer, nodes)]
    near = sorted(
        (line for line in lines if line.near), key=lambda line: line.near or ()
    )
    yield from (line.row for line in near[:_NEAREST])
    groups: defaultdict[str, list[_TableLine]] = defaultdict(list)
    for line in (*near[_NEAREST:], *(line for line in lines if not line.near)):
        groups[line.alike].append(line)
    # The nearest first, then the largest.
    for alike, those in sorted(
        groups.items(), key=lambda group: (not group[1][0].near, -len(group[1]))
    ):
        cards = f"{words.counted(len(those), 'card')} of "
        names = {line.node for line in those}
        where = those[0].node if len(names) == 1 else words.counted(len(names), "node")
        result = alike.replace(_AMOUNT, _range([line.amount for line in those]))
        yield where if by_node else cards + where, "", result


def _range(amounts: Sequence[Amount]) -> str:
    """Write the amounts of several cards.

    >>> _range([Amount(0, 4), Amount(2, 7)])
    '4 to 7 units and up to 2 cores'
    """
    parts = []
    for thing, numbers in (
        ("unit", [amount.units for amount in amounts]),
        ("core", [amount.cores for amount in amounts]),
    ):
        most, least = max(numbers), min(numbers)
        if most:
            begin = f"{least} to " if least else "up to "
            parts.append(
                f"{'' if least == most else begin}{words.counted(most, thing)}"
            )
    return " and ".join(parts)


def _cards(answer: Pending, nodes: Sequence[NodeVerdict]) -> Iterator[_TableLine]:
    ways = {(way.node, way.card.uuid): way for way in answer.ways if way.card}
    for node in nodes:
        for card in node.cards:
            way = ways.get((node.name, card.card.uuid))
            result = _missing(card, answer.request, way)
            could = card.fits or (card.can_fit and not card.excluded)
            yield _TableLine(
                node.name,
                f"{fit_to_show(node.name)} card {card.card.index}",
                _free(card, answer.request),
                result,
                (0 if card.fits else 1, *card.distance) if could else None,
                *_alike(card, result),
            )


def _alike(card: CardVerdict, result: str) -> tuple[str, Amount]:
    """Return what is said of cards with the same answer, and the amount in it."""
    if card.whole or card.fits or card.free is None or card.excluded:
        return result, NOTHING
    if card.ever:
        return f"lacks {_AMOUNT}", card.missing
    return f"the card has only {_AMOUNT}", Amount(units=card.card.units)


def _nodes(answer: Pending, nodes: Sequence[NodeVerdict]) -> Iterator[_TableLine]:
    """Yield a line for each node, for whole cards or containers apart."""
    ways = {way.node: way for way in answer.ways if way.card is None}
    for node in nodes:
        result = "fits" if node.no is None else refusal_text(node.no)
        free = f"{node.fits_now.whole_cards} of {len(node.cards)} untouched"
        if len(answer.request.claims) > 1:
            free = ""
            result += f"; fits now: {_largest(node.fits_now)}"
        way = ways.get(node.name)
        near = node.distance if node.fits or way else None
        more = f"; would fit without {_pods(way)}" if way else ""
        yield _TableLine(
            node.name, fit_to_show(node.name), free, result + more, near, result
        )


def _barred(nodes: Sequence[NodeVerdict]) -> Iterator[Row]:
    nodes_by_reason: defaultdict[str, list[NodeVerdict]] = defaultdict(list)
    for node in nodes:
        if node.barred:
            nodes_by_reason[node.barred].append(node)
    for reason, those in nodes_by_reason.items():
        cards = words.counted(sum(len(node.cards) for node in those), "card")
        where = f"{cards} of {words.listed([str(node.name) for node in those], 2)}"
        yield fit_to_show(where), "may not use", reason


def _free(card: CardVerdict, request: PodRequest) -> str:
    if card.free is None:
        return words.NOT_KNOWN if card.card.open else "closed"
    units = any(claim.amount.units for claim in request.claims)
    cores = any(claim.amount.cores for claim in request.claims)
    parts = [words.units(card.free.units)] if units else []
    parts += [words.cores(card.free.cores)] if cores else []
    return ", ".join(parts)


def _missing(card: CardVerdict, request: PodRequest, way: DeletionPlan | None) -> str:
    if card.excluded:
        return words.excluded_by(card.excluded)
    if card.free is None:
        state = "cordoned" if card.card.healthy else words.sick(card.card)
        return state if card.ever else f"{state}; {_in_all(card)}"
    if len(request.claims) > 1:
        return ""
    if card.whole:
        return "untouched" if card.untouched else "pods hold parts of it"
    if card.fits:
        return "fits"
    if not card.ever:
        return _in_all(card)
    lacks = f"lacks {words.format_bare_amount(card.missing)}"
    if way is None:
        return lacks
    return f"{lacks}; would fit without {_pods(way)}"


def _in_all(card: CardVerdict) -> str:
    return f"the card has only {words.units(card.card.units)}"


def _pods(way: DeletionPlan) -> str:
    bare = words.format_bare_amount
    return words.listed((f"{pod.pod} ({bare(pod.amount)})" for pod in way.pods), 3)


def _largest(requests: LargestRequests) -> str:
    shares = [
        f"{words.units(room.units)} with up to {words.cores(room.cores)}"
        if room.units
        else words.cores(room.cores)
        for room in requests.shares
    ]
    if requests.whole_cards:
        shares.append(words.counted(requests.whole_cards, "whole card"))
    return ", or ".join(shares) or "nothing"
