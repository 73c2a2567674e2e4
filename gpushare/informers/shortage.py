"""Why a pod waits, in one line for all nodes. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpushare.domain.model import (
    NOTHING,
    Amount,
    Card,
    NodeName,
    PodRequest,
    Refusal,
)
from gpushare.domain.node import Block, Node
from gpushare.domain.placement import find_refusal
from gpushare.domain.policies import Policy, PolicyChoice
from gpushare.kube import words
from gpushare.kube.codec import PodRecord, refusal_text
from gpushare.kube.node_filters import NodeProperties, find_bar

_MOST_NAMES = 3
_MOST_REASONS = 2
_NOWHERE = "it may use no node with cards"
_EVENTS = "see the pod's events for kube-scheduler's reason"


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a pod waits, as far as cards matter; ``fits`` names the nodes that fit.

    ``barred`` names the nodes that the pod may not use, with reasons. ``never``: it
    would wait even if all cards were empty and open.
    """

    because: str
    fits: tuple[NodeName, ...] = ()
    never: bool = False
    barred: str = ""

    def __str__(self) -> str:
        if not self.barred:
            return self.because
        more = ":" if self.because == _NOWHERE else "; it may not use"
        return f"{self.because}{more} {self.barred}"


def find_bars(
    record: PodRecord,
    nodes: Iterable[Node],
    properties: Mapping[NodeName, NodeProperties],
) -> Mapping[NodeName, str]:
    """Return the nodes that a pod may not use whatever is free there, and why.

    A node without ``properties`` may be used.
    """
    bars_by_node = {}
    for node in nodes:
        known = properties.get(node.name)
        if known and (why := find_bar(known, record.constraints)):
            bars_by_node[node.name] = why.reason
    return bars_by_node


def find_shortage(
    record: PodRecord,
    nodes: Sequence[Node],
    choice: PolicyChoice,
    properties: Mapping[NodeName, NodeProperties],
) -> Shortage:
    """Return why a pod waits, or where it fits.

    ``properties`` say which nodes the pod may use at all.
    """
    request = record.request
    if isinstance(request, Refusal):
        return Shortage(refusal_text(request))
    policy = choice.policy(request.policy)
    if isinstance(policy, Refusal):
        return Shortage(refusal_text(policy))
    nodes = [node for node in nodes if node.cards]
    barred = find_bars(record, nodes, properties)
    mine = [node for node in nodes if node.name not in barred]
    seen = [node.as_seen_by(request.pod) for node in mine]
    fits = tuple(n.name for n in seen if find_refusal(request, n, policy) is None)
    if fits:
        where = words.listed(fits, _MOST_NAMES)
        return Shortage(f"there is room on {where}; {_EVENTS}", fits)
    if barred and not mine:
        return Shortage(_NOWHERE, barred=_listed(barred))
    never = _never(request, policy, mine)
    limited = [node.as_limited_by(request) for node in seen]
    because = (never or _too_little(request, limited)) + _excluded(request, mine)
    if mine and not any(request.allows(card) for node in mine for card in node.cards):
        because = _none_allowed(request)
    if barred:
        noun = "node" if len(mine) == 1 else "nodes"
        because = f"on the {noun} that it may use, {because}"
    return Shortage(because, never=bool(never), barred=_listed(barred))


def _listed(barred: Mapping[NodeName, str]) -> str:
    """List nodes by the reason why the pod may not use them, most nodes first."""
    by_reason: defaultdict[str, list[NodeName]] = defaultdict(list)
    for name, reason in barred.items():
        by_reason[reason].append(name)
    most_first = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    shown, rest = most_first[:_MOST_REASONS], most_first[_MOST_REASONS:]
    sentences = [f"{words.listed(nodes, 2)} ({reason})" for reason, nodes in shown]
    if rest:
        others = words.counted(sum(len(nodes) for _, nodes in rest), "other node")
        sentences.append(f"{others} for other reasons")
    return ", ".join(sentences)


