"""ResourceClaims of the API server, followed into the ledger beside pods.

kube-scheduler gives claims their cards by itself and writes that into the claim's
status. Before the API server stores it, it asks whether the ledger has the room
(``reserve``); the watch then confirms it.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain
from threading import Event, RLock

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import (
    Card,
    CardUUID,
    NodeName,
    Placement,
    PodRef,
    PodUID,
    Share,
)
from gpushare.domain.node import Node, why_no_room
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.json_reader import Malformed
from gpushare.kube.reflector import Reflector, Sink
from gpushare.kube.resource_claims.allocated import (
    ResourceClaim,
    ResourceClaimUser,
    name_device,
    read_resource_claim,
)

logger = logging.getLogger(__name__)

RESOURCE_CLAIMS = "resourceclaims"
"""How readiness and the log call what is followed."""
_NOT_SERVED = (
    "the API server does not serve resource.k8s.io/v1, so there are no ResourceClaims "
    "to follow; pods are scheduled without them"
)
_ASK_EVERY_S = 60.0
_MOST_ENDED = 10_000
_NEVER = -1
"""The version of a reservation whose write can take effect no more."""
UNCONFIRMED_S = 75.0
"""How long a write that was reviewed may still take effect: the API server ends every
request after 60 s by default (``--request-timeout``), and DRA is not installed beside
one with more than this."""


@dataclass(slots=True, eq=False)
class _Hold:
    """One thing that a claim has, or may get, and where the ledger charges it.

    ``version`` is the claim's resource version for which it was reserved. The write
    takes effect only while the claim has this version. None if the watch has told that
    it is allocated, at the version ``seen``; ``_NEVER`` if that was before the newest
    list began.
    """

    claim: ResourceClaim
    placement: Placement
    version: int | None
    since: float
    seen: int = _NEVER


class ResourceClaimInformer(Sink):
    """The sink for ResourceClaims: record in the ledger what each has of which card.

    A claim is charged from its reservation, or its allocation, until the allocation is
    removed or the claim is deleted. If kube-scheduler asks again for other cards, both
    answers count until it is known which one took effect: at most one does.

    ``set_cards`` records a node's cards, and ``reconsider`` is called with each node
    on which a claim came or went. The name of a device that no card of the node has is
    kept as a card's UUID: it is charged to none of the cards that are there.

    The watch tells what the API server has. A review may be made up, by a process of
    this host: it can add a reservation, but free nothing.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        set_cards: Callable[[NodeName, tuple[Card, ...]], None] | None = None,
        reconsider: Callable[[NodeName], None] = lambda _name: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._set_cards = set_cards or ledger.set_cards
        self._reconsider = reconsider
        self._clock = clock
        # Claims and nodes are followed by a thread each, and reviews come in a third.
        self._lock = RLock()
        self._holds: dict[PodUID, list[_Hold]] = {}
        self._ended: OrderedDict[PodUID, None] = OrderedDict()
        self._broken: dict[PodUID, str] = {}
        self._numbered = 0

    def broken(self) -> dict[PodUID, str]:
        """Return the claims that cannot be read, and what is wrong."""
        with self._lock:
            return dict(self._broken)

    def users(self) -> dict[PodUID, tuple[ResourceClaimUser, ...]]:
        """Return the pods for which each claim is reserved, by its placement's UID."""
        with self._lock:
            return {
                hold.placement.pod.uid: hold.claim.reserved_for
                for hold in chain.from_iterable(self._holds.values())
            }

    def begin_list(self) -> AbstractSet[str]:
        """Return the UIDs of the claims, and take the list's word for their versions.

        The API server may have been restored from a backup.
        """
        with self._lock:
            for hold in chain.from_iterable(self._holds.values()):
                hold.seen = _NEVER
            return self._holds.keys() | self._broken.keys()

    def put(self, body: Json) -> None:
        """Take over a claim, unless ``settle`` has read a newer version of it."""
        if not self._is_old(body["metadata"]):
            self._take(body)

    def drop(self, key: str) -> None:
        """Free what a claim has, by its UID."""
        uid = PodUID(key)
        with self._lock:
            self._broken.pop(uid, None)
            self._ended[uid] = None
            if len(self._ended) > _MOST_ENDED:
                self._ended.popitem(last=False)
            holds = self._holds.get(uid, [])
            for hold in holds:
                _log_if_used(hold)
            if holds:
                self._keep(holds[0].claim, lambda _hold: False)

    def set_cards(self, name: NodeName, cards: tuple[Card, ...]) -> None:
        """Record what claims hold of a node's new cards, then the cards.

        The order matters, because a bind can come at any moment.
        """
        with self._lock:
            node = self._ledger.node(name)
            if node is None or node.cards != cards:
                for hold in chain.from_iterable(self._holds.values()):
                    if hold.placement.node == name:
                        self._resolve(hold, cards)
            self._set_cards(name, cards)

    def why_not(self, claim: ResourceClaim) -> str:
        """Return why a claim cannot have what it asks; reserve nothing."""
        with self._lock:
            placement = self._placement(claim, claim.uid)
            hold = self._same(placement)
            return self._no_room(placement if hold is None else hold.placement)

    def reserve(self, claim: ResourceClaim, version: str) -> str:
        """Reserve what a claim is to have; return why not, empty if it is reserved.

        ``version`` is the resource version of the claim that is to be written. The same
        question again changes nothing; it is denied if the card has got sick meanwhile.
        """
        with self._lock:
            if claim.uid in self._ended:
                return f"claim {claim} is deleted"
            placement = self._placement(claim, claim.uid)
            hold = self._same(placement)
            if hold is not None:
                # Also if it is allocated: it may be so no longer, with the news of that
                # still on its way.
                if not (why_not := self._no_room(hold.placement)):
                    hold.version, hold.since = _number(version), self._clock()
                return why_not
            if self._holds.get(claim.uid):
                placement = self._placement(claim, self._other_uid(claim.uid))
            why_not = self._ledger.reserve_resource_claim(placement)
            if not why_not:
                made = _Hold(claim, placement, _number(version), self._clock())
                self._holds.setdefault(claim.uid, []).append(made)
        if not why_not:
            self._reconsider(claim.node)
        return why_not

    def overdue(self) -> tuple[ResourceClaim, ...]:
        """Return the claims with a reservation that cannot take effect any more."""
        with self._lock:
            late = filter(self._is_overdue, chain.from_iterable(self._holds.values()))
            overdue = {(hold.claim.uid, str(hold.claim)): hold.claim for hold in late}
            return tuple(overdue.values())

    def settle(self, claim: ResourceClaim, stored: Json | None) -> None:
        """Confirm or give up an overdue reservation by what the API server has now.

        ``stored`` is the object of the claim's name, None if there is none. Then only
        what was reserved in this name is given up: that an allocated claim is gone is
        for the watch to tell.
        """
        if stored is None or stored["metadata"]["uid"] != claim.uid:
            name = str(claim)
            self._keep(
                claim,
                lambda hold: not (self._is_overdue(hold) and str(hold.claim) == name),
            )
            return
        with self._lock:
            late = [*filter(self._is_overdue, self._holds.get(claim.uid, ()))]
            if not late:
                # The watch has told meanwhile, and perhaps of more than was read.
                return
            for hold in late:
                hold.version = _NEVER
            self._take(stored)

    def _is_overdue(self, hold: _Hold) -> bool:
        waited_s = self._clock() - hold.since
        return hold.version is not None and waited_s > UNCONFIRMED_S

    def _is_old(self, metadata: Json) -> bool:
        """Return whether the watch is behind what ``settle`` has read meanwhile."""
        now = _number(metadata.get("resourceVersion", ""))
        with self._lock:
            holds = self._holds.get(PodUID(metadata["uid"]), ())
            return any(hold.seen > now >= 0 for hold in holds)

    def _take(self, body: Json) -> None:
        metadata = body["metadata"]
        uid = PodUID(metadata["uid"])
        try:
            claim = read_resource_claim(body)
        except Malformed as error:
            self._note_broken(uid, metadata, str(error))
            return
        with self._lock:
            self._broken.pop(uid, None)
            # A deleted claim is there again after a restore from a backup.
            self._ended.pop(uid, None)
            now = _number(metadata.get("resourceVersion", ""))
            if claim is None:
                if holds := self._holds.get(uid):
                    self._keep(holds[0].claim, lambda hold: _may_come(hold, now))
                return
            placement = self._placement(claim, uid)
            own_hold = self._same(placement)
            if own_hold is None:
                self._keep(claim, lambda hold: _may_come(hold, now))
                if self._holds.get(uid):
                    placement = self._placement(claim, self._other_uid(uid))
                own_hold = _Hold(claim, placement, None, self._clock(), now)
                self._holds.setdefault(uid, []).append(own_hold)
                self._log_strays(own_hold)
            elif _may_come(own_hold, now):
                # News from before the reservation.
                return
            else:
                own_hold.claim, own_hold.version, own_hold.seen = claim, None, now
                self._keep(claim, lambda hold: hold is own_hold or _may_come(hold, now))
            self._ledger.record(own_hold.placement)
            self._call_by_its_uid(own_hold)
        self._reconsider(claim.node)

    def _note_broken(self, uid: PodUID, metadata: Json, because: str) -> None:
        """Keep what the claim held, and say once what is wrong."""
        with self._lock:
            known = self._broken.get(uid)
            self._broken[uid] = because
        if known != because:
            name = f"{metadata.get('namespace')}/{metadata.get('name')}"
            facts = {"claim": name, "because": because}
            logger.warning(
                "claim not understood; what it was charged before stays", extra=facts
            )

    def _keep(self, claim: ResourceClaim, wanted: Callable[[_Hold], bool]) -> None:
        """Free what a claim has, but for the wanted holds."""
        with self._lock:
            holds = self._holds.get(claim.uid, [])
            gone = [hold for hold in holds if not wanted(hold)]
            kept = [hold for hold in holds if hold not in gone]
            if kept:
                self._holds[claim.uid] = kept
            else:
                self._holds.pop(claim.uid, None)
            for hold in gone:
                self._ledger.release(hold.placement.pod.key)
        for hold in gone:
            if hold.version is not None:
                facts = {"claim": str(claim), "node": hold.placement.node}
                logger.info("reservation of a claim given up", extra=facts)
            self._reconsider(hold.placement.node)

    def _same(self, placement: Placement) -> _Hold | None:
        """Return the claim's hold of the same shares, whichever UID it is under."""
        for hold in self._holds.get(placement.pod.uid, ()):
            known = hold.placement
            if (known.node, known.shares) == (placement.node, placement.shares):
                return hold
        return None

    def _other_uid(self, uid: PodUID) -> PodUID:
        """Return another UID for what else a claim may get."""
        if all(hold.placement.pod.uid != uid for hold in self._holds.get(uid, ())):
            return uid
        self._numbered += 1
        return PodUID(f"{uid}/{self._numbered}")

    def _call_by_its_uid(self, hold: _Hold) -> None:
        """Charge what is confirmed under the claim's own UID, if that is free."""
        uid, other = hold.claim.uid, hold.placement.pod
        if other.uid != uid and self._other_uid(uid) == uid:
            pod = replace(other, uid=uid)
            hold.placement = replace(hold.placement, pod=pod)
            # Recorded before the other is released: for a moment it counts twice.
            self._ledger.record(hold.placement)
            self._ledger.release(other.key)

    def _no_room(self, placement: Placement) -> str:
        node = self._ledger.node(placement.node)
        return why_no_room(node or Node(placement.node), placement)

    def _placement(self, claim: ResourceClaim, uid: PodUID) -> Placement:
        node = self._ledger.node(claim.node)
        return place_resource_claim(claim, node.cards if node else (), uid)

    def _resolve(self, hold: _Hold, cards: Iterable[Card]) -> None:
        """Find the cards of devices that had none when the claim was seen."""
        known = _by_device(cards)
        shares = tuple(
            replace(share, card=known.get(share.card, share.card))
            for share in hold.placement.shares
        )
        if shares != hold.placement.shares:
            hold.placement = replace(hold.placement, shares=shares)
            self._ledger.change_resource_claim(hold.placement)

    def _log_strays(self, hold: _Hold) -> None:
        node = self._ledger.node(hold.placement.node)
        here = {card.uuid for card in node.cards} if node else set()
        strays = [card for card in hold.placement.cards() if card not in here]
        if here and strays:
            facts = {"claim": str(hold.claim), "node": hold.placement.node}
            facts["devices"] = ",".join(strays)
            logger.warning("claim on devices that the node does not have", extra=facts)


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


