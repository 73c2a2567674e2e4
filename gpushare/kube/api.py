"""A real API server, through the kubernetes client.

Its configuration, authentication, TLS and typed writes are the client's; lists and
watches are read raw, which is 20 times less work a pod (contracts 7).
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

import orjson
import urllib3
from kubernetes import client

from gpushare.kube.client import CONNECT_TIMEOUT_S, dial, hang_up, translated
from gpushare.kube.cluster import Json, Kind, Page, Target, WatchEvent, pod_event
from gpushare.kube.errors import Gone, Unavailable, error_for
from gpushare.kube.names import COMPONENT

LIST_TIMEOUT_S = 30.0
GET_TIMEOUT_S = 3.0
WRITE_TIMEOUT_S = 10.0
WATCH_GRACE_S = 10.0
"""How long a watch may be silent past its end before the connection counts as dead."""
_JSON = {"Content-Type": "application/json"}
_MERGE = "application/merge-patch+json"


class ApiServer:
    """``Cluster`` over HTTP. Every method raises ``ClusterError``s and nothing else."""

    def __init__(
        self, api: client.ApiClient, *, watch_grace_s: float = WATCH_GRACE_S
    ) -> None:
        self._api = api
        self._watch_grace_s = watch_grace_s
        self._core = client.CoreV1Api(api)
        self._policy = client.PolicyV1Api(api)

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Use a kubeconfig, or the pod's own service account where none is given.

        Raises ``Unavailable``, with what is wrong, when there is neither.
        """
        return cls(dial(kubeconfig, context))

    def close(self) -> None:
        """Close the connections."""
        hang_up(self._api)

    def list_page(
        self,
        kind: Kind,
        *,
        limit: int,
        continue_token: str = "",
        field_selector: str = "",
    ) -> Page:
        """Read one page; see ``Cluster``."""
        wanted: dict[str, Any] = {"limit": limit}
        if continue_token:
            wanted["_continue"] = continue_token
        if field_selector:
            wanted["field_selector"] = field_selector
        body = self._read(self._lister(kind), timeout_s=LIST_TIMEOUT_S, **wanted)
        with translated():
            metadata = body["metadata"]
            items = tuple(body["items"] or ())
            version = metadata["resourceVersion"]
            return Page(items, version, metadata.get("continue") or "")

    def watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        timeout_s: float,
        field_selector: str = "",
    ) -> Iterator[WatchEvent]:
        """Follow changes; see ``Cluster``."""
        wanted: dict[str, Any] = {
            "watch": True,
            "allow_watch_bookmarks": True,
            "resource_version": resource_version,
            "timeout_seconds": max(1, round(timeout_s)),
        }
        if field_selector:
            wanted["field_selector"] = field_selector
        silence = timeout_s + self._watch_grace_s
        with translated():
            response = self._lister(kind)(
                _preload_content=False,
                _request_timeout=(CONNECT_TIMEOUT_S, silence),
                **wanted,
            )
            try:
                for line in _lines(response):
                    yield _event(line)
            finally:
                response.close()

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Read one object; see ``Cluster``."""
        match kind:
            case Kind.PODS:
                return self._read(self._core.read_namespaced_pod, name, namespace)
            case Kind.NODES:
                return self._read(self._core.read_node, name)
            case Kind.EVENTS:
                return self._read(self._core.read_namespaced_event, name, namespace)
            case Kind.BUDGETS:
                read = self._policy.read_namespaced_pod_disruption_budget
                return self._read(read, name, namespace)

    def bind(
        self,
        pod: Target,
        node: str,
        annotations: Mapping[str, str],
        *,
        timeout_s: float,
    ) -> None:
        """Bind and annotate in one write; see ``Cluster``."""
        metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata | {"annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._write(
            partial(self._core.create_namespaced_pod_binding, _headers=_JSON),
            pod.name,
            pod.namespace,
            body,
            timeout_s=timeout_s,
        )

    def annotate(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
    ) -> None:
        """Merge annotations; see ``Cluster``."""
        body = {"metadata": {"annotations": dict(annotations)}}
        if kind is Kind.NODES:
            self._write(
                partial(self._core.patch_node, _content_type=_MERGE), name, body
            )
        else:
            patch = partial(self._core.patch_namespaced_pod, _content_type=_MERGE)
            self._write(patch, name, namespace, body)

    def evict(self, pod: Target) -> None:
        """Delete by the Eviction API; see ``Cluster``."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        create = partial(self._core.create_namespaced_pod_eviction, _headers=_JSON)
        self._write(create, pod.name, pod.namespace, body)

    def event(
        self,
        pod: Target,
        *,
        kind: str,
        reason: str,
        message: str,
        component: str = COMPONENT,
        host: str = "",
    ) -> None:
        """Write an event about a pod; see ``Cluster``."""
        now = datetime.now(UTC)
        source = {"component": component, "host": host}
        body = pod_event(pod, kind, reason, message, source, now)
        create = partial(self._core.create_namespaced_event, _headers=_JSON)
        self._write(create, pod.namespace, body)

    def _lister(self, kind: Kind) -> Callable[..., Any]:
        listers: dict[Kind, Callable[..., Any]] = {
            Kind.PODS: self._core.list_pod_for_all_namespaces,
            Kind.NODES: self._core.list_node,
            Kind.EVENTS: self._core.list_event_for_all_namespaces,
            Kind.BUDGETS: self._policy.list_pod_disruption_budget_for_all_namespaces,
        }
        return listers[kind]

    def _read(
        self,
        call: Callable[..., Any],
        *where: str,
        timeout_s: float = GET_TIMEOUT_S,
        **wanted: Any,  # noqa: ANN401
    ) -> Json:
        timeout = (CONNECT_TIMEOUT_S, timeout_s)
        with translated():
            response = call(
                *where, _preload_content=False, _request_timeout=timeout, **wanted
            )
            try:
                found = orjson.loads(response.read())
            finally:
                response.release_conn()
        if not isinstance(found, dict):
            raise Unavailable("the API server's answer is no object")
        return found

    def _write(
        self,
        call: Callable[..., Any],
        *what: Any,  # noqa: ANN401
        timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        """Send, and read the answer to its end, so that the connection is kept."""
        timeout = (min(CONNECT_TIMEOUT_S, timeout_s), timeout_s)
        with translated():
            response = call(*what, _preload_content=False, _request_timeout=timeout)
            response.read()
            response.release_conn()


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)
    if rest:
        yield rest


def _event(line: bytes) -> WatchEvent:
    """Read one line of a watch; an ERROR becomes the exception that it speaks of."""
    raw = orjson.loads(line)
    if raw["type"] != "ERROR":
        _ = raw["object"]["metadata"]["resourceVersion"]
        return WatchEvent(raw["type"], raw["object"])
    status = raw["object"]
    message = str(status.get("message", "the watch failed"))
    if status.get("reason") in ("Expired", "Gone"):
        raise Gone(message)
    raise error_for(int(status.get("code") or 0), message)
