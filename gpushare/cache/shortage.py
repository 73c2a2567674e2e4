"""Why a pod waits, in one line for all nodes. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpushare.domain.model import NOTHING, Amount, NodeName, PodRequest
from gpushare.domain.node import Block, Node
from gpushare.domain.placement import refusal
from gpushare.domain.policies import Choice
from gpushare.domain.refusal import Refusal
from gpushare.kube import words
from gpushare.kube.codec import PodRecord, refusal_text

_MOST_NAMES = 3
_EVENTS = "see the pod's events for kube-scheduler's reason"


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a pod waits, as far as cards matter; ``fits`` names the nodes that fit."""

    because: str
    fits: tuple[NodeName, ...] = ()


def shortage(record: PodRecord, nodes: Sequence[Node], choice: Choice) -> Shortage:
    """Return why a pod waits, or where it fits."""
    request = record.request
    if isinstance(request, Refusal):
        return Shortage(refusal_text(request))
    policy = choice.policy(request.policy)
    if isinstance(policy, Refusal):
        return Shortage(refusal_text(policy))
    seen = [node.as_seen_by(request.pod) for node in nodes]
    fits = tuple(n.name for n in seen if refusal(request, n, policy) is None)
    if fits:
        where = words.listed(fits, _MOST_NAMES)
        return Shortage(f"there is room on {where}; {_EVENTS}", fits)
    left = [node.as_limited_by(request) for node in seen]
    return Shortage(_too_little(request, left) + _excluded(request, nodes))


def _excluded(request: PodRequest, nodes: Iterable[Node]) -> str:
    cards = [card for node in nodes for card in node.cards]
    shut = [limits for card in cards if (limits := request.limits(card))]
    if not shut:
        return ""
    by = sorted({limit for each in shut for limit in each})
    some = f"{len(shut)} of {words.counted(len(cards), 'card')}"
    return f"; {some} {words.excluded_by(by)}"


def _too_little(request: PodRequest, nodes: Sequence[Node]) -> str:
    if not any(card.open for node in nodes for card in node.cards):
        whose = " that the pod may use" if request.cards else ""
        return f"no node has a healthy, uncordoned card{whose}"
    if len(request.claims) > 1:
        asked = len(request.claims)
        return f"no node has room for its {asked} containers apart at the same time"
    (claim,) = request.claims
    if claim.whole_cards:
        return _too_few_cards(claim.whole_cards, claim.amount.units, nodes)
    return _on_no_card(claim.amount, [block for node in nodes for block in node.blocks])


def _too_few_cards(cards: int, units: int, nodes: Sequence[Node]) -> str:
    best = max(nodes, key=lambda node: len(node.untouched))
    have = len(best.untouched)
    if have >= cards:
        asked = f"{words.counted(cards, 'untouched card')} with {words.units(units)}"
        return f"no node has {asked} in all"
    asked = words.counted(cards, "untouched card")
    most = f"the most is {have}, on {best.name}" if have else "no card is untouched"
    return f"no node has {asked}; {most}"


def _on_no_card(asked: Amount, found: Sequence[Block]) -> str:
    with_cores = [one for one in found if one.free.cores] if asked.cores else found
    if found and not with_cores:
        left = words.units(sum(one.free.units for one in found))
        return f"no card has a free core; {left} are free on cards without one"
    most_units = max(with_cores, key=lambda one: one.free.units, default=None)
    most_cores = max(with_cores, key=lambda one: one.free.cores, default=None)
    units = most_units.free.units if most_units else NOTHING.units
    cores = most_cores.free.cores if most_cores else NOTHING.cores
    if asked.units > units:
        where = f" is {units}, on {most_units}" if most_units else " is 0"
        return f"no card has {words.units(asked.units)} free; the most{where}"
    if asked.cores > cores:
        where = f" is {cores}, on {most_cores}" if most_cores else " is 0"
        return f"no card has {words.cores(asked.cores)} free; the most{where}"
    return (
        f"no single card has {words.bare(asked)} free at the same time; some cards "
        "have one of the two"
    )
