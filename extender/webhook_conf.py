"""Configure gunicorn for the webhook: one worker, many threads, TLS.

The API server closes connections that it has not used for 90 s (client-go's
``IdleConnTimeout``). The server keeps them longer, since Go does not repeat a POST that
is lost when the server closes first.
"""

import gc
import os
import sys
from pathlib import Path
from typing import Any

from extender.main import webhook_complaints
from extender.server.tls import ServerTls
from extender.server.workers import WholeRequestTlsSocket
from extender.settings import WebhookSettings

_settings, _ = WebhookSettings.read(os.environ)

bind = [str(_settings.listen)]
workers = 1
# gunicorn's threaded worker, except that no thread waits for a slow client.
worker_class = "extender.server.workers.WaitingWorker"
worker_connections = 900
threads = _settings.threads
keepalive = 120
backlog = 2048
graceful_timeout = 10
timeout = 60
# There is no proxy in front: headers that claim one are not true.
secure_scheme_headers: dict[str, str] = {}
forwarded_allow_ips = ""
control_socket_disable = True
accesslog = None
loglevel = "warning"
if Path("/dev/shm").is_dir():  # noqa: S108
    # With a read-only root file system there is no other place for gunicorn's heartbeat
    # file (contracts 1.9).
    worker_tmp_dir = "/dev/shm"  # noqa: S108
certfile, keyfile = _settings.tls_cert, _settings.tls_key
ssl_context = ServerTls(_settings.tls, WholeRequestTlsSocket).context
do_handshake_on_connect = False


def on_starting(_server: Any) -> None:  # noqa: ANN401
    """Exit with all complaints before anything starts."""
    found = webhook_complaints(os.environ)
    if found:
        sys.stderr.write("The webhook cannot start:\n")
        sys.stderr.writelines(f"  {complaint}\n" for complaint in found)
        sys.exit(1)


def post_worker_init(_worker: Any) -> None:  # noqa: ANN401
    """Keep objects that live as long as the process from the garbage collector."""
    gc.collect()
    gc.freeze()
