"""Assemble the extender and the webhook; gunicorn calls ``build`` or ``build_webhook``.

Only here are parts created and connected, and threads started.
"""

import ctypes
import gc
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import NamedTuple
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry

from extender.scheduling.arbiter import WHAT, ClaimWatch
from extender.scheduling.bind import Binder, ExtenderState
from extender.scheduling.learning import FragLearning
from extender.scheduling.service import Verbs, WaitAllowance
from extender.server import tls
from extender.server.app import Parts, Threads, VerbMetrics, create_app
from extender.server.asgi import Application
from extender.server.claims_app import (
    ClaimMetrics,
    ClaimParts,
    by_port,
    create_claims_app,
)
from extender.server.metrics import (
    CertificateCollector,
    ClaimsCollector,
    LearningCollector,
    LedgerCollector,
)
from extender.server.public import MetricsPage, Readiness, create_public_app
from extender.server.ui import Page
from extender.server.webhook_app import (
    PoolBook,
    ReviewMetrics,
    WebhookParts,
    create_webhook_app,
)
from extender.settings import ExtenderSettings, WebhookSettings
from gpushare import logs
from gpushare.addresses import why_not_listen
from gpushare.domain.ledger import Ledger
from gpushare.domain.policies import FRAG
from gpushare.informers.pods import UNFINISHED
from gpushare.informers.snapshot import snapshot
from gpushare.kube.apiserver.api import ApiServer
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.errors import ClusterError
from gpushare.kube.reflector import Reflector
from gpushare.listener import Listener
from gpushare.settings import Address

logger = logging.getLogger(__name__)

CERTIFICATE_ENDS = "vcuda_webhook_certificate_not_after_timestamp_seconds"
CLAIMS_CERTIFICATE_ENDS = (
    "vcuda_extender_claims_certificate_not_after_timestamp_seconds"
)
_SETTLE_EVERY_S = 5.0
_FILLED_IN_S = 60.0


class Applications(NamedTuple):
    """The applications of the two listeners: ``inner`` has the verbs too."""

    inner: Application
    public: WSGIApplication


def complaints(environ: Mapping[str, str]) -> list[str]:
    """Return all that is wrong with the extender's settings, before it starts."""
    settings, found = ExtenderSettings.read(environ)
    found += _start_complaints(
        settings.kubeconfig, settings.tls, settings.public_listen
    )
    if claims := settings.claims:
        found += tls.complaints(claims.tls, "CLAIMS_")
        found += _listen_complaints("CLAIMS_LISTEN", claims.listen)
    return found + _listen_complaints("LISTEN", settings.listen)


def webhook_complaints(environ: Mapping[str, str]) -> list[str]:
    """Return all that is wrong with the webhook's settings, before it starts."""
    settings, found = WebhookSettings.read(environ)
    files = settings.tls if settings.tls_cert and settings.tls_key else None
    return found + _start_complaints(settings.kubeconfig, files, settings.public_listen)


def _start_complaints(
    kubeconfig: str | None, files: tls.TlsFiles | None, public_listen: Address
) -> list[str]:
    found = []
    try:
        ApiServer.connect(kubeconfig).close()
    except ClusterError as error:
        fix = "give the path of a kubeconfig, or run in a pod with a service account"
        found.append(f"GPUSHARE_KUBECONFIG: {error}; {fix}")
    if files:
        found += tls.complaints(files)
    return found + _listen_complaints("PUBLIC_LISTEN", public_listen)


def _listen_complaints(setting: str, address: Address) -> list[str]:
    if why := why_not_listen(address):
        fix = "end what has it, or give another host:port"
        return [f"GPUSHARE_{setting}: cannot listen on {address} ({why}); {fix}"]
    return []


def build() -> Application:
    """Start the extender and its public listener; return the inner application.

    ``ValueError`` for bad settings.
    """
    settings, found = ExtenderSettings.read(os.environ)
    if found:
        raise ValueError("; ".join(found))
    logs.configure(settings.log_level, settings.log_format)
    built = assemble(settings, ApiServer.connect(settings.kubeconfig), Event())
    Listener({settings.public_listen: built.public}).start()
    return built.inner


def build_webhook() -> Application:
    """Start the webhook and its public listener; return the reviews' application.

    ``ValueError`` for bad settings.
    """
    settings, found = WebhookSettings.read(os.environ)
    if found:
        raise ValueError("; ".join(found))
    logs.configure(settings.log_level, settings.log_format)
    parts = assemble_webhook(settings, ApiServer.connect(settings.kubeconfig), Event())
    public = create_public_app(parts.readiness, parts.metrics_page)
    Listener({settings.public_listen: public}).start()
    return create_webhook_app(parts)


