"""What gunicorn calls; with ``webhookmain``, the only rooms here that wire.

Threads without which a process of ours is of no use.

What gunicorn calls for the webhook: its parts, put together.

When the policy ``frag`` learns: on a thread of its own, and what that looks like.
"""

import gc
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extender.scheduling.bind import Binder, Books
from extender.scheduling.inflight import Inflight
from extender.scheduling.service import Patience, Verbs
from extender.server import tls
from extender.server.app import Parts, create_app
from extender.server.metrics import (
    CertificateCollector,
    LedgerCollector,
    ReviewMetrics,
    VerbMetrics,
)
from extender.server.public import MetricsPage, Readiness, create_public_app
from extender.server.ui import make_page
from extender.server.webhook_app import PoolBook, WebhookParts, create_webhook_app
from extender.settings import ExtenderSettings, WebhookSettings
from gpushare import logs
from gpushare.addresses import why_not_listen
from gpushare.cache.pods import UNFINISHED, NodeBook, PodBook
from gpushare.cache.snapshot import snapshot
from gpushare.domain.cache import Fitting, Scores
from gpushare.domain.frag.policy import Packer
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.policies import FRAG, Choice
from gpushare.kube.api import ApiServer
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.errors import ClusterError
from gpushare.kube.reflector import Reflector
from gpushare.listener import Listener

logger = logging.getLogger(__name__)


def start(name: str, target: Callable[[], None]) -> None:
    """Start a thread that ends with the process, and the process with the thread.

    Without it the books would no longer follow the cluster. gunicorn starts a new
    worker, which reads everything anew.
    """

    def run() -> None:
        try:
            target()
        except Exception:
            logger.exception("thread ended; starting anew", extra={"thread_name": name})
            os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=run, name=name, daemon=True).start()


CERTIFICATE_ENDS = "vcuda_webhook_certificate_not_after_timestamp_seconds"


def webhook_complaints(environ: Mapping[str, str]) -> list[str]:
    """Say all that is wrong with the settings, before anything starts."""
    settings, found = WebhookSettings.read(environ)
    try:
        ApiServer.connect(settings.kubeconfig).close()
    except ClusterError as error:
        found.append(
            f"GPUSHARE_KUBECONFIG: {error}; give the path of a kubeconfig, or run in a "
            "pod with a service account"
        )
    if settings.tls_cert and settings.tls_key:
        found += tls.complaints(settings.tls)
    if taken := why_not_listen(settings.public_listen):
        found.append(
            f"GPUSHARE_PUBLIC_LISTEN: cannot listen on {settings.public_listen} "
            f"({taken}); give another host:port"
        )
    return found


def build_webhook() -> WSGIApplication:
    """Follow the nodes, serve the public listener, and give the reviews' application.

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


def assemble_webhook(
    settings: WebhookSettings, cluster: Cluster, stop: Event
) -> WebhookParts:
    """Put the parts together over a cluster; ``stop`` ends the thread."""
    book = PoolBook()
    nodes = Reflector(cluster, Kind.NODES, book)
    registry = CollectorRegistry()
    registry.register(CertificateCollector(settings.tls, CERTIFICATE_ENDS))
    start("reflector-nodes", partial(nodes.run, stop))
    return WebhookParts(
        rules=settings.rules,
        pool=book.pool,
        # Ready for good once it has read them: its rules need no fresh news of nodes,
        # and pods that ask for cards cannot be made while no webhook is ready.
        readiness=Readiness((("nodes", nodes),), math.inf),
        metrics=ReviewMetrics(registry),
        metrics_page=MetricsPage(registry),
    )


_LOOK_EVERY_S = 1.0


class Lessons:
    """Has a packer learn when that is due, as soon as anybody wants its choice.

    ``wanted`` where the cluster's own policy is ``frag``; else the first pod that asks
    for it is placed as best-fit places, and the next ones by what was learnt. ``after``
    is what must have come before: pods are measured by the cards that there are, and
    what is learnt without them would stand for long.
    """

    def __init__(
        self,
        packer: Packer,
        *,
        wanted: bool,
        after: Iterable[Event] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.packer = packer
        self._wanted = wanted
        self._after = tuple(after)
        self._clock = clock
        self.failed = 0
        """Lessons that failed since the start."""
        self.learnt_at: float | None = None
        """Seconds since 1970; None while nothing was learnt."""

    def run(self, stop: Event) -> None:
        """Learn until ``stop`` is set, whatever happens."""
        while not stop.is_set():
            due = self.packer.learner.wait(_LOOK_EVERY_S)
            if not self.take() and due:
                stop.wait(_LOOK_EVERY_S)

    def take(self) -> bool:
        """Learn, if that is due, wanted and possible; tell whether it was so."""
        packer = self.packer
        if not packer.due or not (self._wanted or packer.wanted):
            return False
        if not all(event.is_set() for event in self._after):
            return False
        began = time.monotonic()
        try:
            packer.learn()
        except Exception:
            # Pods are placed by what was learnt before, and the next turn comes.
            self.failed += 1
            logger.exception("nothing learnt")
            return False
        self.learnt_at = self._clock()
        took_ms = round((time.monotonic() - began) * 1000, 1)
        facts = {"pods_seen": packer.seen, "took_ms": took_ms}
        logger.debug("learnt", extra=facts)
        return True


class LessonCollector(Collector):
    """What Prometheus sees of it."""

    def __init__(self, lessons: Lessons) -> None:
        self._lessons = lessons

    def collect(self) -> Iterable[Metric]:
        """Give the pods counted, the lessons that failed, and when the last one was."""
        yield GaugeMetricFamily(
            "vcuda_extender_frag_pods_seen",
            "Pods with cards that the policy frag has counted since the start.",
            value=self._lessons.packer.seen,
        )
        yield CounterMetricFamily(
            "vcuda_extender_frag_lessons_failed",
            "Lessons of the policy frag that failed; each is tried again.",
            value=self._lessons.failed,
        )
        learnt_at = self._lessons.learnt_at
        if learnt_at is not None:
            yield GaugeMetricFamily(
                "vcuda_extender_frag_learnt_timestamp_seconds",
                "When the policy frag last learnt; absent while best-fit stands in.",
                value=learnt_at,
            )


__all__ = ["Applications", "assemble", "build", "build_webhook", "complaints"]

_SETTLE_EVERY_S = 5.0
_FILLED_IN_S = 60.0


def complaints(environ: Mapping[str, str]) -> list[str]:
    """Say all that is wrong with the settings, before anything starts."""
    settings, found = ExtenderSettings.read(environ)
    try:
        ApiServer.connect(settings.kubeconfig).close()
    except ClusterError as error:
        found.append(
            f"GPUSHARE_KUBECONFIG: {error}; give the path of a kubeconfig, or run in a "
            "pod with a service account"
        )
    if settings.tls:
        found += tls.complaints(settings.tls)
    if taken := why_not_listen(settings.public_listen):
        found.append(
            f"GPUSHARE_PUBLIC_LISTEN: cannot listen on {settings.public_listen} "
            f"({taken}); give another host:port"
        )
    return found


def build() -> WSGIApplication:
    """Follow the API server, serve the public listener, and give the inner one's."""
    settings, found = ExtenderSettings.read(os.environ)
    if found:
        raise ValueError("; ".join(found))
    logs.configure(settings.log_level, settings.log_format)
    made = assemble(settings, ApiServer.connect(settings.kubeconfig), Event())
    Listener({settings.public_listen: made.public}).start()
    return made.inner


