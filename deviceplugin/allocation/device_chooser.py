"""Which devices each pod gets: kubelet's GetPreferredAllocation and Allocate.

kubelet's whole sync loop waits for both calls. ``prefer`` asks kubelet who holds what
(a millisecond or two); ``allocate`` makes no calls. Each call works on one snapshot of
the cards.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLongError
from dataclasses import dataclass, field, replace
from itertools import accumulate
from threading import Lock

from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.cards.devices import (
    Cards,
    Tally,
    amount_of,
    amounts_by_card,
    count_of,
    pick_device_ids,
    why_impossible,
)
from gpushare.cards.source import FoundCard
from gpushare.domain.model import (
    CORES_PER_CARD,
    Amount,
    Card,
    CardUUID,
    Claim,
    ContainerAmount,
    Placement,
    PodRef,
    PodRequest,
    PodUID,
    Refusal,
    Share,
    share_whole_cards,
)
from gpushare.domain.placement import place
from gpushare.domain.policies import DEFAULT_POLICY, POLICIES
from gpushare.kube import names
from gpushare.kube.codec import refusal_text
from gpushare.kubelet.node_pods import EventRecorder
from gpushare.kubelet.pods import (
    KINDS,
    UNKNOWN_POD,
    ActivePod,
    Allocated,
    AllocationStep,
    HeldDevices,
    ListedDevices,
    NodePod,
    PodName,
    admission_candidates,
    card_key,
    may_be_static,
    pod_known_to_kubelet,
    steps_left,
)

_LIST_WITHIN_S = 1.0
_SEEN_WITHIN_S = 0.05
_LEARNED_WITHIN_S = 0.3
"""In all, because kubelet waits; kubelet may know a pod before the plugin does."""
_FEW = 3
_ADMISSION_LASTS_S = 2.0
"""kubelet makes the steps of one admission milliseconds apart; later it is another."""


class DeniedError(Exception):
    """The pod cannot have devices; ``str()`` goes to kubelet and into its status."""


@dataclass(frozen=True, slots=True)
class DeviceQuestion:
    """What kubelet asks with GetPreferredAllocation, about one container.

    ``available`` are kubelet's free devices of the resource, ``must`` those that it has
    already chosen, from an init container's, and ``size`` how many it wants in all.
    """

    cards: Cards
    resource: str
    available: Sequence[str]
    must: Sequence[str]
    size: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """An allocation: its container as far as it is known, and the cards it shows.

    ``limited_units`` is the container's part of a card that it shares, in units. None
    for whole cards, and if the call for the other resource has the limit.
    """

    pod: PodName
    uid: PodUID
    container: str
    cards: tuple[FoundCard, ...]
    limited_units: int | None = None


@dataclass
class _Progress:
    active: ActivePod | None = None
    of_unknown_pod: str = ""
    """A device that was allocated to a pod that only kubelet knows."""
    listed: ListedDevices = field(default_factory=lambda: ListedDevices({}))
    at: float = float("-inf")

    @property
    def recent(self) -> bool:
        """Whether its last step was a moment ago."""
        return time.monotonic() - self.at < _ADMISSION_LASTS_S


class DeviceChooser:
    """Chooses device ids for the pod being admitted; one pod after another."""

    def __init__(self, occupancy: Occupancy, recorder: EventRecorder) -> None:
        self._finder = ActivePodFinder(occupancy)
        self._fallback = FallbackPlacement(occupancy)
        self._occupancy = occupancy
        self._recorder = recorder
        self._lock = Lock()
        self._progress = _Progress()

    def prefer(self, question: DeviceQuestion) -> list[str]:
        """Choose ids for the pod being admitted; ``DeniedError`` with the reason."""
        with self._lock:
            active = self._pod_being_admitted(question)
            chosen = self._chosen(active, question)
            if chosen is None:
                # Its own card has too few devices left. While it holds none, it can
                # still be moved to another one.
                if self._is_halfway(active.pod):
                    why = (
                        "the pod's card has too few free devices of "
                        f"{question.resource}"
                    )
                    raise self._denied(active.pod, why)
                active = replace(active, placement=self._placed(active.pod, question))
                chosen = self._chosen(active, question)
            if chosen is None:
                why = f"too few free devices of {question.resource}"
                raise self._denied(active.pod, why)
            self._progress.active, self._progress.at = active, time.monotonic()
            return chosen

    def allocate(self, cards: Cards, resource: str, ids: Sequence[str]) -> Assignment:
        """Say which container gets these ids and which cards they show.

        Raises ``DeniedError``.
        """
        with self._lock:
            if unknown := cards.unknown(resource, ids):
                raise DeniedError(f"no card of this node has {_some(unknown)}")
            active = self._progress.active if self._progress.recent else None
            step = None if active is None else active.step(resource, len(ids))
            on = tuple(card.uuid for card in cards.holding(ids))
            if active is None or step is None:
                # No admission explains the call: PreStartContainer will say whose the
                # devices are.
                self._insist_on_free(ids, UNKNOWN_POD)
                if len(on) > 1:
                    raise DeniedError(
                        f"{_some(ids)} are of {len(on)} cards, and no pod is known "
                        "that asked for them"
                    )
                limited = len(ids) if resource == names.MEMORY else None
                return Assignment(
                    UNKNOWN_POD, PodUID(""), "", cards.as_found(on), limited
                )
            # The next step of the pod that is being admitted.
            pod = active.pod
            self._insist_on_free(ids, pod.name)
            self._progress.active = active.after(step)
            self._progress.at = time.monotonic()
            if pod.uid:
                allocated = frozenset(ids)
                self._occupancy.allocate(pod.uid, step.container, resource, allocated)
            else:
                self._progress.of_unknown_pod = ids[0]
            shown = self._shown(active, step, on)
            limited = limited_units(pod, active.placement, step, shown)
            return Assignment(
                pod.name, pod.uid, step.container, cards.as_found(shown), limited
            )

    def _pod_being_admitted(self, question: DeviceQuestion) -> ActivePod:
        """Find the pod being admitted, at each call: kubelet may have failed it."""
        before, listed = self._progress, self._occupancy.listed(_LIST_WITHIN_S)
        self._progress = _Progress(listed=listed)
        pod = self._finder.find(listed, question.resource, question.size)
        if pod is None:
            return self._unknown_pod(question, before)
        if wrong := pod.why_refused():
            raise self._denied(pod, wrong)
        # The devices that it holds already decide where the rest of it is.
        placement = self._occupancy.placement(pod, listed, question.cards)
        if placement is None:
            placement = self._placed(pod, question)
        elif wrong := why_impossible(placement, pod, question.cards):
            raise self._denied(pod, f"impossible placement: {wrong}")
        elif not self._is_halfway(pod) and self._fallback.is_short(
            placement, pod.name, listed, question.cards
        ):
            placement = self._placed(pod, question)
        steps = steps_left(pod, listed, self._occupancy.allocated())
        return ActivePod(pod, placement, steps or pod.steps)

    def _is_halfway(self, pod: NodePod) -> bool:
        holds = any(self._progress.listed.held_by(pod.name).values())
        return holds or self._occupancy.has_allocation(pod.uid)

    def _placed(self, pod: NodePod, question: DeviceQuestion) -> Placement:
        request = pod.record.request
        placement = (
            request
            if isinstance(request, Refusal)
            else self._fallback.place(request, self._progress.listed, question)
        )
        if isinstance(placement, Refusal):
            raise self._denied(pod, refusal_text(placement))
        if pod.uid:
            self._occupancy.decide(placement)
        return placement

    def _unknown_pod(self, question: DeviceQuestion, before: _Progress) -> ActivePod:
        """Begin or continue the admission of a pod that only kubelet knows.

        It is a static pod, or any pod while the API server is out of reach; the latter
        waits before its start. All its devices are of one card, or of the whole cards
        that its first call asked for.
        """
        listed, size = self._progress.listed, question.size
        # Which pod it is: the one that was given devices a moment ago, or a new one.
        last = UNKNOWN_POD
        if before.recent:
            last = listed.holder.get(before.of_unknown_pod, UNKNOWN_POD)
        name = self._finder.known_to_kubelet(listed, last, before.listed)
        begun = name == last != UNKNOWN_POD
        on = self._begun_on(name, before, question.cards) if begun else ()
        # How much it asks for, of which kubelet tells one resource at a time.
        amount = amount_of(question.resource, size)
        if not on:
            amount = self._asked_in_all(amount, name, question.cards)
        if amount.cores > CORES_PER_CARD and may_be_static(name, self._occupancy.node):
            raise DeniedError("a static pod can have one card at most")
        if len(on) > 1 and amount.cores not in (0, CORES_PER_CARD * len(on)):
            raise DeniedError(
                f"{amount.cores} cores cannot be of {len(on)} whole cards"
            )
        # Where it is: on the cards where it has begun, else where there is room.
        pod = pod_known_to_kubelet(name, amount)
        if len(on) > 1:
            placement = self._fallback.on_whole_cards(pod.ref, size, on)
        else:
            # The devices that it holds already decide where the rest of it is.
            keys = tuple(card_key(card.uuid) for card in on)
            free = [i for i in question.available if not keys or i.startswith(keys)]
            placement = self._placed(pod, replace(question, available=free))
        return ActivePod(pod, placement, pod.steps)

    def _asked_in_all(self, part: Amount, name: PodName, cards: Cards) -> Amount:
        """Return what a pod's first container asks for, as far as it can be known.

        kubelet says one part of it, of its cores or its memory by chance. The other is
        known from before a reboot. If not, memory that no card has is of whole cards.
        """
        unseen = self._finder.unseen(self._progress.listed)
        before = unseen if name == UNKNOWN_POD else [name]
        if amount := self._occupancy.amount_before(before, part):
            return amount
        units = sorted((card.units for card in cards.all if card.healthy), reverse=True)
        sums = enumerate(accumulate(units), 1)
        needed = next((count for count, units in sums if units >= part.units), 0)
        return replace(part, cores=CORES_PER_CARD * needed) if needed > 1 else part

    def _begun_on(
        self, name: PodName, before: _Progress, cards: Cards
    ) -> Sequence[Card]:
        """Return the cards of a pod's first call; its devices may be of only some."""
        containers = self._progress.listed.held_by(name).values()
        on = cards.holding(i for h in containers for ids in h.values() for i in ids)
        planned = () if before.active is None else before.active.placement.cards()
        if not {card.uuid for card in on} <= {*planned}:
            # kubelet has chosen otherwise.
            return on
        return tuple(filter(None, map(cards.of, planned)))

    def _chosen(self, active: ActivePod, question: DeviceQuestion) -> list[str] | None:
        step = active.step(question.resource, question.size)
        if step is None:
            return None
        wanted = {
            uuid: count_of(amount, question.resource)
            for uuid, amount in amounts_by_card(
                active.placement, step.container
            ).items()
        }
        taken, name = self._progress.listed.holder, active.pod.name
        keys = tuple(card_key(uuid) for uuid in wanted)
        of_cards = [device for device in question.available if device.startswith(keys)]
        free = [device for device in of_cards if taken.get(device, name) == name]
        return pick_device_ids(wanted, free, question.must, size=question.size)

    def _insist_on_free(self, ids: Sequence[str], pod: PodName) -> None:
        """Refuse ids that another pod holds: kubelet may forget (contracts 2.7)."""
        taken = self._progress.listed.holder
        if doubled := [device for device in ids if taken.get(device, pod) != pod]:
            holder = "/".join(taken[doubled[0]])
            raise DeniedError(f"{holder} holds {_some(doubled)} already")

    def _shown(
        self, active: ActivePod, step: AllocationStep, on: tuple[CardUUID, ...]
    ) -> tuple[CardUUID, ...]:
        """Return all cards of the container; these ids may be of only some of them."""
        planned = tuple(amounts_by_card(active.placement, step.container))
        if {*on} <= {*planned, *active.placement.cards()}:
            return planned or on
        if len(on) > 1:
            raise self._denied(
                active.pod,
                f"kubelet chose devices of {len(on)} cards for {step.resource} "
                "instead of those of its placement",
            )
        return on

    def _denied(self, pod: NodePod, why: str) -> DeniedError:
        self._recorder.warn(pod, "VcudaDenied", why)
        return DeniedError(why)