def assemble(settings: ExtenderSettings, cluster: Cluster, stop: Event) -> Applications:
    """Connect the extender's parts over a cluster; ``stop`` ends the threads."""
    state = ExtenderState(
        wait_s=settings.wait_for_bind_s,
        pending_for_s=settings.pending_for_s,
        policy=settings.policy,
        card_order=settings.card_order,
        page=settings.ui,
    )
    ledger, pods = state.ledger, state.pods
    binder = Binder(cluster, state, timeout_s=settings.bind_timeout_s)
    reflectors = {
        "nodes": Reflector(cluster, Kind.NODES, state.nodes),
        "pods": Reflector(cluster, Kind.PODS, pods, field_selector=UNFINISHED),
    }
    synced = [reflector.synced for reflector in reflectors.values()]
    watch = ClaimWatch(cluster, state.claims) if settings.claims else None
    followed = [*reflectors.items(), *([(WHAT, watch.reflector)] if watch else [])]
    readiness = Readiness(
        tuple(followed), settings.stale_after_s, watch.notes if watch else dict
    )
    learning = FragLearning(state.packer, wanted=settings.policy == FRAG, after=synced)
    registry = CollectorRegistry()
    registry.register(LedgerCollector(state, readiness))
    registry.register(LearningCollector(learning))
    if settings.tls:
        registry.register(CertificateCollector(settings.tls))
    parts = Parts(
        verbs=Verbs(cluster, state, WaitAllowance(settings.wait_for_news_s)),
        binder=binder,
        readiness=readiness,
        metrics=VerbMetrics(registry),
        metrics_page=MetricsPage(registry),
        snapshot=lambda: snapshot(
            ledger.nodes(),
            pods.records(),
            state.choice,
            ledger.reservations(),
            state.claims.users(),
        ),
        threads=Threads.of(settings.threads),
        page=Page(state, readiness) if settings.ui else None,
        tls=settings.tls is not None,
    )
    for name, reflector in reflectors.items():
        start(f"reflector-{name}", partial(reflector.run, stop))
    start("housekeeper", partial(_settle_overdue, binder, stop))
    start("learner", partial(learning.run, stop))
    start("warmer", partial(_warm, ledger, synced, stop))
    inner = create_app(parts)
    if watch and (claims := settings.claims):
        start("reflector-claims", partial(watch.run, stop))
        start("claims-housekeeper", partial(_settle_overdue, watch, stop))
        registry.register(CertificateCollector(claims.tls, CLAIMS_CERTIFICATE_ENDS))
        registry.register(ClaimsCollector(state))
        reviews = ClaimParts(state.claims, readiness, ClaimMetrics(registry))
        inner = by_port(claims.listen.port, create_claims_app(reviews), inner)
    public = create_public_app(readiness, parts.metrics_page)
    return Applications(inner, public)


def assemble_webhook(
    settings: WebhookSettings, cluster: Cluster, stop: Event
) -> WebhookParts:
    """Connect the webhook's parts over a cluster; ``stop`` ends the thread."""
    book = PoolBook()
    nodes = Reflector(cluster, Kind.NODES, book)
    registry = CollectorRegistry()
    registry.register(CertificateCollector(settings.tls, CERTIFICATE_ENDS))
    start("reflector-nodes", partial(nodes.run, stop))
    return WebhookParts(
        rules=settings.rules,
        pool=book.pool,
        # Ready for good once the nodes were listed: the rules need no fresh news of
        # nodes, and without a ready webhook no pod that asks for cards can be created.
        readiness=Readiness((("nodes", nodes),), math.inf),
        metrics=ReviewMetrics(registry),
        metrics_page=MetricsPage(registry),
    )


def start(name: str, target: Callable[[], None]) -> None:
    """Start a thread that ends with the process, and ends the process if it fails.

    Without it the ledger would no longer follow the cluster. gunicorn then starts a new
    worker, which reads everything again.
    """

    def run() -> None:
        try:
            target()
        except Exception:
            logger.exception(
                "thread failed; the worker process exits and gunicorn starts a new one",
                extra={"thread_name": name},
            )
            os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=run, name=name, daemon=True).start()


def _settle_overdue(reserving: Binder | ClaimWatch, stop: Event) -> None:
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
