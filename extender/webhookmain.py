"""What gunicorn calls for the webhook: its parts, put together."""

import math
import os
from collections.abc import Mapping
from functools import partial
from threading import Event
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry

from extender import tls
from extender.metrics import CertificateCollector
from extender.poolbook import PoolBook
from extender.publicapp import MetricsPage, create_public_app
from extender.readiness import Readiness
from extender.threads import start
from extender.webhook import WebhookParts, create_webhook_app
from extender.webhookmetrics import ReviewMetrics
from extender.webhooksettings import WebhookSettings
from gpushare import logs
from gpushare.kube.apiserver import ApiServer
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.errors import ClusterError
from gpushare.kube.reflector import Reflector
from gpushare.listener import Listener
from gpushare.listening import why_not_listen

CERTIFICATE_ENDS = "vcuda_webhook_certificate_not_after_timestamp_seconds"


def complaints(environ: Mapping[str, str]) -> list[str]:
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


def build() -> WSGIApplication:
    """Follow the nodes, serve the public listener, and give the reviews' application.

    ``ValueError`` for bad settings.
    """
    settings, found = WebhookSettings.read(os.environ)
    if found:
        raise ValueError("; ".join(found))
    logs.configure(settings.log_level, settings.log_format)
    parts = assemble(settings, ApiServer.connect(settings.kubeconfig), Event())
    public = create_public_app(parts.readiness, parts.metrics_page)
    Listener({settings.public_listen: public}).start()
    return create_webhook_app(parts)


def assemble(settings: WebhookSettings, cluster: Cluster, stop: Event) -> WebhookParts:
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
