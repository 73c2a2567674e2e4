"""``vcuda-actual``: where a pod really is, when that is not what was planned."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event

from deviceplugin.devices import Cards, differs
from deviceplugin.nodepod import NOBODY, Listed, NodePod, may_be_static
from deviceplugin.occupancy import Occupancy
from deviceplugin.podresources import KubeletSilentError, PodResources
from deviceplugin.pods import NodePods
from deviceplugin.records import Record, Records
from gpushare.domain.model import Placement
from gpushare.kube import names
from gpushare.kube.annotations import encode_placement
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.errors import ClusterError

logger = logging.getLogger(__name__)

_LIST_WITHIN_S = 5.0
_YOUNG_S = 600.0


@dataclass(frozen=True, slots=True)
class Reporter:
    """Writes actual placements: at a container's start, and whenever one was missed.

    Missed is a static pod's, whose object comes after its start, or one that somebody
    removed. Of a pod that PreStartContainer has not let start nothing is written: what
    is written here counts as its placement, and would let it start.
    """

    cluster: Cluster
    pods: NodePods
    resources: PodResources
    occupancy: Occupancy
    cards: Callable[[], Cards]
    records: Records
    synced: Callable[[], bool]

    def report(self, pod: NodePod, actual: Placement) -> None:
        """Write where the pod is; ``ClusterError`` when it could not be written."""
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
        """Look every so often for what was missed, and tidy up what pods left."""
        while not stop.wait(every_s):
            try:
                self.catch_up()
            except (KubeletSilentError, OSError) as error:
                logger.info("reporting later", extra={"because": str(error)})

    def catch_up(self) -> None:
        """Write what was missed, and forget the pods that have ended."""
        listed = self.resources.list(_LIST_WITHIN_S)
        cards = self.cards()
        records = self.records.all()
        for pod in self.pods.all():
            its = self._its(pod, records, listed)
            if its and all(map(self.records.may_start, its)):
                self._catch_up_with(pod, listed, cards)
        if not self.synced():
            # Who has ended, only the API server knows.
            return
        self.occupancy.forget_the_gone()
        living = {one for pod in self.pods.all() for one in (pod.uid, pod.name)}
        holder = listed.holder

        def keep(record: Record) -> bool:
            held_by = {holder[one] for one in record.ids if one in holder}
            if record.pod == NOBODY:
                return bool(held_by)
            return (record.uid or record.pod) in living or record.pod in held_by

        self.records.sweep(keep, _YOUNG_S)

    def _its(
        self, pod: NodePod, records: Sequence[Record], listed: Listed
    ) -> list[Record]:
        """Give what the pod was allocated.

        By its name where nobody knew the UID, and where a static pod's mirror may have
        been made anew, with another UID. An earlier pod may have had that name, so this
        counts only for what kubelet lists as this one's.
        """
        static = may_be_static(pod.name, self.occupancy.node)
        held = {ids for of in listed.held(pod.name).values() for ids in of.values()}

        def is_its(record: Record) -> bool:
            return record.uid == pod.uid or (
                record.pod == pod.name
                and (static or not record.uid)
                and frozenset(record.ids) in held
                and record in self.records.of(record.ids)
            )

        return list(filter(is_its, records))

    def _catch_up_with(self, pod: NodePod, listed: Listed, cards: Cards) -> None:
        actual = self.occupancy.placement(pod, listed, cards)
        if actual is None or not differs(actual, pod.placement):
            return
        try:
            self.report(pod, actual)
        except ClusterError as error:
            facts = {"pod": str(pod.ref), "because": str(error)}
            logger.warning("actual placement not written", extra=facts)
