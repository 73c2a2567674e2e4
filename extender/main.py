"""What gunicorn calls; with ``webhookmain``, the only rooms here that wire."""

import gc
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry

from extender import tls
from extender.app import Parts, create_app
from extender.bind import Binder, Books
from extender.inflight import Inflight
from extender.lessons import LessonCollector, Lessons
from extender.metrics import CertificateCollector, LedgerCollector, VerbMetrics
from extender.patience import Patience
from extender.publicapp import MetricsPage, create_public_app
from extender.readiness import Readiness
from extender.settings import ExtenderSettings
from extender.threads import start
from extender.ui import make_page
from extender.verbs import Verbs
from extender.webhookmain import build as build_webhook
from gpushare import logs
from gpushare.domain.fitting import Fitting
from gpushare.domain.hosts import Hosts
from gpushare.domain.ledger import Ledger
from gpushare.domain.packer import Packer
from gpushare.domain.policies import FRAG, Choice
from gpushare.domain.scores import Scores
from gpushare.kube.apiserver import ApiServer
from gpushare.kube.bookkeeper import UNFINISHED, NodeBook, PodBook
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.errors import ClusterError
from gpushare.kube.reflector import Reflector
from gpushare.kube.snapshot import snapshot
from gpushare.listener import Listener
from gpushare.listening import why_not_listen

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