@dataclass(frozen=True, slots=True)
class FallbackPlacement:
    """Places pods without a placement, by the scheduler's policies on this node alone.

    Used for a pod that came without a placement, or whose card kubelet cannot give.
    """

    occupancy: Occupancy
    _tally: Tally = field(default_factory=Tally)

    def place(
        self, request: PodRequest, listed: ListedDevices, question: DeviceQuestion
    ) -> Placement | Refusal:
        """Place a pod on cards of which kubelet has devices left."""
        node = self.occupancy.charged(listed, question.cards).as_seen_by(request.pod)
        node = node.without(self.occupancy.earlier_pods_of_this_name(request.pod))
        policy = POLICIES.get(request.policy or "", POLICIES[DEFAULT_POLICY])
        placement = place(request, node, policy)
        if isinstance(placement, Refusal):
            return placement
        return place(request, node.with_placement(self._lost(listed, question)), policy)

    def on_whole_cards(self, pod: PodRef, units: int, on: Sequence[Card]) -> Placement:
        """Place a pod's one nameless container on whole cards."""
        amount = Amount(CORES_PER_CARD * len(on), units)
        claim = Claim(amount, (ContainerAmount("", amount),))
        return Placement(pod, self.occupancy.node, tuple(share_whole_cards(claim, on)))

    def is_short(
        self, placement: Placement, pod: PodName, listed: ListedDevices, cards: Cards
    ) -> bool:
        """Return whether others hold so much of a card that kubelet cannot give this.

        kubelet frees the devices of a pod that was deleted by force later than the API
        server forgets the pod. At the first step, the new pod can still move.
        """
        counts = self._tally.of(self.occupancy.devices_of_others(listed, pod))
        return any(
            count_of(amount, resource) + counts[card_key(uuid), kind]
            > count_of(card.capacity, resource)
            for uuid, amount in placement.by_card().items()
            if (card := cards.of(uuid)) is not None
            for resource, kind in KINDS.items()
        )

    def _lost(self, listed: ListedDevices, question: DeviceQuestion) -> Placement:
        """Return the devices that kubelet neither has free nor lists as held."""
        resource = question.resource
        counts = self._tally.of(self.occupancy.devices_of_others(listed, UNKNOWN_POD))
        free = question.cards.count(question.available)
        shares = []
        for card in question.cards.all:
            had = counts[card_key(card.uuid), KINDS[resource]]
            gone = count_of(card.capacity, resource) - free[card.uuid] - had
            if gone > 0:
                shares.append(Share(card.uuid, amount_of(resource, gone)))
        ref = PodRef(PodUID("lost"), *UNKNOWN_POD)
        return Placement(ref, self.occupancy.node, tuple(shares))


