"""Serve reviews of ResourceClaims: whether one may have what kube-scheduler chose.

The API server of this host asks before it stores an allocation, whichever scheduler
made it. So one ledger decides on binds and on claims (decision 0066). Whoever reaches
this listener can reserve cards, so it is on loopback, and has no other path but
``/readyz``, by which the installer sees that it answers before the API server asks.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram

from gpushare.informers.resource_claims import ResourceClaimInformer
from gpushare.kube.admission import admit, deny, read_admission_request
from gpushare.kube.cluster import Json
from gpushare.kube.json_reader import Malformed
from gpushare.kube.names import CLAIMS_PATH
from gpushare.kube.reflector import Readiness
from gpushare.kube.resource_claims.allocated import (
    ResourceClaim,
    read_resource_claim,
    refused_access,
)
from gpushare.logs import about
from gpushare.server.asgi import Application, PostsAndPages, Receive, Scope, Send
from gpushare.server.public import create_readiness_app

logger = logging.getLogger(__name__)

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)
_CLAIM = ("resource.k8s.io", "ResourceClaim")
_INTERNAL_ERROR = (
    "internal error in the vcuda extender, so the claim was denied; its log has the "
    "details"
)


@dataclass(frozen=True, slots=True)
class ResourceClaimReview:
    """One review of a ResourceClaim whose status is to be written.

    ``claim`` is None if the review is about anything else. ``old`` is the claim as it
    is. ``dry_run``: nothing will be written.
    """

    uid: str
    claim: Json | None
    old: Json | None = None
    dry_run: bool = False


def read_resource_claim_review(body: bytes) -> ResourceClaimReview:
    """Read a review of a claim; raise ``Malformed`` as ``read_admission_request``."""
    request = read_admission_request(body)
    uid = request.text("uid")
    kind = request.object("kind")
    known = kind.optional_text("group"), kind.optional_text("kind")
    operation = request.optional_text("operation"), request.optional_text("subResource")
    if known != _CLAIM or operation != ("UPDATE", "status"):
        return ResourceClaimReview(uid, None)
    dry_run = request.optional_boolean("dryRun", default=False)
    old = request.optional_object("oldObject").raw
    return ResourceClaimReview(uid, request.object("object").raw, old, dry_run=dry_run)


class ResourceClaimVerdict(StrEnum):
    """What came of one review."""

    RESERVED = "reserved"
    ALLOWED = "allowed"
    """It gives no device of ours, or nothing new."""
    DENIED = "denied"
    NOT_READY = "not-ready"
    MALFORMED = "malformed"
    FAILED = "failed"
    """An internal error; the claim was denied."""


class ResourceClaimMetrics:
    """Count and time reviews of claims."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "vcuda_extender_claim_review_seconds",
            "Time to answer one review of a ResourceClaim.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._reviews = Counter(
            "vcuda_extender_claim_reviews",
            "Reviews of ResourceClaims by what came of them; denied: no room.",
            ["result"],
            registry=registry,
        )
        for result in ResourceClaimVerdict:
            self._reviews.labels(result.value)

    def reviewed(self, result: ResourceClaimVerdict) -> None:
        """Count a review."""
        self._reviews.labels(result.value).inc()


@dataclass(frozen=True, slots=True)
class ResourceClaimParts:
    """What the reviews need."""

    informer: ResourceClaimInformer
    readiness: Readiness
    metrics: ResourceClaimMetrics


def create_resource_claims_app(parts: ResourceClaimParts) -> Application:
    """Make the application of the claims' listener: reviews, and its readiness."""

    async def answer(body: bytes) -> bytes:
        with parts.metrics.seconds.time():
            return _answer(parts, body)

    def refused(_path: str) -> None:
        parts.metrics.reviewed(ResourceClaimVerdict.MALFORMED)

    pages = create_readiness_app(parts.readiness)
    return PostsAndPages(pages, {CLAIMS_PATH: answer}, refused=refused)


def choose_by_port(
    port: int, there: Application, elsewhere: Application
) -> Application:
    """Send what was accepted on a port to its own application, all else to the other.

    The port is that of this server's socket, which no client can choose to claim.
    """

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        accepted_at = scope.get("server") or (None, None)
        await (there if accepted_at[1] == port else elsewhere)(scope, receive, send)

    return application


def _answer(parts: ResourceClaimParts, body: bytes) -> bytes:
    try:
        review = read_resource_claim_review(body)
    except Malformed:
        parts.metrics.reviewed(ResourceClaimVerdict.MALFORMED)
        raise
    with about(claim=_name(review.claim or {})):
        try:
            result, why_not = _judge(parts, review)
        except Exception:
            # Not a 500: the API server would show people nothing but the number.
            logger.exception("internal error")
            result, why_not = ResourceClaimVerdict.FAILED, [_INTERNAL_ERROR]
        parts.metrics.reviewed(result)
        if why_not:
            logger.info("claim denied", extra={"because": "; ".join(why_not)})
            return deny(review.uid, why_not)
    return admit(review.uid)


def _judge(
    parts: ResourceClaimParts, review: ResourceClaimReview
) -> tuple[ResourceClaimVerdict, Sequence[str]]:
    # The API server lets nobody change an allocation.
    if review.claim is None or _is_allocated(review.old):
        return ResourceClaimVerdict.ALLOWED, ()
    try:
        claim, denials = read_resource_claim(review.claim), refused_access(review.claim)
    except Malformed as error:
        return ResourceClaimVerdict.DENIED, [f"the claim is not understood: {error}"]
    if denials := denials + (_empty_requests(claim) if claim else []):
        return ResourceClaimVerdict.DENIED, denials
    if claim is None:
        return ResourceClaimVerdict.ALLOWED, ()
    if reasons := parts.readiness.why_not():
        wait = f"vcuda extender is not ready: {'; '.join(reasons)}; wait for it"
        return ResourceClaimVerdict.NOT_READY, [wait]
    if review.dry_run:
        verdict, why_not = ResourceClaimVerdict.ALLOWED, parts.informer.why_not(claim)
    else:
        version = str(review.claim["metadata"].get("resourceVersion") or "")
        verdict = ResourceClaimVerdict.RESERVED
        why_not = parts.informer.reserve(claim, version)
    return (ResourceClaimVerdict.DENIED, [why_not]) if why_not else (verdict, ())


def _is_allocated(claim: Json | None) -> bool:
    status = (claim or {}).get("status")
    return isinstance(status, dict) and bool(status.get("allocation"))


def _empty_requests(claim: ResourceClaim) -> list[str]:
    """Return a sentence for each request for no memory, or for no cores."""
    return [
        f"request {device.request} has 0 {what} of device {device.name}; "
        f"ask for {least} or more in capacity.requests"
        for device in claim.devices
        for what, number, least in (
            ("MiB", device.amount.units, "memory: 256Mi"),
            ("cores", device.amount.cores, 'cores: "1"'),
        )
        if not number
    ]


def _name(claim: Json) -> str:
    metadata = claim.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return f"{known.get('namespace')}/{known.get('name')}"
