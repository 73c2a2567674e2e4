"""Follow ResourceClaims where the API server has them; settle late reservations."""

import logging
from collections.abc import Mapping
from threading import Event

from gpushare.informers.resource_claims import ResourceClaimInformer
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.reflector import Reflector

logger = logging.getLogger(__name__)

RESOURCE_CLAIMS = "resourceclaims"
"""How readiness and the log call what is followed."""
_NOT_SERVED = (
    "the API server does not serve resource.k8s.io/v1, so there are no ResourceClaims "
    "to follow; pods are scheduled without them"
)
_ASK_EVERY_S = 60.0


class ResourceClaimWatch:
    """Keep a ``ResourceClaimInformer`` up to date.

    An API server without ``resource.k8s.io/v1`` stores no allocations, so it does not
    hold up the scheduling of pods. It is asked again, since it may be upgraded.
    """

    def __init__(self, cluster: Cluster, informer: ResourceClaimInformer) -> None:
        self._cluster = cluster
        self._informer = informer
        self.reflector = Reflector(cluster, Kind.CLAIMS, informer)
        self._missing = False

    def notes(self) -> Mapping[str, str]:
        """Return why claims need not be waited for; empty if they have to be."""
        return {RESOURCE_CLAIMS: _NOT_SERVED} if self._missing else {}

    def run(self, stop: Event) -> None:
        """Follow claims until ``stop`` is set, once the API server serves them."""
        while not stop.is_set() and self._is_missing():
            stop.wait(_ASK_EVERY_S)
        self.reflector.run(stop)

    def settle_overdue(self) -> None:
        """Read the claims whose reservation was never seen to take effect.

        And look whether the API server has claims at all, if it tells nothing of them:
        it may be an older one than before.
        """
        if self.reflector.in_touch.is_set():
            self._missing = False
        elif self.reflector.synced.is_set():
            self._is_missing()
        for claim in self._informer.overdue():
            stored: Json | None
            try:
                stored = self._cluster.get(Kind.CLAIMS, claim.namespace, claim.name)
            except NotFound:
                stored = None
            except ClusterError as error:
                facts = {"claim": str(claim), "because": str(error)}
                logger.info("claim could not be read; it is tried again", extra=facts)
                continue
            self._informer.settle(claim, stored)

    def _is_missing(self) -> bool:
        try:
            self._cluster.list_page(Kind.CLAIMS, limit=1)
        except NotFound:
            if not self._missing:
                self._missing = True
                logger.warning(_NOT_SERVED)
            return True
        except ClusterError:
            # The reflector waits for the API server, and says what is wrong.
            pass
        self._missing = False
        return False
