"""The embedded cluster over loopback HTTP, at the API server's own paths.

A real kubectl works on it with its default flags, and so do the extender and the
device plugin, which cannot tell it from the real one by what they use of it.
"""

from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

import orjson

from gpushare.kube.embedded import Embedded
from gpushare.listening import LOOPBACK
from gpusharectl.demo.listener import Server
from gpusharectl.demo.verbs import Verbs

_POLL_S = 0.05
"""How soon the thread that accepts connections hears that it is to end."""


class ApiServerOnLoopback:
    """Serves a cluster to this machine alone, without TLS and without passwords.

    ``port`` 0 takes a free one. ``stop`` ends watches within the cluster's interval
    between bookmarks.
    """

    def __init__(self, cluster: Embedded, port: int = 0) -> None:
        self._server = Server(port, Verbs(cluster))
        self._thread = Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="demo-apiserver"
        )

    @property
    def url(self) -> str:
        """Where it serves: ``http://127.0.0.1:<port>``."""
        return f"http://{LOOPBACK}:{self._server.server_port}"

    def start(self) -> None:
        """Begin to serve; the port is taken since the constructor."""
        self._thread.start()

    def stop(self) -> None:
        """End all connections and give the port back."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.hang_up()
        self._server.server_close()

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for this server, readable by its owner alone."""
        name = "gpushare-demo"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": self.url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        return path

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
