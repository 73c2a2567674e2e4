"""NodePrepareResources and NodeUnprepareResources, as far as one claim goes.

This is the last check before the containers of a claim start. kube-scheduler, which
allocated the claim, knows nothing of classic pods. kubelet asks again after a refusal,
whose sentence it shows in an event of the pod.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deviceplugin.allocation.cdi import specification, specified
from deviceplugin.allocation.injection import InjectionChooser
from deviceplugin.allocation.isolation import IsolationChooser
from deviceplugin.allocation.occupancy import Occupancy, Record
from deviceplugin.allocation.preload import NodeLibrary, limits_text, why_no_limits
from deviceplugin.allocation.prestart import PreStart, allocation_text
from deviceplugin.allocation.response import (
    HardLimit,
    container_setup,
    hard_limit_setup,
    limit_env,
    why_unusable,
)
from deviceplugin.cards.advertised import Offer
from deviceplugin.cards.devices import Cards
from deviceplugin.dra.prepared import (
    SHARE_KIND,
    PreparedClaim,
    PreparedClaims,
    PreparedDevice,
    RequestFiles,
    is_uid,
)
from deviceplugin.node_pods import KubeletSilentError, PodResources
from deviceplugin.pods import Listed
from gpushare.domain.model import NOTHING, Amount, Card, CardUUID, NodeName, PodUID
from gpushare.kube import names
from gpushare.kube.claims.allocated import Claim, Device, device_name, read_claim
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.json_reader import Malformed
from gpushare.kube.proto import deviceplugin_pb2 as pb

logger = logging.getLogger(__name__)

_LIST_WITHIN_S = 5.0
_GONE_S = 600.0


class NotPreparedError(Exception):
    """The claim's containers may not start now; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """The claim that kubelet asks about."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class _Part:
    """What one request of a claim has: devices, each with its card."""

    request: str
    held: tuple[tuple[Device, Card], ...]

    @property
    def cards(self) -> tuple[CardUUID, ...]:
        return tuple(dict.fromkeys(card.uuid for _, card in self.held))

    @property
    def amounts(self) -> Mapping[CardUUID, Amount]:
        found: dict[CardUUID, Amount] = {}
        for one, card in self.held:
            found[card.uuid] = found.get(card.uuid, NOTHING) + one.amount
        return found

    @property
    def total(self) -> Amount:
        return sum((one.amount for one, _ in self.held), NOTHING)

    @property
    def is_whole(self) -> bool:
        """Whether the request has all of each of its cards."""
        amounts = self.amounts
        return all(card.capacity.fits(amounts[card.uuid]) for _, card in self.held)


