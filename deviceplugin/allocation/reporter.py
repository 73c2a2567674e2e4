"""What is written of pods: ``vcuda-actual``, where a pod is if that is not as planned.

Also the isolation tier with which it has started. What ended pods left is removed.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event

from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.allocation.records import AllocationRecord, AllocationRecords
from deviceplugin.cards.advertised import Offer
from deviceplugin.cards.devices import Cards
from gpushare.domain.model import Placement, PodUID
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.errors import ClusterError
from gpushare.kubelet.node_pods import KubeletSilentError
from gpushare.kubelet.pods import (
    UNKNOWN_POD,
    ListedDevices,
    NodePod,
    PodName,
    may_be_static,
)

logger = logging.getLogger(__name__)

_REPORT_LIST_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Reporter:
    """Writes actual placements: at a container's start, and whenever one is missing.

    Later it writes the isolation tier with which a pod has started, if that is not
    ``none``: nothing waits for it. Pods with ResourceClaims get it in the same way.

    It is missing for a static pod, whose object comes after its start, or if somebody
    removed it. For a pod that PreStartContainer has not let start nothing is written:
    what is written here counts as its placement and would let it start.
    """

    cluster: Cluster
    occupancy: Occupancy
    offer: Offer
    records: AllocationRecords
    synced: Event
    tiers: Callable[[], Mapping[PodName, str]] = dict
    """The tiers of prepared ResourceClaims, by their namespace and name."""
    keep_ended_s: float = 600.0
    """How long files stay of which neither the API server nor kubelet has the pod."""
    _refused: set[PodUID] = field(default_factory=set)
    """The pods whose tier the API server does not let be written."""

    def report(self, pod: NodePod, actual: Placement) -> None:
        """Write where the pod is. Raises ``ClusterError`` if that fails."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = encode_placement(actual, at)
        self.cluster.annotate(Kind.PODS, *pod.name, {names.ACTUAL: text})
        planned = pod.placement
        facts = {
            "pod": str(pod.ref),
            "planned": "none" if planned is None else ",".join(planned.cards()),
            "actual": ",".join(actual.cards()),
        }
        logger.info("actual placement written", extra=facts)

    def run(self, stop: Event, every_s: float) -> None:
        """Write what is missing every so often, and remove what ended pods left."""
        while not stop.wait(every_s):
            try:
                self.catch_up()
            except (KubeletSilentError, OSError) as error:
                logger.info("reporting later", extra={"because": str(error)})

    def catch_up(self) -> None:
        """Write what is missing, and forget the pods that have ended."""
        listed = self.occupancy.resources.list(_REPORT_LIST_WITHIN_S)
        cards = self.offer.cards
        records = self.records.all()
        listed_records = self._listed_records(records, listed)
        for pod in self.occupancy.pods.all():
            of_pod = self._records_of(pod, records, listed_records)
            if of_pod and all(map(self.records.may_start, of_pod)):
                self._catch_up_with(pod, listed, cards)
            if all(map(self.records.may_start, of_pod)):
                self._note_isolation(pod, of_pod)
        if not self.synced.is_set():
            # Only the API server knows which pods have ended.
            return
        self.occupancy.forget_ended()
        living = {
            key for pod in self.occupancy.pods.all() for key in (pod.uid, pod.name)
        }
        listed_pods = {(record.pod, record.uid) for record in listed_records}

        def keep(record: AllocationRecord) -> bool:
            if record.pod == UNKNOWN_POD:
                return any(device in listed.holder for device in record.ids)
            # By its UID, because the next pod of a StatefulSet has the same name. A
            # static pod's may be of an earlier mirror.
            alive = (record.uid or record.pod) in living
            return alive or (record.pod, record.uid) in listed_pods

        self.records.sweep(keep, self.keep_ended_s)

    def _listed_records(
        self, records: Sequence[AllocationRecord], listed: ListedDevices
    ) -> frozenset[AllocationRecord]:
        """Return the allocations that kubelet lists as their pod's.

        kubelet tells no UIDs. An earlier pod may have had the same name, so only what
        was allocated last with exactly these devices counts.
        """
        by_pod = {(pod, ids) for pod, _, _, ids in listed.holders()}
        return frozenset(
            record
            for record in records
            if (record.pod, frozenset(record.ids)) in by_pod
            and record in self.records.of(record.ids)
        )

    def _records_of(
        self,
        pod: NodePod,
        records: Sequence[AllocationRecord],
        listed: Collection[AllocationRecord],
    ) -> list[AllocationRecord]:
        """Return the pod's allocations; ``listed`` are those that kubelet lists.

        They are found by name if the UID was not known, or if a static pod's mirror may
        have been created again with another UID.
        """
        static = may_be_static(pod.name, self.occupancy.node)

        def is_its(record: AllocationRecord) -> bool:
            return record.uid == pod.uid or (
                record.pod == pod.name
                and (static or not record.uid)
                and record in listed
            )

        return list(filter(is_its, records))

    def _catch_up_with(self, pod: NodePod, listed: ListedDevices, cards: Cards) -> None:
        actual = self.occupancy.placement(pod, listed, cards)
        if actual is None or not actual.differs_from(pod.placement):
            return
        try:
            self.report(pod, actual)
        except ClusterError as error:
            facts = {"pod": str(pod.ref), "because": str(error)}
            logger.warning("actual placement not written", extra=facts)

    def _note_isolation(self, pod: NodePod, of_pod: Sequence[AllocationRecord]) -> None:
        """Write the tier with which a pod has started, unless it is there."""
        tiers = [
            limit.tier for record in of_pod if (limit := self.records.limit(record))
        ]
        if pod.claims:
            of, namespace = self.tiers(), pod.ref.namespace
            tiers += [of.get((namespace, name), "") for name in sorted(pod.claims)]
        tier = next(filter(None, tiers), "")
        if tier in ("", pod.isolation) or pod.uid in self._refused:
            return
        try:
            self.cluster.annotate(Kind.PODS, *pod.name, {names.ISOLATION: tier})
        except ClusterError as error:
            if not error.retryable:
                # By a guard of an earlier version; the pod runs as it would anyway.
                self._refused.add(pod.uid)
            facts = {"pod": str(pod.ref), "because": str(error)}
            logger.warning("isolation tier not written", extra=facts)
