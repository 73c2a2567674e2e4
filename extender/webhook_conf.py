"""gunicorn's settings for the webhook: one worker, many threads, the server's TLS.

The API server closes what it has not used for 90 s (client-go's ``IdleConnTimeout``),
so the server waits longer than that: it must not be the one that hangs up, since Go
does not send a POST again.
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
# gunicorn's threaded one, but for those who take long to say what they want.
worker_class = "extender.server.workers.WaitingWorker"
worker_connections = 900
threads = _settings.threads
keepalive = 120
backlog = 2048
graceful_timeout = 10
timeout = 60
# Nobody stands between: what a client says of a proxy before us is not true.
secure_scheme_headers: dict[str, str] = {}
forwarded_allow_ips = ""
control_socket_disable = True
accesslog = None
loglevel = "warning"
if Path("/dev/shm").is_dir():  # noqa: S108
    # A read-only root has no other place for the worker's heartbeat (contracts 1.9).
    worker_tmp_dir = "/dev/shm"  # noqa: S108
certfile, keyfile = _settings.tls_cert, _settings.tls_key
ssl_context = ServerTls(_settings.tls, WholeRequestTlsSocket).context
do_handshake_on_connect = False


def on_starting(_server: Any) -> None:  # noqa: ANN401
    """Stop with every complaint at once, before anything starts."""
    found = webhook_complaints(os.environ)
    if found:
        sys.stderr.write("The webhook cannot start:\n")
        sys.stderr.writelines(f"  {complaint}\n" for complaint in found)
        sys.exit(1)


def post_worker_init(_worker: Any) -> None:  # noqa: ANN401
    """Spare what lives as long as the process from being looked through again."""
    gc.collect()
    gc.freeze()