@dataclass(frozen=True, slots=True)
class Preparer:
    """Checks claims, and writes what their containers get."""

    node: NodeName
    cluster: Cluster
    resources: PodResources
    occupancy: Occupancy
    offer: Offer
    chooser: InjectionChooser
    isolation: IsolationChooser
    library: NodeLibrary
    prestart: PreStart
    claims: PreparedClaims
    cdi_dirs: Sequence[Path]
    _warned: dict[str, str] = field(default_factory=dict)
    """The last refusal of each claim, because kubelet asks every few seconds."""
    _gone_since: dict[str, float] = field(default_factory=dict)
    """When the API server was first seen without each prepared claim."""

    def prepare(self, asked: ClaimRef) -> PreparedClaim:
        """Let the claim's containers start, or raise ``NotPreparedError``.

        A claim that was prepared before gets the same answer.
        """
        try:
            found = self._prepared(asked)
        except NotPreparedError as error:
            if self._warned.get(asked.uid) != str(error):
                facts = {"claim": str(asked), "because": str(error)}
                logger.warning("claim not prepared", extra=facts)
            self._warned[asked.uid] = str(error)
            raise
        self._warned.pop(asked.uid, None)
        return found

    def unprepare(self, asked: ClaimRef) -> None:
        """Take back what a claim was given; nothing for one that is not prepared.

        Raises ``NotPreparedError`` if its files cannot be removed.
        """
        self._warned.pop(asked.uid, None)
        self._gone_since.pop(asked.uid, None)
        try:
            removed = self.claims.remove(asked.uid)
        except OSError as error:
            raise NotPreparedError(f"the claim's files stay: {error}") from error
        if removed:
            logger.info("claim unprepared", extra={"claim": str(asked)})

    def forget_gone(self, now: float) -> None:
        """Remove the claims that have not existed for ten minutes.

        kubelet unprepares each claim that it knows, once its containers have ended. It
        knows none of before if its state was deleted, as by ``kubeadm reset``. ``now``
        is in seconds. Raises ``ClusterError``.
        """
        for claim in self.claims.all():
            try:
                there = self.cluster.get(Kind.CLAIMS, claim.namespace, claim.name)
                gone = there["metadata"]["uid"] != claim.uid
            except NotFound:
                gone = True
            if not gone:
                self._gone_since.pop(claim.uid, None)
            elif now - self._gone_since.setdefault(claim.uid, now) >= _GONE_S:
                ref = ClaimRef(claim.namespace, claim.name, claim.uid)
                logger.warning("prepared claim is gone", extra={"claim": str(ref)})
                self.unprepare(ref)

    def _prepared(self, asked: ClaimRef) -> PreparedClaim:
        if not is_uid(asked.uid):
            raise NotPreparedError(f"{asked.uid!r} is not a claim's UID")
        before = self.claims.get(asked.uid)
        try:
            claim = self._read(asked)
        except ClusterError as error:
            if before is None or not error.retryable:
                why = f"claim {asked} cannot be read: {error}"
                raise NotPreparedError(why) from error
            # What was prepared is still right as far as this node can know.
            claim = None
        try:
            if before is not None and (claim is None or _same(before, claim)):
                self.claims.put_right(before)
                return before
            if before is not None:
                self.claims.remove(asked.uid)
            assert claim is not None  # noqa: S101  else there was one before
            listed = self._listed()
            with self.prestart.filling:
                return self._new(claim, listed)
        except OSError as error:
            raise NotPreparedError(
                f"the claim's files cannot be written: {error}; it starts when they can"
            ) from error

    def _read(self, asked: ClaimRef) -> Claim:
        """Read the claim that kubelet means. Raises ``ClusterError``."""
        body = self.cluster.get(Kind.CLAIMS, asked.namespace, asked.name)
        try:
            claim = read_claim(body)
        except Malformed as error:
            why = f"the allocation of claim {asked} is not understood: {error}"
            raise NotPreparedError(why) from error
        if body["metadata"]["uid"] != asked.uid:
            raise NotPreparedError(f"claim {asked} is another one of this name")
        if claim is None:
            raise NotPreparedError(
                f"claim {asked} has no allocation by {names.DRA_DRIVER}"
            )
        if claim.node != self.node:
            raise NotPreparedError(
                f"claim {asked} has devices of pool {claim.node}, and this is node "
                f"{self.node}"
            )
        return claim

    def _new(self, claim: Claim, listed: Listed) -> PreparedClaim:
        cards = self.offer.cards
        parts = _parts(claim, cards)
        for part in parts:
            self._insist_on_cards(part, cards)
        self._insist_on_room(parts, listed, cards)
        limits = {part.request: self._limit(part) for part in parts}
        needed = _needed(parts, limits)
        self._insist_on_memory(needed, listed, cards)
        setups = {
            part.request: self._setup(claim, part, limits[part.request], cards)
            for part in parts
        }
        prepared = PreparedClaim(
            claim.uid,
            claim.namespace,
            claim.name,
            tuple(
                one
                for part in parts
                for one in _devices(claim, part, setups[part.request])
            ),
            needed,
            specification(
                SHARE_KIND,
                {_cdi_name(claim, request): one for request, one in setups.items()},
            ),
            next((limit.tier for limit in limits.values() if limit is not None), ""),
        )
        files = [self._files(claim, part, limits[part.request]) for part in parts]
        try:
            self.claims.put(prepared, files)
        except OSError:
            self.claims.remove(claim.uid)
            raise
        facts = {
            "claim": str(claim),
            "cards": ",".join(dict.fromkeys(one.card for one in prepared.devices)),
            "units": sum(one.units for one in prepared.devices),
        }
        logger.info("claim prepared", extra=facts)
        return prepared

    def _listed(self) -> Listed:
        try:
            return self.resources.list(_LIST_WITHIN_S)
        except KubeletSilentError as error:
            logger.warning("kubelet lists no devices", extra={"because": str(error)})
            return self.occupancy.as_allocated()

    def _insist_on_cards(self, part: _Part, cards: Cards) -> None:
        for one, card in part.held:
            if not card.healthy:
                why = card.reason or "the reason is not known"
                raise NotPreparedError(f"card {card.uuid} is sick: {why}")
            if not one.amount.units:
                raise NotPreparedError(
                    f"request {part.request} has 0 MiB of card {card.uuid}; ask for at "
                    "least 256Mi of memory"
                )
        found = cards.as_found(part.cards)
        wrong = why_unusable(found, self.chooser.chosen)
        if wrong := wrong or self.isolation.why_refused(found):
            raise NotPreparedError(wrong)

    def _insist_on_room(
        self, parts: Sequence[_Part], listed: Listed, cards: Cards
    ) -> None:
        node = self.occupancy.charged(listed, cards)
        wanted: dict[CardUUID, Amount] = {}
        for part in parts:
            for uuid, amount in part.amounts.items():
                wanted[uuid] = wanted.get(uuid, NOTHING) + amount
        for uuid, amount in wanted.items():
            card = cards.of(uuid)
            room = NOTHING if card is None else card.capacity
            room -= Amount(*node.charged.get(uuid, (0, 0)))
            if not amount.fits(room):
                raise NotPreparedError(
                    f"card {uuid} has {room.units} units and {room.cores} cores left, "
                    f"not {amount.units} and {amount.cores}; the pod starts when there "
                    "is room"
                )

    def _limit(self, part: _Part) -> HardLimit | None:
        """Return the hard limit of a request's containers; None if they have none."""
        units = None if part.is_whole else part.total.units
        limit = self.isolation.limit(units)
        if limit is None:
            return None
        wrong = why_no_limits(part.cards)
        if not wrong and limit.tier == "preload":
            wrong = self.library.put_right()
        if wrong:
            raise NotPreparedError(f"isolation tier {limit.tier}: {wrong}")
        return limit

    def _insist_on_memory(
        self, needed: Mapping[CardUUID, int], listed: Listed, cards: Cards
    ) -> None:
        for uuid, mib in needed.items():
            card = cards.of(uuid)
            if card is None:
                continue
            total = mib + self.prestart.started.sum_mib(card, (), listed, cards)
            if total > (has := self.offer.usable_mib(uuid)):
                raise NotPreparedError(
                    f"with it the hard limits of containers on card {uuid} would be "
                    f"{total} MiB, and the card has {has}; the pod starts when others "
                    "have ended"
                )

    def _setup(
        self, claim: Claim, part: _Part, limit: HardLimit | None, cards: Cards
    ) -> pb.ContainerAllocateResponse:
        """Return what the containers with a request get, as kubelet would be told."""
        found = cards.as_found(part.cards)
        driver = [card.uuid for card in found if card.known_to_driver]
        injection = self.chooser.chosen
        if driver and specified(self.cdi_dirs).keys() >= set(driver):
            # The runtime must read CDI specifications for a claim in any case.
            injection = "cdi"
        folder = str(self.claims.folder(claim.uid, part.request))
        units, cores = part.total.units, part.total.cores
        setup = container_setup(names.MEMORY, units, found, injection, folder)
        setup.envs.update(limit_env(names.CORE, cores))
        more = hard_limit_setup(limit, str(self.library.folder), folder)
        setup.MergeFrom(more)
        return setup

    def _files(
        self, claim: Claim, part: _Part, limit: HardLimit | None
    ) -> RequestFiles:
        user = claim.reserved_for[0] if len(claim.reserved_for) == 1 else None
        owner = Record(
            namespace=claim.namespace,
            name=user.name if user else "",
            uid=user.uid if user else PodUID(""),
            container="",
            resource="",
            ids=(),
        )
        said = {"claim": str(claim), "request": part.request}
        text = allocation_text(owner, part.amounts, limit, **said)
        if limit is None or limit.tier != "preload":
            return RequestFiles(part.request, text)
        return RequestFiles(part.request, text, limits_text(part.cards[0], limit.mib))


