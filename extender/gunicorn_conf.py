"""gunicorn's settings: one worker, many threads, long keep-alive.

One worker, because the ledger is memory and two would be two books for the same cards;
so the signals by which gunicorn adds or exchanges workers are ignored. Long keep-alive,
because a connection that we close while kube-scheduler sends a POST on it costs a
scheduling cycle: Go does not send a POST again.
"""

import os
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

from extender.main import complaints
from extender.server.tls import ServerTls
from extender.server.workers import WholeRequestTlsSocket
from extender.settings import ExtenderSettings

_settings, _ = ExtenderSettings.read(os.environ)

bind = [str(_settings.listen)]
workers = 1
# gunicorn's threaded one, but no thread waits for a slow client, and each is quicker to
# take up a client's next request.
worker_class = "extender.server.workers.LingeringWorker"
# With the public listener's 64 within 1,024, the most descriptors by default: without
# one left, gunicorn's worker ends.
worker_connections = 900
threads = _settings.threads
keepalive = 3600
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
if _settings.tls:
    certfile, keyfile = _settings.tls.cert, _settings.tls.key
    ca_certs = _settings.tls.client_ca
    cert_reqs = ssl.CERT_REQUIRED
    ssl_context = ServerTls(_settings.tls, WholeRequestTlsSocket).context
    do_handshake_on_connect = False


def on_starting(_server: Any) -> None:  # noqa: ANN401
    """Stop with every complaint at once, before anything starts."""
    found = complaints(os.environ)
    if found:
        sys.stderr.write("The extender cannot start:\n")
        sys.stderr.writelines(f"  {complaint}\n" for complaint in found)
        sys.exit(1)


def when_ready(_server: Any) -> None:  # noqa: ANN401
    """Ignore the signals that would make a second worker."""
    for name in ("SIGHUP", "SIGTTIN", "SIGTTOU", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