class ActivePodFinder:
    """Finds the pod that kubelet admits now; kubelet waits, so all has a deadline."""

    def __init__(self, occupancy: Occupancy) -> None:
        self._pods = occupancy.pods
        self._occupancy = occupancy
        self._fetching = ThreadPoolExecutor(2, thread_name_prefix="fetch")
        self._settled = dict[PodUID, tuple[NodePod, Mapping[str, HeldDevices]]]()

    def find(self, listed: ListedDevices, resource: str, size: int) -> NodePod | None:
        """Return the pod being admitted; None for one that only kubelet knows."""
        step = (resource, size)
        deadline = time.monotonic() + _LEARNED_WITHIN_S
        pods = self._candidates(listed, step, self._occupancy.allocated())
        if not pods:
            for name in self.unseen(listed):
                self._learn(name, deadline)
            pods = self._candidates(listed, step, self._occupancy.allocated())
            pods = pods or self._candidates(listed, step, ())
        if not pods:
            return None
        pod = pods[0]
        if self._occupancy.is_forgotten(pod, listed):
            # Either kubelet forgot, or this is a new pod under an old one's name.
            return self._fetch(pod.name, deadline) or pod
        return pod

    def known_to_kubelet(
        self, listed: ListedDevices, last: PodName, before: ListedDevices
    ) -> PodName:
        """Name the pod that only kubelet knows; ``UNKNOWN_POD`` if it may be several.

        ``last`` was given devices a moment ago, by the list ``before``. It is still
        being admitted if kubelet lists no further pod: kubelet lists no pods ahead.
        """
        unseen = self.unseen(listed)
        unseen = [n for n in unseen if self._pods.find(n) is None] or unseen
        if last in listed.pods:
            unseen = [n for n in unseen if n not in before.pods] or [last]
        return unseen[0] if len(unseen) == 1 else UNKNOWN_POD

    def _candidates(
        self, listed: ListedDevices, step: tuple[str, int], allocated: Allocated
    ) -> list[NodePod]:
        return admission_candidates(self._unsettled(listed), listed, allocated, step)

    def _unsettled(self, listed: ListedDevices) -> list[NodePod]:
        """Return the listed pods that lack devices; those that lack none are kept."""
        before, self._settled = self._settled, {}
        lacking = []
        for pod in self._pods.all():
            devices = listed.pods.get(pod.name)
            if devices is None:
                continue
            seen = before.get(pod.uid)
            same = seen is not None and seen[0] is pod and seen[1] is devices
            if same or not steps_left(pod, listed, ()):
                self._settled[pod.uid] = (pod, devices)
            else:
                lacking.append(pod)
        return lacking

    def unseen(self, listed: ListedDevices) -> list[PodName]:
        """Return the pods without devices of which the watch has not told.

        Last come those whose name the watch knows and which had devices: each may be a
        new pod under that name, or one whose devices kubelet has forgotten.
        """
        had = {
            name: pod is not None
            for name, devices in listed.pods.items()
            if not any(devices.values())
            and (
                (pod := self._pods.find(name)) is None
                or self._occupancy.has_allocation(pod.uid)
            )
        }
        return sorted(had, key=had.__getitem__)

    def _learn(self, name: PodName, deadline: float) -> None:
        within_s = max(0.0, deadline - time.monotonic())
        pod = self._pods.wait_for(name, min(_SEEN_WITHIN_S, within_s))
        if pod is None or self._occupancy.has_allocation(pod.uid):
            self._fetch(name, deadline)

    def _fetch(self, name: PodName, deadline: float) -> NodePod | None:
        """Ask the API server, and use the watch if it takes too long."""
        fetching = self._fetching.submit(self._pods.fetch_or_find, name)
        try:
            return fetching.result(max(0.0, deadline - time.monotonic()))
        except TookTooLongError:
            fetching.cancel()
            return self._pods.find(name)


def limited_units(
    pod: NodePod,
    placement: Placement,
    step: AllocationStep,
    shown: Collection[CardUUID],
) -> int | None:
    """Return the units that limit a container, if this step's answer has the limit.

    ``shown`` are the cards that the container sees.
    """
    shares = [share for share in placement.shares if share.card in shown]
    if shares and all(share.is_whole for share in shares):
        # The pod has the whole card, whatever memory it asked for.
        return None
    if step.resource == names.MEMORY:
        return step.count
    # A container of cores alone has no call for memory.
    container_steps = [
        other for other in pod.steps if other.container == step.container
    ]
    alone = all(other.resource == names.CORE for other in container_steps)
    return 0 if alone and pod.uid else None


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _FEW} more" if len(ids) > _FEW else ""
    return ", ".join(ids[:_FEW]) + more
