"""NodePrepareResources and NodeUnprepareResources, as far as one claim goes.

This is the last check before the containers of a claim start. kube-scheduler, which
allocated the claim, knows nothing of classic pods. kubelet asks again after a refusal,
whose sentence it shows in an event of the pod.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from deviceplugin.allocation.cdi import (
    BUNDLE,
    LimitSpecifications,
    bundle_text,
    specification,
)
from deviceplugin.allocation.injection import CardSetup, limit_env
from deviceplugin.allocation.isolation import Tier, limits_text
from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.allocation.prestart import allocation_text
from deviceplugin.allocation.records import AllocationRecord
from deviceplugin.cards.advertised import Offer
from deviceplugin.cards.devices import Cards
from deviceplugin.dra.checks import (
    NotPreparedError,
    RequestDevices,
    ResourceClaimChecks,
    devices_by_request,
)
from deviceplugin.dra.prepared import (
    SHARE_KIND,
    PreparedResourceClaims,
    RequestFiles,
    is_uid,
)
from gpushare.domain.model import PodUID
from gpushare.kube import names
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.errors import ClusterError
from gpushare.kube.json_reader import Malformed
from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kube.resource_claims.allocated import (
    ResourceClaim,
    read_resource_claim,
    refused_access,
)
from gpushare.kubelet.claim_records import PreparedDevice, PreparedResourceClaim
from gpushare.kubelet.pods import HardLimit, ListedDevices, card_key

logger = logging.getLogger(__name__)

_LIST_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class ResourceClaimRef:
    """The claim that kubelet asks about."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ResourceClaimPreparer:
    """Checks claims, and writes what their containers get."""

    cluster: Cluster
    occupancy: Occupancy
    offer: Offer
    setup: CardSetup
    claims: PreparedResourceClaims
    drivers_limits: LimitSpecifications
    checks: ResourceClaimChecks
    _warned: dict[str, str] = field(default_factory=dict)
    """The last refusal of each claim, because kubelet asks every few seconds."""
    _unprepared: deque[str] = field(default_factory=lambda: deque(maxlen=1000))
    """The UIDs of claims that were taken back last."""

    def prepare(
        self, ref: ResourceClaimRef, listed: Callable[[], ListedDevices] | None = None
    ) -> PreparedResourceClaim:
        """Let the claim's containers start, or raise ``NotPreparedError``.

        A claim that was prepared before gets the same answer. ``listed`` returns what
        ``listed()`` of here does.
        """
        try:
            prepared = self._prepared(ref, listed or self.listed)
        except NotPreparedError as error:
            if self._warned.get(ref.uid) != str(error):
                facts = {"claim": str(ref), "because": str(error)}
                logger.warning("claim not prepared", extra=facts)
            self._warned[ref.uid] = str(error)
            raise
        self._warned.pop(ref.uid, None)
        return prepared

    def unprepare(self, ref: ResourceClaimRef) -> None:
        """Take back what a claim was given; nothing for one that is not prepared.

        Raises ``NotPreparedError`` if its files cannot be removed.
        """
        self._warned.pop(ref.uid, None)
        try:
            with self.occupancy.room_lock:
                self._unprepared.append(ref.uid)
                removed = self.claims.remove(ref.uid)
        except OSError as error:
            raise NotPreparedError(f"the claim's files stay: {error}") from error
        if removed:
            logger.info("claim unprepared", extra={"claim": str(ref)})

    def repair(self, ref: ResourceClaimRef) -> None:
        """Write the files of a prepared claim that were lost; nothing if none were.

        Raises ``ClusterError`` and ``NotPreparedError``.
        """
        claim = self._read(ref)
        with self._writing():
            before = self.claims.get(ref.uid)
            # It may have been unprepared meanwhile.
            if before is not None and _same(before, claim):
                self._again(before, claim)

    def adopt(self, claim: ResourceClaim, tier: Tier) -> None:
        """Write down a claim whose containers run, and whose record was lost.

        ``tier`` is that of its containers. It is not checked: they run already. Raises
        ``NotPreparedError``.
        """
        cards = self.offer.cards
        requests = devices_by_request(claim, cards)
        limits = {
            request.name: limit
            for request in requests
            if not request.is_whole and len(request.cards) == 1
            if (limit := self.setup.isolation.limit(request.total.units, tier))
        }
        with self._writing():
            if claim.uid in self._unprepared or self.claims.get(claim.uid) is not None:
                return
            self._put(claim, requests, limits, cards)
        extra = {"claim": str(claim)}
        logger.warning("the record of a claim was lost; written anew", extra=extra)

    def _prepared(
        self, ref: ResourceClaimRef, list_pods: Callable[[], ListedDevices]
    ) -> PreparedResourceClaim:
        if not is_uid(ref.uid):
            raise NotPreparedError(f"{ref.uid!r} is not a claim's UID")
        taken_back = self._unprepared.count(ref.uid)
        before = self.claims.get(ref.uid)
        try:
            claim = self._read(ref)
        except ClusterError as error:
            if before is None or not error.retryable:
                why = f"claim {ref} cannot be read: {error}"
                raise NotPreparedError(why) from error
            # What was prepared is still right as far as this node can know.
            claim = None
        is_new = claim is not None and (before is None or not _same(before, claim))
        listed = list_pods() if is_new else self.occupancy.as_allocated()
        with self._writing():
            # Another call may have prepared it meanwhile: kubelet asks for two pods of
            # one claim at once.
            before = self.claims.get(ref.uid)
            if self._unprepared.count(ref.uid) > taken_back:
                # As by a kubelet that was started anew: who asked first is gone, and
                # nobody would take back what is written now.
                raise NotPreparedError(f"claim {ref} was just taken back")
            if claim is None:
                if before is None:
                    raise NotPreparedError(f"claim {ref} is not prepared any more")
                self.claims.put_right(before)
                return before
            if before is not None:
                if _same(before, claim):
                    return self._again(before, claim)
                self.claims.remove(ref.uid)
            return self._new(claim, listed)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Let nobody else check what cards have left, or write claims."""
        with self.occupancy.room_lock:
            try:
                yield
            except OSError as error:
                raise NotPreparedError(
                    f"the claim's files cannot be written: {error}; it starts when "
                    "they can"
                ) from error

    def _read(self, ref: ResourceClaimRef) -> ResourceClaim:
        """Read the claim that kubelet means. Raises ``ClusterError``."""
        body = self.cluster.get(Kind.CLAIMS, ref.namespace, ref.name)
        try:
            claim, refused = read_resource_claim(body), refused_access(body)
        except Malformed as error:
            why = f"the allocation of claim {ref} is not understood: {error}"
            raise NotPreparedError(why) from error
        if body["metadata"]["uid"] != ref.uid:
            raise NotPreparedError(f"claim {ref} is another one of this name")
        if refused:
            raise NotPreparedError("; ".join(refused))
        if claim is None:
            raise NotPreparedError(
                f"claim {ref} has no allocation by {names.DRA_DRIVER}"
            )
        if claim.node != self.occupancy.node:
            raise NotPreparedError(
                f"claim {ref} has devices of pool {claim.node}, and this is node "
                f"{self.occupancy.node}"
            )
        return claim

    def _new(
        self, claim: ResourceClaim, listed: ListedDevices
    ) -> PreparedResourceClaim:
        cards = self.offer.cards
        requests = devices_by_request(claim, cards)
        limits = self.checks.insist_on_all(claim, requests, listed, cards)
        prepared = self._put(claim, requests, limits, cards)
        facts = {
            "claim": str(claim),
            "cards": ",".join(
                dict.fromkeys(device.card for device in prepared.devices)
            ),
            "units": sum(device.units for device in prepared.devices),
        }
        logger.info("claim prepared", extra=facts)
        return prepared

    def _again(
        self, before: PreparedResourceClaim, claim: ResourceClaim
    ) -> PreparedResourceClaim:
        """Answer as before, but by the cards as they are now.

        After a reboot a card may have another device node, or be gone. Files that were
        lost are written anew; those of a running container are left alone.
        """
        cards = self.offer.cards
        requests = devices_by_request(claim, cards)
        for request in requests:
            self.checks.insist_on_cards(request, cards)
            for card in (card for _, card in request.devices):
                if not (has := request.amounts[card.uuid]).fits(card.capacity):
                    raise NotPreparedError(
                        f"card {card.uuid} has {card.units} units by now, and the "
                        f"claim {has.units}; delete the pod"
                    )
        if before.tier == "preload" and (wrong := self.setup.library.install()):
            raise NotPreparedError(f"isolation tier preload: {wrong}")
        again = self._described(claim, requests, before.limits, cards)
        lacking = self.claims.lacking(again)
        if again == before and not lacking:
            self.claims.put_right(before)
            return before
        files = [
            self._files(claim, request, before.limits.get(request.name))
            for request in requests
            if request.name in lacking
        ]
        self.claims.put(again, files)
        facts = {"claim": str(claim)}
        logger.info("what a prepared claim has was written anew", extra=facts)
        return again

    def _put(
        self,
        claim: ResourceClaim,
        requests: Sequence[RequestDevices],
        limits: Mapping[str, HardLimit],
        cards: Cards,
    ) -> PreparedResourceClaim:
        prepared = self._described(claim, requests, limits, cards)
        files = [
            self._files(claim, request, limits.get(request.name))
            for request in requests
        ]
        try:
            self.claims.put(prepared, files)
        except OSError:
            self.claims.remove(claim.uid)
            raise
        return prepared

    def _described(
        self,
        claim: ResourceClaim,
        requests: Sequence[RequestDevices],
        limits: Mapping[str, HardLimit],
        cards: Cards,
    ) -> PreparedResourceClaim:
        setups = {
            request.name: self._setup(claim, request, limits.get(request.name), cards)
            for request in requests
        }
        return PreparedResourceClaim(
            claim.uid,
            claim.namespace,
            claim.name,
            tuple(
                device
                for request in requests
                for device in _devices(claim, request, setups[request.name])
            ),
            limits,
            self._specification(claim, requests, limits, setups),
        )

    def _specification(
        self,
        claim: ResourceClaim,
        requests: Sequence[RequestDevices],
        limits: Mapping[str, HardLimit],
        setups: Mapping[str, pb.ContainerAllocateResponse],
    ) -> Json:
        """Return the claim's CDI specification, with the limits of tier ``driver``."""
        body = specification(
            SHARE_KIND,
            {_cdi_name(claim, name): setup for name, setup in setups.items()},
        )
        for request, device in zip(requests, body["devices"], strict=True):
            limit = limits.get(request.name)
            if limit is not None and limit.tier == "driver":
                bundle = self.claims.folder(claim.uid, request.name) / BUNDLE
                key, edits = card_key(request.cards[0]), device["containerEdits"]
                more = self.drivers_limits.edits(limit.mib, key, bundle)
                edits |= {part: edits.get(part, []) + more[part] for part in more}
        return body

    def listed(self) -> ListedDevices:
        """Return what pods hold by kubelet's list, or as it was allocated here."""
        return self.occupancy.listed(_LIST_WITHIN_S)

    def _setup(
        self,
        claim: ResourceClaim,
        request: RequestDevices,
        limit: HardLimit | None,
        cards: Cards,
    ) -> pb.ContainerAllocateResponse:
        """Return what the containers with a request get, as kubelet would be told."""
        request_cards = cards.as_found(request.cards)
        driver = [card.uuid for card in request_cards if card.known_to_driver]
        # The runtime must read CDI specifications for a claim in any case.
        by_cdi = driver and self.setup.injection.specified() >= set(driver)
        by_driver = limit is not None and limit.tier == "driver"
        answer = self.setup.answer(
            names.MEMORY,
            request.total.units,
            request_cards,
            None if by_driver else limit,
            self.claims.folder(claim.uid, request.name),
            "cdi" if by_cdi else None,
        )
        answer.envs.update(limit_env(names.CORE, request.total.cores))
        return answer

    def _files(
        self, claim: ResourceClaim, request: RequestDevices, limit: HardLimit | None
    ) -> RequestFiles:
        user = claim.reserved_for[0] if len(claim.reserved_for) == 1 else None
        owner = AllocationRecord(
            namespace=claim.namespace,
            name=user.name if user else "",
            uid=user.uid if user else PodUID(""),
            container="",
            resource="",
            ids=(),
        )
        pod_and_claim = {"claim": str(claim), "request": request.name}
        if user is None:
            # Several pods use it, or it is not known which.
            pod_and_claim["pod"] = ""
        text = allocation_text(owner, request.amounts, limit, **pod_and_claim)
        if limit is None:
            return RequestFiles(request.name, text)
        if limit.tier != "preload":
            return RequestFiles(request.name, text, bundle=bundle_text(limit.mib))
        context_mib = self.setup.isolation.context_mib
        limits = limits_text(request.cards[0], limit, context_mib)
        return RequestFiles(request.name, text, limits)


def _devices(
    claim: ResourceClaim, request: RequestDevices, setup: pb.ContainerAllocateResponse
) -> list[PreparedDevice]:
    """Return what kubelet is told of a request's devices.

    The first one brings the CDI names of all: a name that came twice would be injected
    twice.
    """
    ours = f"{SHARE_KIND}={_cdi_name(claim, request.name)}"
    brought = (*(device.name for device in setup.cdi_devices), ours)
    return [
        PreparedDevice(
            request.name,
            device.name,
            card.uuid,
            device.amount.cores,
            device.amount.units,
            device.share_id,
            () if number else brought,
        )
        for number, (device, card) in enumerate(request.devices)
    ]


def _cdi_name(claim: ResourceClaim, request: str) -> str:
    return f"{claim.uid}-{request}"


def _same(before: PreparedResourceClaim, claim: ResourceClaim) -> bool:
    return {(device.device, device.share_id) for device in before.devices} == {
        (device.name, device.share_id) for device in claim.devices
    }