def _log_if_used(deleted: _Hold) -> None:
    """Log that a claim was deleted under its pods, which run on.

    kube-controller-manager takes the allocation off first, and then the finalizer.
    Somebody else may take off the finalizer alone. Of a claim that a list does not
    have, nobody knows which it was.
    """
    claim, is_followed = deleted.claim, deleted.seen != _NEVER
    if deleted.version is None and is_followed and claim.reserved_for:
        facts = {"claim": str(claim), "node": claim.node}
        facts["pods"] = ",".join(user.name for user in claim.reserved_for)
        logger.warning(
            "claim deleted while pods use it; their node keeps its cards for them",
            extra=facts,
        )


def place_resource_claim(
    claim: ResourceClaim, cards: Iterable[Card], uid: PodUID | None = None
) -> Placement:
    """Return what a claim is charged, on these cards of its node.

    A device that none of them has stays under its own name. ``uid`` replaces the
    claim's in the placement.
    """
    known = _by_device(cards)
    shares = tuple(
        Share(known.get(CardUUID(device.name), CardUUID(device.name)), device.amount)
        for device in claim.devices
    )
    pod = PodRef(uid or claim.uid, claim.namespace, claim.name, is_resource_claim=True)
    return Placement(pod, claim.node, shares)


def _by_device(cards: Iterable[Card]) -> dict[CardUUID, CardUUID]:
    """Return the UUID of each card by its device's name, which is no card's UUID."""
    return {CardUUID(name_device(card.uuid)): card.uuid for card in cards}


def _number(version: str) -> int:
    """Read a resource version, which can be compared since Kubernetes 1.35.

    If it is no number, any news of the claim counts as later.
    """
    return int(version) if version.isascii() and version.isdigit() else _NEVER


def _may_come(hold: _Hold, now: int) -> bool:
    """Whether a reserved write may still take effect on a claim of this version."""
    return hold.version is not None and hold.version >= now >= 0
