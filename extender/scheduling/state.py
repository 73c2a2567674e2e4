"""What the extender knows: the ledger, and what fills and reads it."""

import time
from collections.abc import Callable
from typing import Any

from extender.scheduling.filter_cache import Inflight
from gpushare.domain.frag.policy import Packer
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.policies import DEFAULT_POLICY, CardOrder, PolicyChoice
from gpushare.informers.nodes import NodeInformer
from gpushare.informers.pods import PodInformer
from gpushare.informers.resource_claims import ResourceClaimInformer
from gpushare.informers.snapshot import write_snapshot


class ExtenderState:
    """The extender's state in memory, which reflectors fill.

    ``resource_claims`` stays empty where no reviews of ResourceClaims are wanted.
    ``page``: keep also the labels and taints of nodes, which only the page needs,
    because kube-scheduler asks filter about nodes that the pod may use.
    """

    def __init__(
        self,
        *,
        wait_s: float,
        pending_for_s: float,
        policy: str = DEFAULT_POLICY,
        card_order: CardOrder = "index",
        page: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger, self.hosts = Ledger(), Hosts()
        self.packer = Packer(self.ledger, self.hosts)
        self.choice = PolicyChoice(policy, card_order, self.packer)
        self.inflight = Inflight(
            wait_s=wait_s, pending_for_s=pending_for_s, clock=clock
        )
        self.pods = PodInformer(
            self.ledger,
            self.choice,
            on_gone=self.inflight.end,
            on_new=self.packer.see,
            hosts=self.hosts,
            clock=clock,
        )
        self.resource_claims = ResourceClaimInformer(
            self.ledger,
            set_cards=self.pods.set_cards,
            reconsider=self.pods.reconsider,
            clock=clock,
        )
        set_cards = self.resource_claims.set_cards
        self.nodes = NodeInformer(
            self.ledger, set_cards=set_cards, hosts=self.hosts, with_properties=page
        )

    def snapshot(self) -> dict[str, Any]:
        """Return what ``/snapshot`` shows now."""
        return write_snapshot(
            self.ledger.nodes(),
            self.pods.records(),
            self.choice,
            self.ledger.reservations(),
            self.resource_claims.users(),
        )
