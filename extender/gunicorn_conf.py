"""Configure gunicorn for the extender: one worker, long keep-alive.

One worker, because the ledger is in memory, and two would place pods on the same cards.
So the signals with which gunicorn adds or exchanges workers are ignored. Long
keep-alive, because Go does not repeat a POST: if the connection is closed while
kube-scheduler sends one, a scheduling cycle is lost.
"""

import os
import signal
import sys
from typing import Any

from extender.main import check_extender
from extender.settings import ExtenderSettings
from gpushare.process import exit_with_complaints
from gpushare.server.gunicorn_defaults import *  # noqa: F403
from gpushare.server.tls import ServerTls
from gpushare.server.worker import make_worker_class

_settings, _ = ExtenderSettings.read(os.environ)

_claims = _settings.claims

bind = [str(_settings.listen), *([str(_claims.listen)] if _claims else [])]
# answer_s: /snapshot of a large cluster goes through a port-forward.
worker_class = make_worker_class(
    answer_s=30,
    graceful_s=9,
    context=ServerTls(_settings.tls).context if _settings.tls else None,
    by_port={_claims.listen.port: ServerTls(_claims.tls).context} if _claims else {},
)
keepalive = 3600


def on_starting(_server: Any) -> None:  # noqa: ANN401
    """Exit with all complaints before anything starts."""
    exit_with_complaints(check_extender(os.environ), "extender")


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
