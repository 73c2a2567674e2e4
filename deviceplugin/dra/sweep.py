"""Claims that are prepared for nobody, and files of claims that were lost."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from deviceplugin.allocation.isolation import tier_named
from deviceplugin.dra.checks import NotPreparedError
from deviceplugin.dra.prepare import ResourceClaimPreparer, ResourceClaimRef
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import NotFound
from gpushare.kube.json_reader import Malformed
from gpushare.kube.resource_claims.allocated import ResourceClaim, read_resource_claim
from gpushare.kubelet.claim_records import PreparedResourceClaim
from gpushare.kubelet.pods import NodePod

logger = logging.getLogger(__name__)

_GONE_S = 600.0


@dataclass
class Sweeper:
    """Compares the prepared claims with the API server's, every so often."""

    preparer: ResourceClaimPreparer
    has_adopted: bool = False
    """Whether running claims whose records were lost have been looked for."""
    _gone_since: dict[str, float] = field(default_factory=dict)
    """When each prepared claim was first seen to be for nobody."""

    def forget_gone(self, now: float) -> None:
        """Remove the claims that were for nobody for ten minutes.

        kubelet unprepares each claim that it knows, once its containers have ended. It
        knows none of before if its state was deleted, as by ``kubeadm reset``. ``now``
        is in seconds. Raises ``ClusterError``.
        """
        users = Counter(
            (pod.ref.namespace, name)
            for pod in self.preparer.occupancy.pods.all()
            for name in pod.claims
        )
        prepared = self.preparer.claims.all()
        known = {claim.uid for claim in prepared}
        # Of two claims of one name, a pod uses one. The earlier one may be deleted
        # while its pod runs, by somebody who may edit claims.
        of_name = Counter((claim.namespace, claim.name) for claim in prepared)
        used = {name for name, count in users.items() if of_name[name] <= count}
        self._gone_since = {u: t for u, t in self._gone_since.items() if u in known}
        for claim in prepared:
            if (claim.namespace, claim.name) in used or not self._is_gone(claim):
                self._gone_since.pop(claim.uid, None)
            elif now - self._gone_since.setdefault(claim.uid, now) >= _GONE_S:
                ref = _ref(claim)
                logger.warning("prepared claim is gone", extra={"claim": str(ref)})
                self.preparer.unprepare(ref)

    def repair(self) -> None:
        """Write what prepared claims have lost. Raises ``ClusterError``."""
        claims = self.preparer.claims
        for claim in claims.all():
            if claims.lacking(claim):
                with suppress(NotPreparedError):
                    self.preparer.repair(_ref(claim))

    def adopt(self) -> None:
        """Write down claims that run here and whose records were lost.

        Only once in a process, which forgets none. Later a pod that seems to run may
        have just ended. Raises ``ClusterError``.
        """
        if self.has_adopted:
            return
        known = {(claim.namespace, claim.name) for claim in self.preparer.claims.all()}
        for pod in self.preparer.occupancy.pods.all():
            for name in _running(pod):
                if (pod.ref.namespace, name) in known:
                    continue
                claim = self._read(pod.ref.namespace, name)
                if claim is not None and pod.uid in {u.uid for u in claim.reserved_for}:
                    with suppress(NotPreparedError):
                        self.preparer.adopt(claim, tier_named(pod.isolation))
        self.has_adopted = True

    def _is_gone(self, claim: PreparedResourceClaim) -> bool:
        try:
            body = self.preparer.cluster.get(Kind.CLAIMS, claim.namespace, claim.name)
            stored = read_resource_claim(body)
        except NotFound:
            return True
        except Malformed:
            return False
        is_other = body["metadata"]["uid"] != claim.uid
        return is_other or stored is None or stored.node != self.preparer.occupancy.node

    def _read(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim with cards of this node; None if it has none."""
        try:
            claim = read_resource_claim(
                self.preparer.cluster.get(Kind.CLAIMS, namespace, name)
            )
        except (NotFound, Malformed):
            return None
        return claim if claim and claim.node == self.preparer.occupancy.node else None


def _running(pod: NodePod) -> Iterator[str]:
    uses = (use for use in pod.claim_uses if use.container in pod.running)
    yield from dict.fromkeys(use.claim for use in uses if use.claim)


def _ref(claim: PreparedResourceClaim) -> ResourceClaimRef:
    return ResourceClaimRef(claim.namespace, claim.name, claim.uid)