def _never(request: PodRequest, policy: Policy, nodes: Sequence[Node]) -> str:
    """Return why a pod would wait even if all cards were empty and open; else empty.

    Also empty if its annotations exclude all cards.
    """
    # Most nodes have the same cards: one of each sort is enough.
    sorts: dict[tuple[tuple[int, str], ...], list[Card]] = {}
    for node in nodes:
        if mine := [card for card in node.cards if request.allows(card)]:
            sorts[tuple(sorted((card.units, card.kind) for card in mine))] = mine
    if not sorts or any(_could_hold(request, policy, one) for one in sorts.values()):
        return ""
    claim = max(request.claims, key=lambda one: (one.whole_cards, one.amount.units))
    units_needed, cards = claim.amount.units, claim.whole_cards
    instances = cards and any(kind for sort in sorts for _, kind in sort)
    which = " of one kind" if instances else ""
    which += " that it may use" if request.cards else ""
    never = "so it can never run here"
    sizes = _usable_together(sorts) if instances else [[u for u, _ in s] for s in sorts]
    most = max(map(len, sizes))
    if cards > most:
        have = f"no node has more than {words.counted(most, 'card')}{which}"
        return f"{words.counted(cards, 'whole card')} are asked, but {have}, {never}"
    largest = max(sum(kind[-max(cards, 1) :]) for kind in sizes)
    if units_needed <= largest:
        many = len(request.claims)
        return f"no node{which} could hold its {many} containers apart, {never}"
    have = (
        f"{cards} largest cards{which} have"
        if cards > 1
        else f"largest card{which} has"
    )
    return f"{words.units(units_needed)} are asked, but the {have} {largest}, {never}"


def _usable_together(
    sorts: Iterable[tuple[tuple[int, str], ...]],
) -> list[list[int]]:
    """Return the units of the cards that one claim may have, kind by kind."""
    kinds = [(sort, kind) for sort in sorts for kind in {kind for _, kind in sort}]
    return [
        [units for units, its_kind in sort if its_kind == kind] for sort, kind in kinds
    ]


def _could_hold(request: PodRequest, policy: Policy, cards: Iterable[Card]) -> bool:
    """Return whether a node with these cards, empty and open, has room."""
    opened = tuple(replace(card, healthy=True, cordoned=False) for card in cards)
    anywhere = replace(request, cards=None)
    return find_refusal(anywhere, Node(NodeName(""), opened), policy) is None


def _excluded(request: PodRequest, nodes: Iterable[Node]) -> str:
    cards = [card for node in nodes for card in node.cards]
    shut = [limits for card in cards if (limits := request.limits(card))]
    if not shut:
        return ""
    by = sorted({limit for lists in shut for limit in lists})
    some = f"{len(shut)} of {words.counted(len(cards), 'card')}"
    return f"; {some} {words.excluded_by(by)}"


def _none_allowed(request: PodRequest) -> str:
    limits = request.cards.limits if request.cards else ()
    verb = "allows" if len(limits) == 1 else "allow"
    return f"{words.format_limits(limits)} {verb} no card"


def _too_little(request: PodRequest, nodes: Sequence[Node]) -> str:
    if not any(card.open for node in nodes for card in node.cards):
        whose = " that the pod may use" if request.cards else ""
        return f"no node has a healthy, uncordoned card{whose}"
    if len(request.claims) > 1:
        containers = len(request.claims)
        return (
            f"no node has room for its {containers} containers apart at the same time"
        )
    (claim,) = request.claims
    if claim.whole_cards:
        return _too_few_cards(claim.whole_cards, claim.amount.units, nodes)
    return _on_no_card(claim.amount, [block for node in nodes for block in node.blocks])


def _too_few_cards(cards: int, units: int, nodes: Sequence[Node]) -> str:
    best = max(nodes, key=lambda node: len(node.summary.wholes))
    have = len(best.summary.wholes)
    if have >= cards:
        needed = f"{words.counted(cards, 'untouched card')} with {words.units(units)}"
        return f"no node has {needed} in all"
    needed = words.counted(cards, "untouched card")
    most = f"the most is {have}, on {best.name}" if have else "no card is untouched"
    return f"no node has {needed}; {most}"


def _on_no_card(amount: Amount, blocks: Sequence[Block]) -> str:
    with_cores = (
        [block for block in blocks if block.free.cores] if amount.cores else blocks
    )
    if blocks and not with_cores:
        free_units = words.units(sum(block.free.units for block in blocks))
        return f"no card has a free core; {free_units} are free on cards without one"
    most_units = max(with_cores, key=lambda block: block.free.units, default=None)
    most_cores = max(with_cores, key=lambda block: block.free.cores, default=None)
    units = most_units.free.units if most_units else NOTHING.units
    cores = most_cores.free.cores if most_cores else NOTHING.cores
    if amount.units > units:
        where = f" is {units}, on {most_units}" if most_units else " is 0"
        return f"no card has {words.units(amount.units)} free; the most{where}"
    if amount.cores > cores:
        where = f" is {cores}, on {most_cores}" if most_cores else " is 0"
        return f"no card has {words.cores(amount.cores)} free; the most{where}"
    return (
        f"no single card has {words.format_bare_amount(amount)} free at the same time; "
        "some cards have one of the two"
    )
