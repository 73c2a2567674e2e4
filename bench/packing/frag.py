"""The product's policy ``frag`` at work in a replay: its books, its packer."""

from collections import defaultdict
from dataclasses import replace

from bench.packing.cluster import Held, ReplayCluster, Shape, Spot
from bench.packing.nouns import cards_of, index_of, name_of, request_of
from gpushare.domain.frag.policy import Packer
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.model import HostAmount, Placement, PodRequest, PodUID
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
        self._running: defaultdict[Held, list[PodUID]] = defaultdict(list)
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
        found = self._candidates.schedule(needs)
        return None if found is None else self._bind(shape, request, found)

    def _bind(self, shape: Shape, request: PodRequest, placed: Placement) -> Spot:
        uid = request.pod.uid
        self._ledger.record(placed)
        self._hosts.hold(uid, placed.node, request.host or HostAmount())
        self._candidates.count(placed.node, 1)
        cards = tuple(sorted(map(index_of, placed.cards())))
        held = Held(shape, int(placed.node), cards)
        self._running[held].append(uid)
        return Spot(held.node, cards[0] if cards else -1)

    def _follow(self) -> None:
        """Strike out pods that ended meanwhile; of equal ones it is all one which."""
        for held in self._cluster.ended[self._upto :]:
            uid = self._running[held].pop()
            self._ledger.release(uid)
            self._hosts.release(uid)
            self._candidates.count(name_of(held.node), -1)
        self._upto = len(self._cluster.ended)
