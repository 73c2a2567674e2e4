"""Assemble the extender; gunicorn calls ``build``.

Only here are parts created and connected, and threads started.
"""

import ctypes
import gc
import logging
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from threading import Event
from typing import NamedTuple
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry

from extender.scheduling.bind import Binder
from extender.scheduling.learning import FragLearning
from extender.scheduling.service import SchedulingVerbs, WaitAllowance
from extender.scheduling.state import ExtenderState
from extender.server.app import ExtenderParts, VerbMetrics, VerbThreads, create_app
from extender.server.metrics import (
    LearningCollector,
    LedgerCollector,
    ResourceClaimsCollector,
)
from extender.server.resource_claims_app import (
    ResourceClaimMetrics,
    ResourceClaimParts,
    choose_by_port,
    create_resource_claims_app,
)
from extender.server.ui import ExtenderPage
from extender.settings import ExtenderSettings, ResourceClaimsListener
from gpushare import logs
from gpushare.domain.ledger import Ledger
from gpushare.domain.policies import FRAG
from gpushare.informers.pods import UNFINISHED
from gpushare.informers.resource_claims import RESOURCE_CLAIMS, ResourceClaimWatch
from gpushare.kube.apiserver.api import ApiServer
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.reflector import Readiness, Reflector
from gpushare.process import Loop, start_or_end_process, try_to_listen
from gpushare.server import tls
from gpushare.server.asgi import Application
from gpushare.server.listener import Listener
from gpushare.server.public import MetricsPage, create_public_app
from gpushare.server.start import check_start
from gpushare.server.tls import CertificateCollector

logger = logging.getLogger(__name__)

CLAIMS_CERTIFICATE_ENDS = (
    "vcuda_extender_claims_certificate_not_after_timestamp_seconds"
)
_SETTLE_EVERY_S = 5.0
_FILLED_IN_S = 60.0


class Applications(NamedTuple):
    """The applications of the two listeners: ``inner`` has the verbs too."""

    inner: Application
    public: WSGIApplication


def check_extender(environ: Mapping[str, str]) -> list[str]:
    """Return all that is wrong with the extender's settings, before it starts."""
    settings, problems = ExtenderSettings.read(environ)
    problems += check_start(settings.kubeconfig, settings.tls, settings.public_listen)
    if claims := settings.claims:
        problems += tls.check_tls_files(claims.tls, "CLAIMS_")
        try_to_listen("CLAIMS_LISTEN", claims.listen, problems)
    try_to_listen("LISTEN", settings.listen, problems)
    return problems


def build() -> Application:
    """Start the extender and its public listener; return the inner application.

    ``ValueError`` for bad settings.
    """
    settings, problems = ExtenderSettings.read(os.environ)
    if problems:
        raise ValueError("; ".join(problems))
    logs.configure_logs(settings.log_level, settings.log_format)
    built = assemble_extender(settings, ApiServer.connect(settings.kubeconfig), Event())
    Listener({settings.public_listen: built.public}).start()
    return built.inner


