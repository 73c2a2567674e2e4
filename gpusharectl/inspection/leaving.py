"""Which running pods would have to go for a request to fit. Pure.

The domain says of each set whether it is enough; here the smallest is looked for.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, islice

from gpushare.domain.model import Amount, Card, PodRequest, PodUID
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.preemption import Victims, choose_victims
from gpushare.domain.scheduling import refusal
from gpusharectl.inspection.verdict import holders, on_one_card

_MOST_TRIES = 400
"""Of one size on one card: some 20 ms. With more sets than that, big pods go first."""
_HIGHEST = 2**31
Cost = tuple[int, int, int, tuple[PodUID, ...]]


@dataclass(frozen=True, slots=True)
class Leaving:
    """The pods that would have to go: from one card, or somewhere on the node."""

    uids: tuple[PodUID, ...]


def from_card(
    request: PodRequest, page: Node, card: Card, policy: Policy
) -> Leaving | None:
    """Give the smallest set for a share on this card; None where no set is enough.

    Fewest pods first, then the least important, then the least units.
    """
    alone = on_one_card(page.as_seen_by(request.pod), card)
    held = holders(alone, card.uuid)
    ranks = _priorities(alone)

    def enough(uids: Iterable[PodUID]) -> bool:
        return refusal(request, alone.without(set(uids)), policy) is None

    def cost(uids: tuple[PodUID, ...]) -> Cost:
        highest = max((ranks[uid] for uid in uids), default=0)
        amounts = [held[uid] for uid in uids]
        return (highest, sum(a.units for a in amounts), len(uids), uids)

    if not enough(held):
        return None
    for size in range(len(held) + 1):
        sets = list(islice(combinations(sorted(held), size), _MOST_TRIES + 1))
        if len(sets) > _MOST_TRIES:
            break
        if found := [one for one in sets if enough(one)]:
            return Leaving(min(found, key=cost))
    missing = request.claims[0].amount - alone.free[card.uuid]
    return Leaving(_big_ones_first(held, missing, enough))


def from_node(request: PodRequest, page: Node, policy: Policy) -> Leaving | None:
    """Give pods for whole cards or several claims, as a most important pod would evict.

    By the domain's own choice of victims, so not always the fewest.
    """
    pod = replace(request.pod, priority=_HIGHEST)
    asked = replace(request, pod=pod)
    found = choose_victims(asked, page, Victims(()), policy)
    return None if found is None else Leaving(found.uids)


def _big_ones_first(
    held: Mapping[PodUID, Amount],
    missing: Amount,
    enough: Callable[[Iterable[PodUID]], bool],
) -> tuple[PodUID, ...]:
    def size(uid: PodUID) -> tuple[int, int]:
        amount = held[uid]
        main, other = amount.units, amount.cores
        return (main, other) if missing.units > 0 else (other, main)

    order = sorted(held, key=size, reverse=True)
    gone: list[PodUID] = []
    for uid in order:
        if enough(gone):
            break
        gone.append(uid)
    for uid in reversed(order):
        rest = [one for one in gone if one != uid]
        if uid in gone and enough(rest):
            gone = rest
    return tuple(gone)


def _priorities(page: Node) -> dict[PodUID, int]:
    found = {uid: asked.pod.priority for uid, asked in page.unplaced.items()}
    for placement in (*page.nominations.values(), *page.placements.values()):
        found[placement.pod.uid] = placement.pod.priority
    return found
