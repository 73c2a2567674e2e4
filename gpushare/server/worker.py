"""gunicorn's worker: uvicorn's event loop, with bounds on what its clients can take.

uvicorn's worker, its configuration and its ``http`` class are documented extension
points. Everything here that is not about bounds is a setting of uvicorn.
"""

import asyncio
import logging
import os
import resource
import signal
from collections.abc import Mapping
from functools import partial
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState
from uvicorn_worker import UvicornWorker

from gpushare.server.asgi import CONNECTION
from gpushare.server.connections import (
    SAME_FOR_ALL,
    ClientConnection,
    Connections,
    Context,
)

_DESCRIPTORS = 4096
"""For all connections and, in a flood, those of a few turns of the loop: each accepts
as many as ``backlog`` says, and closes them in the turns after it."""


def make_worker_class(
    *,
    answer_s: float,
    graceful_s: int,
    context: Context | None = None,
    by_port: Mapping[int, Context] = SAME_FOR_ALL,
) -> type[UvicornWorker]:
    """Make the class for gunicorn's ``worker_class``.

    ``answer_s`` is the time within which a client has to take an answer, ``context``
    gives the TLS context of each new connection, and ``by_port`` that of connections to
    some of the ports. ``worker_connections`` of gunicorn is the most connections at a
    time.
    """

    class Worker(UvicornWorker):  # type: ignore[misc]
        """Serve an ASGI application; end when gunicorn's master is gone."""

        CONFIG_KWARGS = {  # noqa: RUF012  the base class has it so
            "loop": "asyncio",
            "ws": "none",
            "lifespan": "off",
            "interface": "asgi3",
            # There is no proxy in front: headers that claim one are not true.
            "proxy_headers": False,
            "server_header": False,
            "access_log": False,
            "timeout_notify": 1,
            "timeout_graceful_shutdown": graceful_s,
        }

        def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
            super().__init__(*args, **kwargs)
            connections = Connections(
                most=self.cfg.worker_connections, answer_s=answer_s
            )
            self.config.http = partial(_connection, connections, context, by_port)
            # To our own log. What it warns of is what any client may send it.
            log = logging.getLogger("uvicorn.error")
            log.handlers, log.propagate = [], True
            log.setLevel(logging.ERROR)

        def init_process(self) -> None:
            """Start, with descriptors for a flood of connections."""
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft < _DESCRIPTORS:
                most = _DESCRIPTORS if hard < 0 else min(_DESCRIPTORS, hard)
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            super().init_process()

        async def callback_notify(self) -> None:
            """Tell the master that the loop runs; end if there is no master.

            A worker that outlives it would be a second ledger for the same cards.
            """
            await super().callback_notify()
            if os.getppid() != self.ppid:
                os.kill(os.getpid(), signal.SIGTERM)

    return Worker


class _Http(HttpToolsProtocol):
    """uvicorn's own, which would hang up between two requests when the process ends."""

    def __init__(self, connection: ClientConnection, *args: Any) -> None:  # noqa: ANN401
        super().__init__(*args)
        self._connection = connection

    def shutdown(self) -> None:
        """Begin to end the connection; uvicorn waits until it is closed."""
        self._connection.end()


def _connection(
    connections: Connections,
    context: Context | None,
    by_port: Mapping[int, Context],
    config: Config,
    server_state: ServerState,
    app_state: dict[str, Any],
    _loop: asyncio.AbstractEventLoop | None = None,
) -> ClientConnection:
    """Make the protocol of one connection, as uvicorn makes its own."""

    def serve(connection: ClientConnection) -> asyncio.Protocol:
        state = app_state | {CONNECTION: connection}
        return _Http(connection, config, server_state, state, _loop)

    return ClientConnection(connections, serve, context, by_port)
