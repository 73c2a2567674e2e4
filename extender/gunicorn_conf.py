"""Configure gunicorn for the extender: one worker, long keep-alive.

One worker, because the ledger is in memory, and two would place pods on the same cards.
So the signals with which gunicorn adds or exchanges workers are ignored. Long
keep-alive, because Go does not repeat a POST: if the connection is closed while
kube-scheduler sends one, a scheduling cycle is lost.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from extender.main import check_extender
from extender.settings import ExtenderSettings
from gpushare.server.tls import ServerTls
from gpushare.server.worker import make_worker_class

_settings, _ = ExtenderSettings.read(os.environ)

_claims = _settings.claims

bind = [str(_settings.listen), *([str(_claims.listen)] if _claims else [])]
workers = 1
# answer_s: /snapshot of a large cluster goes through a port-forward.
worker_class = make_worker_class(
    answer_s=30,
    graceful_s=9,
    context=ServerTls(_settings.tls).context if _settings.tls else None,
    by_port={_claims.listen.port: ServerTls(_claims.tls).context} if _claims else {},
)
worker_connections = 900
# uvicorn also accepts as many in one turn of its loop.
backlog = 256
keepalive = 3600
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
    problems = check_extender(os.environ)
    if problems:
        sys.stderr.write("The extender cannot start:\n")
        sys.stderr.writelines(f"  {complaint}\n" for complaint in problems)
        sys.exit(1)


def post_worker_init(_worker: Any) -> None:  # noqa: ANN401
    """Let the event loop go on within a millisecond while another thread computes.

    A page of metrics, or a list of pods, is computed in a thread. Python's own 5 ms
    would be added to each of a filter's steps that waits for it.
    """
    sys.setswitchinterval(0.001)


def when_ready(_server: Any) -> None:  # noqa: ANN401
    """Ignore the signals that would start a second worker."""
    for name in ("SIGHUP", "SIGTTIN", "SIGTTOU", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
