"""The last check before a container starts: PreStartContainer.

Here a pod may wait, because kubelet calls again after a refusal (contracts 2.4).
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event

from deviceplugin.allocation.device_chooser import limited_units
from deviceplugin.allocation.injection import CardSetup
from deviceplugin.allocation.isolation import tier_named
from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.allocation.records import AllocationRecord, AllocationRecords
from deviceplugin.allocation.reporter import Reporter
from deviceplugin.cards.devices import (
    Cards,
    amounts_by_card,
    placement_from,
    placement_of_unknown_pod,
    why_excluded,
    why_impossible,
    why_no_room,
)
from gpushare.domain.model import (
    CORES_PER_CARD,
    UNIT_MIB,
    Amount,
    Card,
    CardUUID,
    Placement,
    PodRef,
    PodUID,
)
from gpushare.kube.errors import ClusterError
from gpushare.kubelet.node_pods import EventRecorder, KubeletSilentError
from gpushare.kubelet.pods import (
    UNKNOWN_POD,
    AllocationStep,
    HardLimit,
    HeldDevices,
    ListedDevices,
    NodePod,
    PodName,
    may_be_static,
)

logger = logging.getLogger(__name__)

VERSION = 1
"""Of ``allocation.json``; programs ignore fields that they do not know."""
_LIST_WITHIN_S = 10.0
_GET_WITHIN_S = 5.0


class NotYetError(Exception):
    """The container may not start now; ``str()`` says why, kubelet asks again."""


@dataclass(frozen=True, slots=True)
class PreStart:
    """Verifies a container's devices and writes the file that it will see."""

    occupancy: Occupancy
    records: AllocationRecords
    reporter: Reporter
    recorder: EventRecorder
    in_touch: Event
    """Whether the watch of pods goes on; else what it told may be out of date."""
    setup: CardSetup

    def let_start(self, cards: Cards, resource: str, ids: Sequence[str]) -> None:
        """Let the container with these devices start, or raise ``NotYetError``."""
        # Whose devices they are: kubelet and the records say it, and the API server
        # which pod that is.
        owner, containers = self._owner(resource, frozenset(ids))
        pod = self._pod_of(owner)
        if pod is not None and not owner.container:
            owner = replace(owner, container=_init_container(pod, resource, len(ids)))
        devices = {**containers.get(owner.container, {}), resource: frozenset(ids)}
        of_pod_now = {**containers, owner.container: devices}
        # Where the pod really is. Anything else than planned is written first: the
        # extender must know of it before the card is used.
        if pod is None:
            actual = self._of_unknown_pod(owner, of_pod_now, cards)
            owner, of_pod = replace(owner, uid=PodUID("")), {owner.container}
        else:
            actual = self._checked(pod, of_pod_now, cards, ids)
            owner = replace(owner, uid=pod.uid)
            of_pod = {container.name for container in pod.gpu_containers}
        # The folders that Allocate's answers have mounted into the container.
        made = [
            record
            for record in self.records.of(owner.ids)
            # An earlier pod's may be left, where this pod's was lost.
            if record.container in {"", *of_pod}
            and record.pod in {UNKNOWN_POD, owner.pod}
        ]
        if pod is not None and not made:
            made = self._written_anew(pod, owner, actual)
        # Until it is noted that the container may start, no claim gets what is left.
        with self.occupancy.room_lock:
            if wrong := self._why_no_room_beside_claims(actual, cards):
                raise NotYetError(wrong) if pod is None else self._not_yet(pod, wrong)
            self._fill(owner, actual, made, containers)

    def _written_anew(
        self, pod: NodePod, owner: AllocationRecord, actual: Placement
    ) -> list[AllocationRecord]:
        """Write down an allocation with a hard limit whose files were lost.

        kubelet gives a container what Allocate answered once, at each start. So it has
        its limit still, by the tier that the pod's annotation names.
        """
        step = AllocationStep(owner.container, owner.resource, len(owner.ids))
        units = limited_units(
            pod, actual, step, amounts_by_card(actual, owner.container)
        )
        limit = self.setup.isolation.limit(units, tier_named(pod.isolation))
        if limit is None:
            return []
        try:
            self.records.write(owner, limit)
        except OSError as error:
            where = self.records.folder(owner)
            raise NotYetError(f"{where} cannot be written: {error.strerror}") from error
        facts = {"pod": str(pod.ref), "container": owner.container}
        facts["isolation"] = limit.tier
        logger.warning("files of a container were lost; written anew", extra=facts)
        return [owner]

    def _checked(
        self,
        pod: NodePod,
        containers: Mapping[str, HeldDevices],
        cards: Cards,
        ids: Sequence[str],
    ) -> Placement:
        """Return where a pod is, reported if that is not as planned."""
        by_devices = placement_from(pod, self.occupancy.node, containers, cards)
        actual = self.occupancy.expected_if_same(by_devices, pod)
        actual = actual or self._expected(pod, cards.holding(ids))
        self._insist_on_its_cards(pod, actual, containers, cards)
        if actual.differs_from(pod.placement):
            wrong = why_excluded(actual, pod, cards)
            if wrong := wrong or self._why_no_room_where_chosen(actual, cards):
                raise self._not_yet(pod, wrong)
            try:
                self.reporter.report(pod, actual)
            except ClusterError as error:
                raise NotYetError(
                    f"the pod's card could not be reported: {error}"
                ) from error
            self.occupancy.decide(actual)
        return actual

    def _owner(
        self, resource: str, ids: frozenset[str]
    ) -> tuple[AllocationRecord, Mapping[str, HeldDevices]]:
        """Return who holds these ids, and what kubelet says that its pod holds.

        By the record that Allocate wrote, if kubelet says the same of that pod; else by
        kubelet's whole list, which is long.
        """

        def owner(pod: PodName, uid: PodUID, container: str) -> AllocationRecord:
            return AllocationRecord(*pod, uid, container, resource, tuple(sorted(ids)))

        records = self.records.of(ids)
        record = records[-1] if records else None
        if record is not None and record.container:
            of_pod = self.occupancy.resources.get(record.pod, _GET_WITHIN_S)
            devices_by_container = (of_pod or {}).items()
            holder = next(
                (name for name, h in devices_by_container if h.get(resource) == ids),
                None,
            )
            # An init container that ends is not listed; then the record says it.
            ended = holder is None and record.container not in (of_pod or {})
            if of_pod is not None and (holder or ended):
                container = holder or record.container
                return owner(record.pod, record.uid, container), of_pod
        listed = self._list()
        for pod, container, of_resource, device_ids in listed.holders():
            if of_resource == resource and device_ids == ids:
                uid = record.uid if record and record.pod == pod else PodUID("")
                return owner(pod, uid, container), listed.held_by(pod)
        if record is None:
            raise NotYetError("it is not known which container holds these devices")
        holders = {listed.holder[device] for device in ids if device in listed.holder}
        if record.pod == UNKNOWN_POD and len(holders) == 1:
            # An init container's, which kubelet has passed on within its pod.
            pod = holders.pop()
            return owner(pod, PodUID(""), ""), listed.held_by(pod)
        return owner(record.pod, record.uid, record.container), listed.held_by(
            record.pod
        )

    def _list(self) -> ListedDevices:
        try:
            return self.occupancy.resources.list(_LIST_WITHIN_S)
        except KubeletSilentError as error:
            why = f"kubelet does not say which container holds them: {error}"
            raise NotYetError(why) from None

    def _pod_of(self, owner: AllocationRecord) -> NodePod | None:
        """Return the pod; None for a static one that the API server does not have yet.

        kubelet tells no UIDs, so a pod of the watch may be an earlier one of this name:
        while the watch is broken, the API server must say which pod it is. It need not
        for a container that is restarted, nor for an init container whose pod neither
        kubelet nor a record names.
        """
        if owner.pod == UNKNOWN_POD:
            return None
        known = self.occupancy.pods.find(owner.pod)
        if known is not None and known.uid == owner.uid:
            before = any(map(self.records.may_start, self.records.of(owner.ids)))
            if before or self.in_touch.is_set():
                return known
        static = may_be_static(owner.pod, self.occupancy.node)
        try:
            pod = self.occupancy.pods.fetch(owner.pod)
        except ClusterError as error:
            if static:
                return known
            why = f"the API server does not say which cards the pod may have: {error}"
            raise NotYetError(why) from error
        if pod is None and not static:
            raise NotYetError("the API server has no such pod on this node")
        return pod

    def _expected(self, pod: NodePod, on: Sequence[Card]) -> Placement:
        """Return where the pod is to be, if these cards are part of that.

        Needed if kubelet has passed on an init container's devices: then the devices do
        not tell the placement.
        """
        expected = self.occupancy.expected(pod)
        if expected is None or not {card.uuid for card in on} <= set(expected.cards()):
            wrong = pod.why_refused() or "it is not known which cards the pod may have"
            raise self._not_yet(pod, wrong)
        return expected

    def _of_unknown_pod(
        self,
        owner: AllocationRecord,
        containers: Mapping[str, HeldDevices],
        cards: Cards,
    ) -> Placement:
        """Place a static pod that the API server does not have yet; reported later."""
        ref = PodRef(PodUID("/".join(owner.pod)), *owner.pod)
        placed = placement_of_unknown_pod(ref, self.occupancy.node, containers, cards)
        if len(placed.shares) != 1:
            raise NotYetError(
                "a pod that only kubelet knows, such as a static pod, can have one "
                "card at most"
            )
        if wrong := self._why_no_room_where_chosen(placed, cards):
            raise NotYetError(wrong)
        logger.info("pod that only kubelet knows", extra={"pod": "/".join(owner.pod)})
        return placed

    def _insist_on_its_cards(
        self,
        pod: NodePod,
        actual: Placement,
        containers: Mapping[str, HeldDevices],
        cards: Cards,
    ) -> None:
        if pod.placement is not None and not actual.differs_from(pod.placement):
            if wrong := why_impossible(pod.placement, pod, cards):
                raise self._not_yet(pod, f"impossible placement: {wrong}")
            return
        for container in pod.gpu_containers:
            device_ids = containers.get(container.name, {}).values()
            on = cards.holding(device for ids in device_ids for device in ids)
            if container.amount.cores < CORES_PER_CARD and len(on) > 1:
                why = f"container {container.name} has parts of several cards"
                raise self._not_yet(pod, why)

    def _why_no_room_beside_claims(self, actual: Placement, cards: Cards) -> str:
        """Say which card has no room for a pod beside prepared claims; empty if none.

        kube-scheduler gives claims their card, and the pod's plan may not know of it.
        Pods that wait as this one does are not counted, else none of several would
        start. A claim is prepared only where there is room beside all planned pods.
        Hold ``room_lock``, as who prepares a claim does.
        """
        if not self.occupancy.is_claimed(actual.cards()):
            return ""
        started = [
            other for other in self.records.all() if self.records.may_start(other)
        ]
        started_pods = {record.uid or record.pod for record in started}
        waiting = {
            pod.uid
            for pod in self.occupancy.pods.all()
            if not (pod.running or pod.uid in started_pods or pod.name in started_pods)
        }
        node = self.occupancy.charged(self.occupancy.as_allocated(), cards)
        node = node.without({*waiting, actual.pod.uid})
        return _until_room(why_no_room(actual.by_card(), node, cards))

    def _why_no_room_where_chosen(self, actual: Placement, cards: Cards) -> str:
        node = self.occupancy.charged(self._list(), cards)
        node = node.without({actual.pod.uid})
        chosen = "kubelet chose card {}, which has"
        return _until_room(why_no_room(actual.by_card(), node, cards, chosen))

    def _fill(
        self,
        owner: AllocationRecord,
        actual: Placement,
        made: Collection[AllocationRecord],
        listed: Mapping[str, HeldDevices],
    ) -> None:
        """Write the files for these ids; the other resource's call writes its own.

        Also the files of an init container whose devices kubelet has passed on: it
        cannot be told which of the two containers starts now. A folder that was created
        while the container was not known has no container's name.
        """
        for record in made or [owner]:
            container = record.container or owner.container
            shares = amounts_by_card(actual, container)
            for share in actual.shares:
                if share.card in shares and share.is_whole:
                    # A whole card belongs to the pod, whatever memory it asked for.
                    shares[share.card] = share.amount
            known = replace(owner, container=record.container, ids=record.ids)
            others = self._others(record, known, container, listed)
            limit_of_each = map(self.records.limit, (record, *others))
            limit = next((limit for limit in limit_of_each if limit is not None), None)
            of_container = replace(owner, container=container)
            text = allocation_text(of_container, shares, limit)
            limits, wrong = self.setup.limits_text(limit, shares)
            if wrong:
                raise NotYetError(wrong)
            try:
                self.records.fill(record, known, text, limits)
                for other in others if limit is not None else ():
                    # kubelet may mount that record's folder as /etc/vcuda.
                    self.records.tell(other, text, limits)
            except OSError as error:
                where = self.records.folder(known)
                why = f"{where} cannot be written: {error.strerror}"
                raise NotYetError(
                    f"{why}; the container starts when the file can be written"
                ) from error

    def _others(
        self,
        record: AllocationRecord,
        known: AllocationRecord,
        container: str,
        listed: Mapping[str, HeldDevices],
    ) -> list[AllocationRecord]:
        """Return the other records of the container; one of them may have its limit.

        They have its name, or were made while nobody knew it. Then kubelet's list says
        which they are. It does not list an init container that ends: its are those that
        kubelet lists for no other container of the pod.
        """
        of_container = {frozenset(ids) for ids in listed.get(container, {}).values()}
        of_all = {ids for devices in listed.values() for ids in devices.values()}

        def is_its(other: AllocationRecord) -> bool:
            if (
                other.pod == known.pod
                and other.uid in {"", known.uid}
                and other.container
            ):
                return other.container == container
            if container in listed:
                nameless = other.pod in {UNKNOWN_POD, known.pod} and not other.container
                return nameless and frozenset(other.ids) in of_container
            return other.pod == known.pod and frozenset(other.ids) not in of_all

        return [
            other for other in self.records.all() if other != record and is_its(other)
        ]

    def _not_yet(self, pod: NodePod, why: str) -> NotYetError:
        self.recorder.warn(pod, "VcudaWaiting", why)
        return NotYetError(why)


def _until_room(why: str) -> str:
    return why and f"{why}; the container starts when the card has room"


def _init_container(pod: NodePod, resource: str, count: int) -> str:
    """Name the init container that asks for exactly this; empty if none does."""
    init_steps = (
        step for step in pod.steps if step.container in pod.regular_init_containers
    )
    same = (
        step.container
        for step in init_steps
        if (step.resource, step.count) == (resource, count)
    )
    return next(same, "")


def allocation_text(
    owner: AllocationRecord,
    shares: Mapping[CardUUID, Amount],
    limit: HardLimit | None,
    **more: object,
) -> str:
    """Return the file ``allocation.json`` of a container; ``more`` are further keys."""
    body: dict[str, object] = {
        "v": VERSION,
        "pod": "/".join(owner.pod),
        "uid": owner.uid,
        "container": owner.container,
        "cards": [
            {
                "uuid": uuid,
                "units": amount.units,
                "cores": amount.cores,
                "memory_mib": amount.units * UNIT_MIB,
            }
            for uuid, amount in shares.items()
        ],
        "isolation": "none" if limit is None else limit.tier,
    }
    if limit is not None:
        body["hard_limit_mib"] = limit.mib
    return json.dumps(body | more) + "\n"