def _parts(claim: Claim, cards: Cards) -> list[_Part]:
    """Return the requests of a claim; a chosen alternative counts as its request."""
    by_name = {device_name(card.uuid): card for card in cards.all}
    held: dict[str, list[tuple[Device, Card]]] = {}
    for one in claim.devices:
        card = by_name.get(one.name)
        if card is None:
            raise NotPreparedError(f"this node has no card {one.name}")
        held.setdefault(one.request.partition("/")[0], []).append((one, card))
    return [_Part(request, tuple(its)) for request, its in held.items()]


def _needed(
    parts: Sequence[_Part], limits: Mapping[str, HardLimit | None]
) -> Mapping[CardUUID, int]:
    needed: dict[CardUUID, int] = {}
    for part in parts:
        limit = limits[part.request]
        if limit is not None:
            uuid = part.cards[0]
            needed[uuid] = needed.get(uuid, 0) + limit.needed_mib
    return needed


def _devices(
    claim: Claim, part: _Part, setup: pb.ContainerAllocateResponse
) -> list[PreparedDevice]:
    """Return what kubelet is told of a request's devices.

    The first one brings the CDI names of all: a name that came twice would be injected
    twice.
    """
    ours = f"{SHARE_KIND}={_cdi_name(claim, part.request)}"
    brought = (*(one.name for one in setup.cdi_devices), ours)
    return [
        PreparedDevice(
            part.request,
            one.name,
            card.uuid,
            one.amount.cores,
            one.amount.units,
            one.share_id,
            () if number else brought,
        )
        for number, (one, card) in enumerate(part.held)
    ]


def _cdi_name(claim: Claim, request: str) -> str:
    return f"{claim.uid}-{request}"


def _same(before: PreparedClaim, claim: Claim) -> bool:
    """Return whether a claim still has the devices with which it was prepared."""
    return {(one.device, one.share_id) for one in before.devices} == {
        (one.name, one.share_id) for one in claim.devices
    }