@dataclass(frozen=True, slots=True)
class Applications:
    """What the two listeners serve: the verbs and all the rest, and the rest alone."""

    inner: WSGIApplication
    public: WSGIApplication


def assemble(settings: ExtenderSettings, cluster: Cluster, stop: Event) -> Applications:
    """Put the parts together over a cluster; ``stop`` ends the threads."""
    ledger = Ledger()
    hosts = Hosts()
    packer = Packer(ledger, hosts)
    choice = Choice(settings.policy, settings.card_order, packer)
    inflight = Inflight(
        wait_s=settings.wait_for_bind_s, pending_for_s=settings.pending_for_s
    )
    pods = PodBook(ledger, choice, on_gone=inflight.end, on_new=packer.see, hosts=hosts)
    nodes = NodeBook(ledger, set_cards=pods.set_cards, hosts=hosts)
    following = (
        ("nodes", Reflector(cluster, Kind.NODES, nodes)),
        ("pods", Reflector(cluster, Kind.PODS, pods, field_selector=UNFINISHED)),
    )
    readiness = Readiness(following, settings.stale_after_s)
    registry = CollectorRegistry()
    registry.register(LedgerCollector(ledger, pods, nodes, inflight, readiness))
    synced = [reflector.synced for _, reflector in following]
    lessons = Lessons(packer, wanted=settings.policy == FRAG, after=synced)
    registry.register(LessonCollector(lessons))
    if settings.tls:
        registry.register(CertificateCollector(settings.tls))
    books = Books(ledger, pods, nodes, inflight, choice)
    parts = Parts(
        verbs=Verbs(
            cluster,
            ledger,
            pods,
            Fitting(ledger),
            Scores(ledger),
            inflight,
            choice,
            hosts,
            Patience(settings.wait_for_news_s),
        ),
        binder=Binder(cluster, books, timeout_s=settings.bind_timeout_s),
        readiness=readiness,
        metrics=VerbMetrics(registry),
        metrics_page=MetricsPage(registry),
        snapshot=lambda: snapshot(ledger.nodes(), pods.records(), choice),
        page=make_page(books, readiness) if settings.ui else None,
        tls=settings.tls is not None,
    )
    for name, reflector in following:
        start(f"reflector-{name}", partial(reflector.run, stop))
    reflectors = [reflector for _, reflector in following]
    start("housekeeper", partial(_keep_house, parts.binder, stop))
    start("learner", partial(lessons.run, stop))
    start("warmer", lambda: _warm(ledger, reflectors, stop))
    public = create_public_app(readiness, parts.metrics_page)
    return Applications(create_app(parts), public)


def _keep_house(binder: Binder, stop: Event) -> None:
    """Settle reservations that were never seen to come true."""
    while not stop.wait(_SETTLE_EVERY_S):
        binder.settle_overdue()


def _warm(ledger: Ledger, reflectors: Iterable[Reflector], stop: Event) -> None:
    """Sum up all nodes before the first filter asks, and spare them the collector.

    What the books hold lives long. Frozen, it is not walked at every full collection,
    which at 100,000 pods would stall a request by a tenth of a second; nor while they
    are filled, which took a third of a start. Where that takes long, because nobody
    answers, there is more garbage than books.
    """
    gc.disable()
    until = time.monotonic() + _FILLED_IN_S
    try:
        for reflector in reflectors:
            while not reflector.synced.wait(_SETTLE_EVERY_S):
                if stop.is_set():
                    return
                if time.monotonic() > until:
                    gc.enable()
        for node in ledger.nodes():
            _ = node.summary
        gc.collect()
        gc.freeze()
    finally:
        gc.enable()
