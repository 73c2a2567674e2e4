"""kubelet's admission as it looks from here: ids for each pod's own card.

kubelet's whole sync loop waits for both calls. ``prefer`` asks kubelet who holds what
(a millisecond or two); ``allocate`` asks nobody anything.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from deviceplugin.announcer import Announcer
from deviceplugin.cards import card_key
from deviceplugin.deciding import Deciding
from deviceplugin.devices import (
    Cards,
    amount_of,
    part,
    pick,
    plan,
    what_is_impossible,
)
from deviceplugin.nodepod import (
    NOBODY,
    Listed,
    NodePod,
    PodName,
    Step,
    may_be_static,
    unlisted_pod,
)
from deviceplugin.occupancy import Occupancy
from deviceplugin.podresources import PodResources
from deviceplugin.pods import NodePods
from deviceplugin.turns import Turn, steps_left
from deviceplugin.whose import Whose
from gpushare.domain.model import CORES_PER_CARD, CardUUID, Placement, PodUID
from gpushare.domain.summary import Refusal
from gpushare.kube import names
from gpushare.kube.codec import refusal_text

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
