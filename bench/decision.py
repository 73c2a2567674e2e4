"""The cost of one decision in memory, without HTTP."""

import timeit
from collections.abc import Callable
from dataclasses import replace

from bench.server import CARDS, POD_UNITS, UNITS
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    NodeName,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.placement import find_refusal, place
from gpushare.domain.policies import Policy, PolicyChoice

NODE = NodeName("node")
_ROUNDS = 2000


def request(uid: str, units: int = POD_UNITS) -> PodRequest:
    """Describe a pod of one container."""
    amount = Amount(1, units)
    claim = Claim(amount, (ContainerAmount("main", amount),))
    return PodRequest(PodRef(PodUID(uid), "default", uid), (claim,))


def decisions(pods: int = 30) -> dict[str, float]:
    """Give microseconds for a node of eight cards that holds so many pods."""
    ledger = Ledger()
    cards = [Card(CardUUID(f"GPU-{i}"), i, UNITS) for i in range(CARDS)]
    ledger.set_cards(NODE, cards)
    policy = PolicyChoice().policy(None)
    assert isinstance(policy, Policy)
    for number in range(pods):
        ledger.reserve(request(f"pod-{number}", UNITS // 5), NODE, policy)
    asking = request("asking")
    node = ledger.node(NODE)
    assert node is not None

    def judge() -> None:
        find_refusal(asking, replace(node), policy)

    def decide() -> None:
        place(asking, node, policy)

    def bind() -> None:
        ledger.reserve(asking, NODE, policy)
        ledger.release(asking.pod.uid)

    return {
        "filter one changed node": _microseconds(judge),
        "choose the card on a node": _microseconds(decide),
        "reserve and release": _microseconds(bind),
    }


def _microseconds(call: Callable[[], None]) -> float:
    best = min(timeit.repeat(call, number=_ROUNDS, repeat=5))
    return round(best / _ROUNDS * 1e6, 2)
