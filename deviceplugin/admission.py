"""kubelet's admission as it looks from here: ids for each pod's own card.

kubelet's whole sync loop waits for both calls. ``prefer`` asks kubelet who holds what
(a millisecond or two); ``allocate`` asks nobody anything.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLongError
from dataclasses import dataclass, field, replace
from threading import Lock

from deviceplugin.announcer import Announcer
from deviceplugin.cards import card_key
from deviceplugin.devices import (
    KINDS,
    Cards,
    amount_of,
    part,
    pick,
    plan,
    what_is_impossible,
)
from deviceplugin.nodepod import Held, Listed, NodePod, PodName, unlisted_pod
from deviceplugin.occupancy import Occupancy
from deviceplugin.podresources import KubeletSilentError, PodResources
from deviceplugin.pods import NodePods
from deviceplugin.turns import Step, Turn, candidates, steps, steps_left
from gpushare.domain.model import (
    CORES_PER_CARD,
    CardUUID,
    Placement,
    PodRequest,
    PodUID,
)
from gpushare.domain.node import Node
from gpushare.domain.policies import DEFAULT_POLICY, POLICIES
from gpushare.domain.scheduling import place
from gpushare.domain.summary import Refusal
from gpushare.kube import names
from gpushare.kube.codec import refusal_text

logger = logging.getLogger(__name__)

_LIST_WITHIN_S = 1.0
_SEEN_WITHIN_S = 0.05
_FETCHED_WITHIN_S = 0.25
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


NOBODY: PodName = ("", "")
_FEW = 3


@dataclass
class _Present:
    """What is known of the admission in progress."""

    turn: Turn | None = None
    begun: Turn | None = None
    """The turn as it was before its first step."""
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
        self._pods = pods
        self._resources = resources
        self._occupancy = occupancy
        self._cards = cards
        self._announcer = announcer
        self._lock = Lock()
        self._now = _Present()
        self._fetching = ThreadPoolExecutor(2, thread_name_prefix="fetch")

    def prefer(
        self, resource: str, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Choose the ids for the pod whose turn it is; ``DeniedError`` with the reason.

        ``must`` are ids that kubelet has already chosen, from an init container's.
        """
        with self._lock:
            turn = self._continued(resource, size)
            if turn is None:
                turn = self._begin(resource, available, size)
                self._now.begun = turn
            chosen = self._chosen(turn, resource, available, must, size)
            if chosen is None:
                turn = self._elsewhere(turn, resource, available, size)
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
            shown = self._shown(turn, step, on)
            return Assigned(pod, uid, step.container, shown)

    def _continued(self, resource: str, count: int) -> Turn | None:
        """Give the turn in progress if such a call belongs to it."""
        turn = self._now.turn
        recent = time.monotonic() - self._now.at < _TURN_LASTS_S
        if turn is None or not recent or turn.step(resource, count) is None:
            return None
        return turn

    def _begin(self, resource: str, available: Sequence[str], size: int) -> Turn:
        before = self._now
        self._now = _Present(listed=self._list())
        pod = self._whose(resource, size)
        if pod is None:
            card = self._strangers_card(before)
            return self._stranger(resource, available, size, card)
        if wrong := pod.what_is_wrong():
            raise self._deny(pod, wrong)
        # What kubelet has already given it decides where the rest of it is.
        placement = self._occupancy.held(pod, self._now.listed, self._cards())
        placement = placement or self._occupancy.expected(pod)
        if placement is None:
            placement = self._decided(pod, resource, available, size)
        elif wrong := what_is_impossible(placement, pod, self._cards()):
            raise self._deny(pod, f"impossible placement: {wrong}")
        left = steps_left(pod, self._now.listed, self._occupancy.served())
        return Turn(pod, placement, left or steps(pod))

    def _list(self) -> Listed:
        try:
            return self._resources.list(_LIST_WITHIN_S)
        except KubeletSilentError as error:
            logger.warning("kubelet lists no devices", extra={"because": str(error)})
            # As if kubelet had listed all pods of the watch: better than to deny.
            known: dict[PodName, dict[str, Held]] = {
                pod.name: {} for pod in self._pods.all()
            }
            return Listed({**known, **self._now.listed.pods})

    def _whose(self, resource: str, size: int) -> NodePod | None:
        step = (resource, size)
        found = self._candidates(step)
        if not found:
            for name in self._unseen():
                self._learn(name)
            found = self._candidates(step) or self._candidates(step, again=True)
        if not found:
            return None
        pod = found[0]
        if self._occupancy.was_served(pod.uid):
            # Either kubelet forgot, or this is a new pod under an old one's name.
            return self._fetch(pod.name) or pod
        return pod

    def _candidates(
        self, step: tuple[str, int], *, again: bool = False
    ) -> list[NodePod]:
        served = frozenset() if again else self._occupancy.served()
        return candidates(self._pods.all(), self._now.listed, served, step)

    def _unseen(self) -> list[PodName]:
        """Give the pods without devices that the watch has not told of.

        Nor has it of one whose name it knows from an earlier pod, which had devices.
        """
        return [
            name
            for name, held in self._now.listed.pods.items()
            if not any(held.values()) and not self._is_known(name)
        ]

    def _is_known(self, name: PodName) -> bool:
        pod = self._pods.find(name)
        return pod is not None and not self._occupancy.was_served(pod.uid)

    def _learn(self, name: PodName) -> None:
        if self._pods.wait_for(name, _SEEN_WITHIN_S) is None:
            self._fetch(name)

    def _fetch(self, name: PodName) -> NodePod | None:
        """Ask the API server, which must not keep kubelet waiting."""
        asked = self._fetching.submit(self._pods.fresh, name)
        try:
            return asked.result(_FETCHED_WITHIN_S)
        except TookTooLongError:
            return self._pods.find(name)

    def _decided(
        self, pod: NodePod, resource: str, available: Sequence[str], size: int
    ) -> Placement:
        """Place a pod that came without a placement, where there is room."""
        request = pod.record.request
        if isinstance(request, Refusal):
            raise self._deny(pod, refusal_text(request))
        found = self._place(request, resource, available, size)
        if isinstance(found, Refusal):
            raise self._deny(pod, refusal_text(found))
        if pod.uid:
            self._occupancy.decide(found)
        return found

    def _place(
        self, request: PodRequest, resource: str, available: Sequence[str], size: int
    ) -> Placement | Refusal:
        """Ask the one decision, of the cards whose devices kubelet has to give."""
        page = self._occupancy.page(self._now.listed).as_seen_by(request.pod)
        policy = POLICIES.get(request.policy or DEFAULT_POLICY)
        policy = policy or POLICIES[DEFAULT_POLICY]
        found = place(request, page, policy)
        if isinstance(found, Refusal):
            return found
        free = self._cards().count(available)
        whole = any(claim.whole_cards for claim in request.claims)
        cards = tuple(
            replace(card, healthy=False)
            if free[card.uuid] < (part(card.capacity, resource) if whole else size)
            else card
            for card in page.cards
        )
        return place(request, Node(page.name, cards, page.placements), policy)

    def _stranger(
        self,
        resource: str,
        available: Sequence[str],
        size: int,
        card: CardUUID | None,
    ) -> Turn:
        """Begin the turn of a pod that only kubelet knows, such as a static one.

        Only this one call tells what it asks; ``card`` is the one of its call before.
        """
        if resource == names.CORE and size > CORES_PER_CARD:
            raise DeniedError(
                "a pod that the API server does not know can have one card at most"
            )
        if card is not None:
            key = card_key(card)
            available = [one for one in available if one.startswith(key)]
        pod = unlisted_pod(self._strangers_name(), amount_of(resource, size))
        placement = self._decided(pod, resource, available, size)
        return Turn(pod, placement, steps(pod))

    def _strangers_name(self) -> PodName:
        unseen = [n for n in self._unseen() if self._pods.find(n) is None]
        return unseen[0] if len(unseen) == 1 else NOBODY

    def _strangers_card(self, before: _Present) -> CardUUID | None:
        """Give the card of the stranger whose turn it still seems to be."""
        turn = before.turn
        if turn is None or turn.pod.uid or turn.pod.name != self._strangers_name():
            return None
        recent = time.monotonic() - before.at < _TURN_LASTS_S
        return turn.placement.cards()[0] if recent else None

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
        taken = self._now.listed.holder
        free = [
            one for one in available if taken.get(one, turn.pod.name) == turn.pod.name
        ]
        return pick(wanted, free, must, size=size)

    def _elsewhere(
        self, turn: Turn, resource: str, available: Sequence[str], size: int
    ) -> Turn:
        """Move a pod whose own card has too few devices left to one that has."""
        begun = self._now.begun
        halfway = begun is None or turn.left != begun.left
        if halfway or any(self._now.listed.held(turn.pod.name).values()):
            raise self._deny(
                turn.pod, f"its card has too few free devices of {resource}"
            )
        decided = self._decided(turn.pod, resource, available, size)
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
                f"kubelet chose {KINDS[step.resource]} devices of {len(on)} cards "
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
