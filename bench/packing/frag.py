"""The product's policy ``frag`` at work in a replay: its books, its packer.

As in the simulator a card has 1000 units, so a unit is one milli. A share of a card
asks its milli and one core, of which none runs out first; whole cards are asked by
their cores. Nothing is rounded.
"""

from collections import defaultdict
from dataclasses import replace

from bench.packing.cluster import ReplayCluster, RunningPod, Shape, Spot
from bench.packing.trace import WHOLE, TraceNode
from gpushare.domain.card_selector import CardSelector
from gpushare.domain.frag.policy import Packer
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    CORES_PER_CARD,
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    HostAmount,
    NodeName,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
)
from gpushare.domain.policies import FRAG, POLICIES
from gpushare.kube.node_filters import ANY_NODE, NodeProperties
from gpusharectl.simulator.cluster import Candidates, PodNeeds

_OPEN = NodeProperties({}, (), None)
"""A node that keeps nobody away, however many pods it has."""


class Frag:
    """Learns from the pods as they arrive, and knows nothing of the trace before.

    Decided and written down as the simulator does it, without an API server between.
    """

    def __init__(self, cluster: ReplayCluster) -> None:
        """Begin with empty nodes, and nothing learned."""
        self._cluster = cluster
        self._ledger, self._hosts = Ledger(), Hosts()
        self._packer = Packer(self._ledger, self._hosts)
        self._policy = replace(POLICIES[FRAG], chooser=self._packer)
        self._candidates = Candidates(self._ledger, self._hosts)
        for row, node in enumerate(cluster.nodes):
            name = name_of(row)
            has = HostAmount(node.cpu_milli, node.memory_mib)
            self._ledger.set_cards(name, cards_of(row, node))
            self._hosts.set_allocatable(name, has)
            self._candidates.put(name, _OPEN)
        self._arrivals = 0
        self._running: defaultdict[RunningPod, list[PodUID]] = defaultdict(list)
        self._upto = len(cluster.ended)

    def choose(self, shape: Shape) -> Spot | None:
        """Find the pod its place, and write it down; None where it fits nowhere."""
        self._follow()
        self._arrivals += 1
        request = request_of(shape, f"{self._arrivals}")
        self._packer.see(request)
        if self._packer.due:
            self._packer.learn()
        needs = PodNeeds(request, self._policy, ANY_NODE)
        placed = self._candidates.schedule(needs)
        return None if placed is None else self._bind(shape, request, placed)

    def _bind(self, shape: Shape, request: PodRequest, placed: Placement) -> Spot:
        uid = request.pod.uid
        self._ledger.record(placed)
        self._hosts.hold(uid, placed.node, request.host or HostAmount())
        self._candidates.count(placed.node, 1)
        cards = tuple(sorted(map(index_of, placed.cards())))
        pod = RunningPod(shape, int(placed.node), cards)
        self._running[pod].append(uid)
        return Spot(pod.node, cards[0] if cards else -1)

    def _follow(self) -> None:
        """Strike out pods that ended meanwhile; of equal ones it is all one which."""
        for pod in self._cluster.ended[self._upto :]:
            uid = self._running[pod].pop()
            self._ledger.release(uid)
            self._hosts.release(uid)
            self._candidates.count(name_of(pod.node), -1)
        self._upto = len(self._cluster.ended)


def name_of(row: int) -> NodeName:
    """Name a node: of equal ones the first by name is taken, so by its place."""
    return NodeName(f"{row:06d}")


def cards_of(row: int, node: TraceNode) -> tuple[Card, ...]:
    """Return a node's cards."""
    return tuple(
        Card(CardUUID(f"{name_of(row)}-{index}"), index, WHOLE, model=node.model)
        for index in range(node.cards)
    )


def index_of(card: CardUUID) -> int:
    """Return the place on its node of a card that ``cards_of`` made."""
    return int(card.rpartition("-")[2])


def request_of(shape: Shape, name: str) -> PodRequest:
    """Return what a pod of one container asks for."""
    amount = _amount(shape)
    return PodRequest(
        PodRef(PodUID(name), "openb", name),
        (Claim(amount, (ContainerAmount("main", amount),)),) if amount else (),
        cards=None if shape.models is None else CardSelector.of(shape.models),
        host=HostAmount(shape.cpu_milli, shape.memory_mib),
    )


def _amount(shape: Shape) -> Amount:
    if shape.cards > 1:
        return Amount(CORES_PER_CARD * shape.cards)
    return Amount(shape.cards, shape.milli)
