"""Assemble the webhook; gunicorn calls ``build``."""

import math
import os
from collections.abc import Mapping
from functools import partial
from threading import Event

from prometheus_client import CollectorRegistry

from gpushare import logs
from gpushare.kube.apiserver.api import ApiServer
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.reflector import Readiness, Reflector
from gpushare.process import start_or_end_process
from gpushare.server.asgi import Application
from gpushare.server.listener import Listener
from gpushare.server.public import MetricsPage, create_public_app
from gpushare.server.start import check_start
from gpushare.server.tls import CertificateCollector
from webhook.app import PoolBook, ReviewMetrics, WebhookParts, create_webhook_app
from webhook.settings import WebhookSettings

CERTIFICATE_ENDS = "vcuda_webhook_certificate_not_after_timestamp_seconds"


def check_webhook(environ: Mapping[str, str]) -> list[str]:
    """Return all that is wrong with the webhook's settings, before it starts."""
    settings, problems = WebhookSettings.read(environ)
    files = settings.tls if settings.tls_cert and settings.tls_key else None
    return problems + check_start(settings.kubeconfig, files, settings.public_listen)


def build() -> Application:
    """Start the webhook and its public listener; return the reviews' application.

    ``ValueError`` for bad settings.
    """
    settings, problems = WebhookSettings.read(os.environ)
    if problems:
        raise ValueError("; ".join(problems))
    logs.configure_logs(settings.log_level, settings.log_format)
    parts = assemble_webhook(settings, ApiServer.connect(settings.kubeconfig), Event())
    public = create_public_app(parts.readiness, parts.metrics_page)
    Listener({settings.public_listen: public}).start()
    return create_webhook_app(parts)


def assemble_webhook(
    settings: WebhookSettings, cluster: Cluster, stop: Event
) -> WebhookParts:
    """Connect the webhook's parts over a cluster; ``stop`` ends the thread."""
    book = PoolBook()
    nodes = Reflector(cluster, Kind.NODES, book)
    registry = CollectorRegistry()
    registry.register(CertificateCollector(settings.tls, CERTIFICATE_ENDS))
    start_or_end_process("reflector-nodes", partial(nodes.run, stop))
    return WebhookParts(
        rules=settings.rules,
        pool=book.pool,
        # Ready for good once the nodes were listed: the rules need no fresh news of
        # nodes, and without a ready webhook no pod that asks for cards can be created.
        readiness=Readiness((("nodes", nodes),), math.inf),
        metrics=ReviewMetrics(registry),
        metrics_page=MetricsPage(registry),
    )