def assemble_extender(
    settings: ExtenderSettings, cluster: Cluster, stop: Event
) -> Applications:
    """Connect the extender's parts over a cluster; ``stop`` ends the threads."""
    state = ExtenderState(
        wait_s=settings.wait_for_bind_s,
        pending_for_s=settings.pending_for_s,
        policy=settings.policy,
        card_order=settings.card_order,
        page=settings.ui,
    )
    binder = Binder(cluster, state, timeout_s=settings.bind_timeout_s)
    reflectors = {
        "nodes": Reflector(cluster, Kind.NODES, state.nodes),
        "pods": Reflector(cluster, Kind.PODS, state.pods, field_selector=UNFINISHED),
    }
    synced = [reflector.synced for reflector in reflectors.values()]
    watch = (
        ResourceClaimWatch(cluster, state.resource_claims) if settings.claims else None
    )
    followed = [
        *reflectors.items(),
        *([(RESOURCE_CLAIMS, watch.reflector)] if watch else []),
    ]
    readiness = Readiness(
        tuple(followed), settings.stale_after_s, watch.notes if watch else dict
    )
    learning = FragLearning(state.packer, wanted=settings.policy == FRAG, after=synced)
    registry = _registry(settings, state, readiness, learning)
    parts = ExtenderParts(
        verbs=SchedulingVerbs(cluster, state, WaitAllowance(settings.wait_for_news_s)),
        binder=binder,
        readiness=readiness,
        metrics=VerbMetrics(registry),
        metrics_page=MetricsPage(registry),
        snapshot=state.snapshot,
        threads=VerbThreads.of(settings.threads),
        page=ExtenderPage(state, readiness) if settings.ui else None,
        tls=settings.tls is not None,
    )
    loops: dict[str, Loop] = {
        **{
            f"reflector-{name}": reflector.run for name, reflector in reflectors.items()
        },
        "housekeeper": partial(_settle_overdue, binder),
        "learner": learning.run,
        "warmer": partial(_warm, state.ledger, synced),
    }
    inner = create_app(parts)
    if watch and settings.claims:
        loops["reflector-claims"] = watch.run
        loops["claims-housekeeper"] = partial(_settle_overdue, watch)
        reviews = _reviews(settings.claims, state, readiness, registry)
        inner = choose_by_port(settings.claims.listen.port, reviews, inner)
    for name, loop in loops.items():
        start_or_end_process(name, partial(loop, stop))
    public = create_public_app(readiness, parts.metrics_page)
    return Applications(inner, public)


def _registry(
    settings: ExtenderSettings,
    state: ExtenderState,
    readiness: Readiness,
    learning: FragLearning,
) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(LedgerCollector(state, readiness))
    registry.register(LearningCollector(learning))
    if settings.tls:
        registry.register(CertificateCollector(settings.tls))
    return registry


def _reviews(
    claims: ResourceClaimsListener,
    state: ExtenderState,
    readiness: Readiness,
    registry: CollectorRegistry,
) -> Application:
    registry.register(CertificateCollector(claims.tls, CLAIMS_CERTIFICATE_ENDS))
    registry.register(ResourceClaimsCollector(state))
    metrics = ResourceClaimMetrics(registry)
    return create_resource_claims_app(
        ResourceClaimParts(state.resource_claims, readiness, metrics)
    )


def _settle_overdue(reserving: Binder | ResourceClaimWatch, stop: Event) -> None:
    while not stop.wait(_SETTLE_EVERY_S):
        reserving.settle_overdue()


def _warm(ledger: Ledger, synced: Iterable[Event], stop: Event) -> None:
    """Summarize all nodes before the first filter, and freeze them for the GC.

    What the ledger holds lives long. Frozen objects are not walked at each full garbage
    collection, which at 100,000 pods would delay a request by a tenth of a second.
    Garbage collection is off while the ledger is filled, because it took a third of the
    start. It is on again after ``_FILLED_IN_S``, for example if the API server does not
    answer. Nothing is collected before the freeze: that stops all threads for a second
    at 100,000 pods, and filling the ledger leaves no cycles.
    """
    gc.disable()
    until = time.monotonic() + _FILLED_IN_S
    try:
        for event in synced:
            while not event.wait(_SETTLE_EVERY_S):
                if stop.is_set():
                    return
                if time.monotonic() > until:
                    gc.enable()
        for node in ledger.nodes():
            _ = node.summary
        gc.freeze()
        _give_back()
    finally:
        gc.enable()


def _give_back() -> None:
    """Return to the system what the parsed lists took, about 20 MiB of 100,000 pods.

    glibc keeps what was freed between objects that stay. Other C libraries have no such
    function.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def build_webhook() -> Application:
    """Start the webhook: manifests from before it was a package of its own do so."""
    from webhook.main import build as build_it  # noqa: PLC0415

    return build_it()
