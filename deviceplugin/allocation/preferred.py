"""kubelet's admission as it looks from here: ids for each pod's own card.

kubelet's whole sync loop waits for both calls. ``prefer`` asks kubelet who holds what
(a millisecond or two); ``allocate`` asks nobody anything.

Where a pod goes that came without a placement, or whose card kubelet cannot give.

Which pod kubelet admits just now: found in its own list and in the watch.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLongError
from dataclasses import dataclass, field, replace
from threading import Lock

from deviceplugin.allocation.active_pod import Served, Turn, candidates, steps_left
from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.cards.devices import (
    KINDS,
    Cards,
    Tally,
    amount_of,
    part,
    pick,
    plan,
    what_is_impossible,
)
from deviceplugin.cards.source import card_key
from deviceplugin.events import Announcer
from deviceplugin.pod_resources import KubeletSilentError, PodResources
from deviceplugin.pod_watch import NodePods
from deviceplugin.pods import (
    NOBODY,
    Held,
    Listed,
    NodePod,
    PodName,
    Step,
    may_be_static,
    unlisted_pod,
)
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
    Share,
)
from gpushare.domain.placement import place, whole_shares
from gpushare.domain.policies import DEFAULT_POLICY, POLICIES
from gpushare.domain.refusal import Refusal
from gpushare.kube import names
from gpushare.kube.codec import refusal_text


@dataclass(frozen=True, slots=True)
class Deciding:
    """Asks the domain's one decision about this node alone."""

    occupancy: Occupancy
    cards: Callable[[], Cards]
    _tally: Tally = field(default_factory=Tally)

    def place(
        self,
        request: PodRequest,
        listed: Listed,
        resource: str,
        available: Sequence[str],
    ) -> Placement | Refusal:
        """Place a pod on the cards whose devices kubelet has to give.

        ``available`` are those of one resource.
        """
        page = self.occupancy.page(listed).as_seen_by(request.pod)
        page = page.without(self.occupancy.namesakes(request.pod))
        policy = POLICIES.get(request.policy or DEFAULT_POLICY)
        policy = policy or POLICIES[DEFAULT_POLICY]
        found = place(request, page, policy)
        if isinstance(found, Refusal):
            return found
        lost = self._lost(listed, resource, available)
        return place(request, page.with_placement(lost), policy)

    def on_whole_cards(self, pod: PodRef, units: int, on: Sequence[Card]) -> Placement:
        """Place a pod's one nameless container on whole cards."""
        amount = Amount(CORES_PER_CARD * len(on), units)
        claim = Claim(amount, (ContainerAmount("", amount),))
        return Placement(pod, self.occupancy.node, tuple(whole_shares(claim, on)))

    def _lost(
        self, listed: Listed, resource: str, available: Sequence[str]
    ) -> Placement:
        """Give what kubelet has no devices of, and lists nobody who holds them."""
        cards = self.cards()
        held = self._tally.of(self.occupancy.held(listed, NOBODY))
        free = cards.count(available)
        shares = []
        for card in cards.all:
            had = held[card_key(card.uuid), KINDS[resource]]
            gone = part(card.capacity, resource) - free[card.uuid] - had
            if gone > 0:
                shares.append(Share(card.uuid, amount_of(resource, gone)))
        ref = PodRef(PodUID("lost"), *NOBODY)
        return Placement(ref, self.occupancy.node, tuple(shares))

    def is_short(self, placement: Placement, pod: PodName, listed: Listed) -> bool:
        """Tell whether others hold so much of a card that kubelet cannot give this.

        kubelet lets go of a pod's devices later than the API server of the pod, where
        somebody deleted it by force. Seen at the first step, a pod can still move.
        """
        held = self._tally.of(self.occupancy.held(listed, pod))
        cards = self.cards()
        return any(
            part(share.amount, resource) + held[card_key(share.card), kind]
            > part(card.capacity, resource)
            for share in placement.shares
            if (card := cards.of(share.card)) is not None
            for resource, kind in KINDS.items()
        )


logger = logging.getLogger(__name__)

_LIST_WITHIN_S = 1.0
_SEEN_WITHIN_S = 0.05
_LEARNT_WITHIN_S = 0.3
"""In all, for kubelet waits: its watch of pods may be ahead of ours."""


