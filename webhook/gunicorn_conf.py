"""Configure gunicorn for the webhook: one worker, TLS.

The API server closes connections that it has not used for 90 s (client-go's
``IdleConnTimeout``). The server keeps them longer, since Go does not repeat a POST that
is lost when the server closes first.
"""

import gc
import os
from typing import Any

from gpushare.process import exit_with_complaints
from gpushare.server.gunicorn_defaults import *  # noqa: F403
from gpushare.server.tls import ServerTls
from gpushare.server.worker import make_worker_class
from webhook.main import check_webhook
from webhook.settings import WebhookSettings

_settings, _ = WebhookSettings.read(os.environ)

bind = [str(_settings.listen)]
worker_class = make_worker_class(
    answer_s=1, graceful_s=9, context=ServerTls(_settings.tls).context
)
keepalive = 120


def on_starting(_server: Any) -> None:  # noqa: ANN401
    """Exit with all complaints before anything starts."""
    exit_with_complaints(check_webhook(os.environ), "webhook")


def post_worker_init(_worker: Any) -> None:  # noqa: ANN401
    """Keep objects that live as long as the process from the garbage collector."""
    gc.collect()
    gc.freeze()
