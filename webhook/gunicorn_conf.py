"""Configure gunicorn for the webhook: one worker, TLS.

The API server closes connections that it has not used for 90 s (client-go's
``IdleConnTimeout``). The server keeps them longer, since Go does not repeat a POST that
is lost when the server closes first.
"""

import gc
import os
import sys
from pathlib import Path
from typing import Any

from gpushare.server.tls import ServerTls
from gpushare.server.worker import make_worker_class
from webhook.main import check_webhook
from webhook.settings import WebhookSettings

_settings, _ = WebhookSettings.read(os.environ)

bind = [str(_settings.listen)]
workers = 1
worker_class = make_worker_class(
    answer_s=1, graceful_s=9, context=ServerTls(_settings.tls).context
)
worker_connections = 900
# uvicorn also accepts as many in one turn of its loop.
backlog = 256
keepalive = 120
graceful_timeout = 10
timeout = 60
control_socket_disable = True
accesslog = None
loglevel = "warning"
if Path("/dev/shm").is_dir():  # noqa: S108
    # With a read-only root file system there is no other place for gunicorn's heartbeat
    # file (contracts 1.9).
    worker_tmp_dir = "/dev/shm"  # noqa: S108


def on_starting(_server: Any) -> None:  # noqa: ANN401
    """Exit with all complaints before anything starts."""
    problems = check_webhook(os.environ)
    if problems:
        sys.stderr.write("The webhook cannot start:\n")
        sys.stderr.writelines(f"  {problem}\n" for problem in problems)
        sys.exit(1)


def post_worker_init(_worker: Any) -> None:  # noqa: ANN401
    """Keep objects that live as long as the process from the garbage collector."""
    gc.collect()
    gc.freeze()