class Whose:
    """Says whose turn it is. kubelet waits, so every question has its deadline."""

    def __init__(
        self, pods: NodePods, resources: PodResources, occupancy: Occupancy
    ) -> None:
        self._pods = pods
        self._resources = resources
        self._occupancy = occupancy
        self._fetching = ThreadPoolExecutor(2, thread_name_prefix="fetch")
        self._settled = dict[PodUID, tuple[NodePod, Mapping[str, Held]]]()

    def look(self) -> Listed:
        """Ask kubelet who holds what; where it is silent, what we allocated must do."""
        try:
            return self._resources.list(_LIST_WITHIN_S)
        except KubeletSilentError as error:
            logger.warning("kubelet lists no devices", extra={"because": str(error)})
            return self._occupancy.as_allocated()

    def pod(self, listed: Listed, resource: str, size: int) -> NodePod | None:
        """Give the pod whose turn it is; None for one that only kubelet knows."""
        step = (resource, size)
        deadline = time.monotonic() + _LEARNT_WITHIN_S
        found = self._candidates(listed, step, self._occupancy.served())
        if not found:
            for name in self._unseen(listed):
                self._learn(name, deadline)
            found = self._candidates(listed, step, self._occupancy.served())
            found = found or self._candidates(listed, step, ())
        if not found:
            return None
        pod = found[0]
        if self._occupancy.is_forgotten(pod, listed):
            # Either kubelet forgot, or this is a new pod under an old one's name.
            return self._fetch(pod.name, deadline) or pod
        return pod

    def stranger(self, listed: Listed, last: PodName, before: Listed) -> PodName:
        """Name the pod that only kubelet knows, or ``NOBODY`` where it may be several.

        ``last`` is the one that was given devices a moment ago, by the list ``before``:
        it is not done where kubelet has no pod more, for those of the future it does
        not list yet.
        """
        unseen = self._unseen(listed)
        unseen = [n for n in unseen if self._pods.find(n) is None] or unseen
        if last in listed.pods:
            unseen = [n for n in unseen if n not in before.pods] or [last]
        return unseen[0] if len(unseen) == 1 else NOBODY

    def _candidates(
        self, listed: Listed, step: tuple[str, int], served: Served
    ) -> list[NodePod]:
        return candidates(self._unsettled(listed), listed, served, step)

    def _unsettled(self, listed: Listed) -> list[NodePod]:
        """Give those listed that lack devices; most do not, as was seen before."""
        before, self._settled = self._settled, {}
        lacking = []
        for pod in self._pods.all():
            held = listed.pods.get(pod.name)
            if held is None:
                continue
            seen = before.get(pod.uid)
            same = seen is not None and seen[0] is pod and seen[1] is held
            if same or not steps_left(pod, listed, ()):
                self._settled[pod.uid] = (pod, held)
            else:
                lacking.append(pod)
        return lacking

    def _unseen(self, listed: Listed) -> list[PodName]:
        """Give the pods without devices that the watch has not told of.

        Last those whose name it knows, and which had devices: each may be a new pod
        under that name, or one whose devices kubelet has forgotten.
        """
        unseen = [
            name
            for name, held in listed.pods.items()
            if not any(held.values()) and not self._is_known(name)
        ]
        return sorted(unseen, key=lambda name: self._pods.find(name) is not None)

    def _is_known(self, name: PodName) -> bool:
        pod = self._pods.find(name)
        return pod is not None and not self._occupancy.was_served(pod.uid)

    def _learn(self, name: PodName, deadline: float) -> None:
        left = max(0.0, deadline - time.monotonic())
        found = self._pods.wait_for(name, min(_SEEN_WITHIN_S, left))
        if found is None or self._occupancy.was_served(found.uid):
            self._fetch(name, deadline)

    def _fetch(self, name: PodName, deadline: float) -> NodePod | None:
        """Ask the API server, and go by the watch where it takes too long."""
        asked = self._fetching.submit(self._pods.fresh, name)
        try:
            return asked.result(max(0.0, deadline - time.monotonic()))
        except TookTooLongError:
            asked.cancel()
            return self._pods.find(name)


_FEW = 3
_TURN_LASTS_S = 2.0
"""kubelet asks the steps of one turn milliseconds apart; later, we look anew."""


