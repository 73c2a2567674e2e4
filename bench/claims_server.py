"""The real extender with its arbiter over a cluster in memory, and an echo beside it.

gunicorn runs ``bench.claims_server:build()`` with the extender's own configuration. The
echo, on the same port and over the same TLS, parses the same body and allows all.
"""

import os
from threading import Event

from bench.server import beside_echo, node_json
from bench.webhook_server import let_through
from extender.main import assemble_extender
from extender.settings import ExtenderSettings
from gpushare.kube.cluster import Kind
from gpushare.server.asgi import Application
from gpushare.server.listener import Listener
from gpusharectl.demo.fakeapi.cluster import Embedded


def build() -> Application:
    """Serve the extender of a cluster of BENCH_NODES nodes, and the echo."""
    cluster = Embedded()
    for number in range(int(os.environ["BENCH_NODES"])):
        cluster.create(Kind.NODES, node_json(f"node-{number}"))
    settings, _ = ExtenderSettings.read(os.environ)
    extender = assemble_extender(settings, cluster, Event())
    Listener({settings.public_listen: extender.public}).start()
    return beside_echo(extender.inner, let_through)
