"""Where the contract is tried: a ``Cluster``, and the means to arrange its world.

``arrange`` has the shape of ``Embedded``'s own writes, so that it needs no seat of its
own; ``OverRest`` does the same to any API server by its base URL and a token.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpushare.kube.apiserver.api import ApiServer
from gpushare.kube.cluster import Cluster, Json, Kind, ListPage, WatchEvent
from gpusharectl.demo.fakeapi.cluster import Embedded
from tests.testbed.objects import new_namespace
from tests.testbed.rest import Rest

PATIENCE_S = 20.0


class OverRest:
    """Arranges over HTTP; ``sweep`` takes away what it made."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self._rest = Rest(parts.port, token, tls=parts.scheme == "https")
        self._made: list[tuple[Kind, str, str]] = []

    def create(self, kind: Kind, body: Json) -> Json:
        namespace = body["metadata"].get("namespace", "")
        made = self._rest.must("POST", path(kind, namespace), body)
        self._made.append((kind, namespace, made["metadata"]["name"]))
        return made

    def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        patch: Json,
        *,
        subresource: str = "",
    ) -> Json:
        where = path(kind, namespace, name)
        where = f"{where}/{subresource}" if subresource else where
        return self._rest.must("PATCH", where, patch)

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        grace_period_s: int | None = None,
    ) -> Json:
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        return self._rest.must("DELETE", path(kind, namespace, name), options)

    def namespace(self) -> str:
        return new_namespace(self._rest)

    def sweep(self) -> None:
        options = {"gracePeriodSeconds": 0}
        for kind, namespace, name in self._made:
            self._rest.delete(path(kind, namespace, name), options)


@dataclass
class Seat:
    """One implementation, and names that nobody else uses on it."""

    cluster: Cluster
    arrange: Embedded | OverRest
    namespace: str
    compact: Callable[[], None] | None = None
    bookmark_within_s: float = 6.0
    """A watch as long as this, with a change elsewhere in between, has a bookmark."""
    prefix: str = field(default_factory=lambda: f"c{secrets.token_hex(4)}")

    @property
    def selector(self) -> str:
        """Choose our own pods.

        Not by ``metadata.namespace``: with that, and no namespace in the path, the real
        1.36.3 begins its second page anew.
        """
        return f"spec.schedulerName={self.prefix}"

    def name(self, rest: str) -> str:
        return f"{self.prefix}-{rest}"

    def pod(self, name: str, **spec: Any) -> Json:
        """Create a pod of one container; ``spec`` adds to its spec."""
        container = {"name": "main", "image": "local.test/pause:1"}
        base = {
            "automountServiceAccountToken": False,
            "containers": [container],
            "schedulerName": self.prefix,
        }
        metadata = {"name": self.name(name), "namespace": self.namespace}
        body = {"metadata": metadata, "spec": base | spec}
        return self.arrange.create(Kind.PODS, body)

    def node(self, name: str) -> Json:
        metadata = {"name": self.name(name)}
        return self.arrange.create(Kind.NODES, {"metadata": metadata})

    def label(self, pod: Json, **labels: str) -> Json:
        name = pod["metadata"]["name"]
        patch = {"metadata": {"labels": labels}}
        return self.arrange.patch(Kind.PODS, self.namespace, name, patch)

    def patch_status(self, pod: Json, **status: Any) -> Json:
        name, body = pod["metadata"]["name"], {"status": status}
        return self.arrange.patch(
            Kind.PODS, self.namespace, name, body, subresource="status"
        )

    def delete(self, pod: Json, grace_period_s: int | None = None) -> Json:
        name = pod["metadata"]["name"]
        return self.arrange.delete(
            Kind.PODS, self.namespace, name, grace_period_s=grace_period_s
        )

    def read(self, pod: Json) -> Json:
        name = pod["metadata"]["name"]
        return self.cluster.get(Kind.PODS, self.namespace, name)

    def version(self, kind: Kind = Kind.PODS) -> str:
        """The version to watch from in order to see what happens from now on."""
        return self.cluster.list_page(kind, limit=1).resource_version

    def pages(
        self, limit: int, selector: str = "", token: str = ""
    ) -> Iterator[ListPage]:
        while True:
            page = self.cluster.list_page(
                Kind.PODS, limit=limit, continue_token=token, field_selector=selector
            )
            yield page
            if not (token := page.continue_token):
                return

    def watch(
        self, version: str, count: int, selector: str = "", *, until: str = ""
    ) -> list[WatchEvent]:
        """Watch pods until so many events, of a type if named, came about our own."""
        seen: list[WatchEvent] = []
        stream = self.cluster.watch(
            Kind.PODS,
            resource_version=version,
            timeout_s=PATIENCE_S,
            field_selector=selector,
        )
        for event in stream:
            if event.type == "BOOKMARK" or not self.is_ours(event.object):
                continue
            seen.append(event)
            if sum(one.type == (until or one.type) for one in seen) == count:
                stream.close()  # type: ignore[attr-defined]
                break
        return seen

    def is_ours(self, thing: Json) -> bool:
        return bool(thing["metadata"]["name"].startswith(self.prefix))


def path(kind: Kind, namespace: str, name: str = "") -> str:
    parts = [kind.resource.version_path]
    parts += ["namespaces", namespace] if namespace else []
    return "/".join([*parts, kind.value, *([name] if name else [])])


def embedded_seat() -> Seat:
    cluster = Embedded(bookmark_every_s=0.1)
    return Seat(cluster, cluster, "default", cluster.compact, bookmark_within_s=1.0)


@contextmanager
def http_seat(
    url: str,
    token: str | None,
    kubeconfig: Path,
    *,
    namespace: str = "",
    compact: Callable[[], None] | None = None,
    bookmark_within_s: float = Seat.bookmark_within_s,
) -> Iterator[Seat]:
    """Reach any API server; without a namespace it makes one, and leaves it behind."""
    arrange = OverRest(url, token)
    cluster = ApiServer.connect(str(kubeconfig))
    try:
        where = namespace or arrange.namespace()
        yield Seat(cluster, arrange, where, compact, bookmark_within_s)
    finally:
        arrange.sweep()
        cluster.close()