class DeniedError(Exception):
    """The pod cannot have devices; ``str()`` goes to kubelet, and into its status."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """An allocation: whose it is, as far as is known, and the cards it shows."""

    pod: PodName
    uid: PodUID
    container: str
    cards: tuple[CardUUID, ...]


@dataclass
class _Present:
    """What is known of the admission in progress."""

    turn: Turn | None = None
    strangers: str = ""
    """A device that was allocated to a pod that only kubelet knows."""
    listed: Listed = field(default_factory=lambda: Listed({}))
    at: float = float("-inf")


class Admission:
    """Answers kubelet's two questions, one pod's turn after another."""

    def __init__(
        self,
        pods: NodePods,
        resources: PodResources,
        occupancy: Occupancy,
        cards: Callable[[], Cards],
        announcer: Announcer,
    ) -> None:
        self._whose = Whose(pods, resources, occupancy)
        self._deciding = Deciding(occupancy, cards)
        self._occupancy = occupancy
        self._cards = cards
        self._announcer = announcer
        self._lock = Lock()
        self._now = _Present()

    def prefer(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Choose the ids for the pod whose turn it is; ``DeniedError`` with the reason.

        ``must`` are ids that kubelet has already chosen, from an init container's.
        """
        with self._lock:
            turn = self._begin(resource, available, size)
            chosen = self._chosen(turn, resource, available, must, size)
            if chosen is None:
                turn = self._elsewhere(turn, resource, available)
                chosen = self._chosen(turn, resource, available, must, size)
            if chosen is None:
                raise self._deny(turn.pod, f"too few free devices of {resource}")
            self._now.turn, self._now.at = turn, time.monotonic()
            return chosen

    def allocate(self, resource: str, ids: Sequence[str]) -> Assigned:
        """Say whose these ids are and which cards they show; ``DeniedError``."""
        with self._lock:
            cards = self._cards()
            if strange := cards.unknown(resource, ids):
                raise DeniedError(f"no card of this node has {_some(strange)}")
            turn = self._continued(resource, len(ids))
            step = None if turn is None else turn.step(resource, len(ids))
            pod = NOBODY if turn is None else turn.pod.name
            self._insist_on_free(ids, pod)
            on = tuple(card.uuid for card in cards.holding(ids))
            if turn is None or step is None:
                return self._unexplained(on, ids)
            self._now.turn, self._now.at = turn.after(step), time.monotonic()
            uid = turn.pod.uid
            if uid:
                self._occupancy.serve(uid, step.container, resource, frozenset(ids))
            else:
                self._now.strangers = ids[0]
            shown = self._shown(turn, step, on)
            return Assigned(pod, uid, step.container, shown)

    def _continued(self, resource: str, count: int) -> Turn | None:
        """Give the turn in progress if such an allocation belongs to it."""
        turn = self._now.turn
        recent = time.monotonic() - self._now.at < _TURN_LASTS_S
        if turn is None or not recent or turn.step(resource, count) is None:
            return None
        return turn

    def _begin(self, resource: str, available: Sequence[str], size: int) -> Turn:
        """Find whose turn it is, each time anew: kubelet may have failed the last."""
        before = self._now
        self._now = _Present(listed=self._whose.look())
        listed = self._now.listed
        pod = self._whose.pod(listed, resource, size)
        if pod is None:
            return self._stranger(resource, available, size, before)
        if wrong := pod.what_is_wrong():
            raise self._deny(pod, wrong)
        # What kubelet has already given it decides where the rest of it is.
        placement = self._occupancy.placement(pod, listed, self._cards())
        if placement is None:
            placement = self._decided(pod, resource, available)
        elif wrong := what_is_impossible(placement, pod, self._cards()):
            raise self._deny(pod, f"impossible placement: {wrong}")
        elif not self._is_halfway(pod) and self._deciding.is_short(
            placement, pod.name, listed
        ):
            placement = self._decided(pod, resource, available)
        left = steps_left(pod, listed, self._occupancy.served())
        return Turn(pod, placement, left or pod.steps)

    def _is_halfway(self, pod: NodePod) -> bool:
        """Tell whether any of the pod's containers has devices already."""
        holds = any(self._now.listed.held(pod.name).values())
        return holds or self._occupancy.was_served(pod.uid)

    def _decided(
        self, pod: NodePod, resource: str, available: Sequence[str]
    ) -> Placement:
        """Place a pod that came without a placement, where there is room."""
        request = pod.record.request
        if isinstance(request, Refusal):
            raise self._deny(pod, refusal_text(request))
        listed = self._now.listed
        found = self._deciding.place(request, listed, resource, available)
        if isinstance(found, Refusal):
            raise self._deny(pod, refusal_text(found))
        if pod.uid:
            self._occupancy.decide(found)
        return found

    def _stranger(
        self, resource: str, available: Sequence[str], size: int, before: _Present
    ) -> Turn:
        """Begin or continue the turn of a pod that only kubelet knows.

        A static one, or any other while the API server is out of reach: that one waits
        before its start. Only this one call tells what it asks. All its devices are of
        one card, or of the whole cards that its first call asked.
        """
        listed = self._now.listed
        recent = time.monotonic() - before.at < _TURN_LASTS_S
        last = listed.holder.get(before.strangers, NOBODY) if recent else NOBODY
        name = self._whose.stranger(listed, last, before.listed)
        several = resource == names.CORE and size > CORES_PER_CARD
        if several and may_be_static(name, self._occupancy.node):
            raise DeniedError("a static pod can have one card at most")
        pod = unlisted_pod(name, amount_of(resource, size))
        held = listed.held(name).values() if name == last else ()
        on = self._cards().holding(i for h in held for ids in h.values() for i in ids)
        if len(on) > 1:
            placement = self._deciding.on_whole_cards(pod.ref, size, on)
        else:
            # Its devices so far say where the rest of it is.
            keys = tuple(card_key(card.uuid) for card in on)
            free = [one for one in available if not keys or one.startswith(keys)]
            placement = self._decided(pod, resource, free)
        return Turn(pod, placement, pod.steps)

    def _chosen(
        self,
        turn: Turn,
        resource: str,
        available: Sequence[str],
        must: Sequence[str],
        size: int,
    ) -> list[str] | None:
        step = turn.step(resource, size)
        if step is None:
            return None
        wanted = {
            uuid: part(amount, resource)
            for uuid, amount in plan(turn.placement, step.container).items()
        }
        taken, name = self._now.listed.holder, turn.pod.name
        keys = tuple(card_key(uuid) for uuid in wanted)
        own = [one for one in available if one.startswith(keys)]
        free = [one for one in own if taken.get(one, name) == name]
        return pick(wanted, free, must, size=size)

    def _elsewhere(self, turn: Turn, resource: str, available: Sequence[str]) -> Turn:
        """Move a pod whose own card has too few devices left to one that has."""
        if self._is_halfway(turn.pod):
            why = f"its card has too few free devices of {resource}"
            raise self._deny(turn.pod, why)
        decided = self._decided(turn.pod, resource, available)
        return replace(turn, placement=decided)

    def _insist_on_free(self, ids: Sequence[str], pod: PodName) -> None:
        """Refuse ids that another pod holds: kubelet may forget (contracts 2.7)."""
        taken = self._now.listed.holder
        doubled = [one for one in ids if taken.get(one, pod) != pod]
        if doubled:
            holder = "/".join(taken[doubled[0]])
            raise DeniedError(f"{holder} holds {_some(doubled)} already")

    def _unexplained(self, on: tuple[CardUUID, ...], ids: Sequence[str]) -> Assigned:
        if len(on) > 1:
            raise DeniedError(
                f"{_some(ids)} are of {len(on)} cards, and nobody's turn explains it"
            )
        return Assigned(NOBODY, PodUID(""), "", on)

    def _shown(
        self, turn: Turn, step: Step, on: tuple[CardUUID, ...]
    ) -> tuple[CardUUID, ...]:
        """Give all cards of the container, of which these ids may be but some."""
        planned = tuple(plan(turn.placement, step.container))
        allowed = {*planned, *turn.placement.cards()}
        if set(on) <= allowed:
            return planned or on
        if len(on) > 1:
            raise self._deny(
                turn.pod,
                f"kubelet chose devices of {len(on)} cards for {step.resource} "
                "instead of those of its placement",
            )
        return on

    def _deny(self, pod: NodePod, why: str) -> DeniedError:
        self._announcer.warn(pod, "VcudaDenied", why)
        return DeniedError(why)


def _some(ids: Sequence[str]) -> str:
    """Name a few of many ids."""
    more = f" and {len(ids) - _FEW} more" if len(ids) > _FEW else ""
    return ", ".join(ids[:_FEW]) + more
