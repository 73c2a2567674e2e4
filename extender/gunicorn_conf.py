"""Configure gunicorn for the extender: one worker, many threads, long keep-alive.

One worker, because the ledger is in memory, and two would place pods on the same cards.
So the signals with which gunicorn adds or exchanges workers are ignored. Long
keep-alive, because Go does not repeat a POST: if the connection is closed while
kube-scheduler sends one, a scheduling cycle is lost.
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
# gunicorn's threaded worker, except that no thread waits for a slow client and a
# client's next request is answered sooner.
worker_class = "extender.server.workers.LingeringWorker"
# With the 64 of the public listener below 1,024, the usual limit of descriptors:
# without a free one, gunicorn's worker ends.
worker_connections = 900
threads = _settings.threads
keepalive = 3600
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
if _settings.tls:
    certfile, keyfile = _settings.tls.cert, _settings.tls.key
    ca_certs = _settings.tls.client_ca
    cert_reqs = ssl.CERT_REQUIRED
    ssl_context = ServerTls(_settings.tls, WholeRequestTlsSocket).context
    do_handshake_on_connect = False


def on_starting(_server: Any) -> None:  # noqa: ANN401
    """Exit with all complaints before anything starts."""
    found = complaints(os.environ)
    if found:
        sys.stderr.write("The extender cannot start:\n")
        sys.stderr.writelines(f"  {complaint}\n" for complaint in found)
        sys.exit(1)


def when_ready(_server: Any) -> None:  # noqa: ANN401
    """Ignore the signals that would start a second worker."""
    for name in ("SIGHUP", "SIGTTIN", "SIGTTOU", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
