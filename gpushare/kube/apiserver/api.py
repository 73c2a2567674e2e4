"""Two clients of a real API server over one kind of connection.

``ApiServer`` reads and watches a few kinds in bulk and makes a few fast writes.
``ApiObjects`` reads and writes single objects of any kind, whose paths it finds by the
API server's discovery.
"""

import ssl
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import orjson
from kubernetes import client

from gpushare.kube.apiserver.client import (
    JSON,
    ApiConnection,
    cut_managed_fields,
    translating_errors,
)
from gpushare.kube.apiserver.port_forward import fetch_page
from gpushare.kube.cluster import (
    Json,
    Kind,
    ListPage,
    PodTarget,
    Resource,
    WatchEvent,
    patch_of_marks,
    patch_of_taints,
    pod_event,
    version_path,
)
from gpushare.kube.errors import Gone, Invalid, NotFound, Unavailable, error_for
from gpushare.kube.names import COMPONENT
from gpushare.kube.objects import FIELD_MANAGER, Ref

_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"
_JSON_PATCH = "application/json-patch+json"
_OURS = {"fieldManager": FIELD_MANAGER}
_DRY_RUN = {"dryRun": "All"}


class ApiServer(ApiConnection):
    """``Cluster`` over HTTP. All methods raise ``ClusterError``s and nothing else."""

    LIST_TIMEOUT_S = 30.0
    GET_TIMEOUT_S = 3.0
    WATCH_GRACE_S = 10.0
    """A watch may be silent for so long past its end; then the connection is dead."""

    def __init__(
        self, api: client.ApiClient, *, watch_grace_s: float = WATCH_GRACE_S
    ) -> None:
        super().__init__(api)
        self._watch_grace_s = watch_grace_s

    def list_page(
        self,
        kind: Kind,
        *,
        limit: int,
        continue_token: str = "",
        field_selector: str = "",
    ) -> ListPage:
        query = _set(
            limit=str(limit),
            fieldSelector=field_selector,
            **{"continue": continue_token},
        )
        path = kind.resource.collection()
        page = self._read_page(
            path,
            timeout_s=self.LIST_TIMEOUT_S,
            query=query,
            trimmed=cut_managed_fields,
        )
        if not page.resource_version:
            raise Unavailable(f"the list of {kind} has no resource version")
        return page

    def watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        timeout_s: float,
        field_selector: str = "",
    ) -> Iterator[WatchEvent]:
        query = _set(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(max(1, round(timeout_s))),
            fieldSelector=field_selector,
        )
        path = kind.resource.collection()
        silence_s = timeout_s + self._watch_grace_s
        for line in self._read_lines(path, timeout_s=silence_s, query=query):
            with translating_errors():
                event = _event(line)
            yield event

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        path = kind.resource.object(namespace, name)
        return self._read(path, timeout_s=self.GET_TIMEOUT_S)

    def create(self, kind: Kind, body: Json, *, dry_run: bool = False) -> Json:
        path = kind.resource.collection(body["metadata"].get("namespace", ""))
        return self._send("POST", path, body, JSON, _DRY_RUN if dry_run else None)

    def replace(self, kind: Kind, body: Json) -> Json:
        metadata = body["metadata"]
        namespace = metadata.get("namespace", "")
        path = kind.resource.object(namespace, metadata["name"])
        return self._send("PUT", path, body)

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        path = kind.resource.object(namespace, name)
        self._exchange("DELETE", path, timeout_s=self.WRITE_TIMEOUT_S)

    def bind(
        self,
        pod: PodTarget,
        node: str,
        annotations: Mapping[str, str],
        *,
        timeout_s: float,
    ) -> None:
        metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata | {"annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = Kind.PODS.resource.object(pod.namespace, pod.name)
        self._post(f"{path}/binding", body, timeout_s)

    def annotate(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        self._merge(kind, namespace, name, patch_of_marks(annotations, labels))

    def set_taints(
        self, node: str, taints: Sequence[Json], resource_version: str
    ) -> None:
        self._merge(Kind.NODES, "", node, patch_of_taints(taints, resource_version))

    def evict(self, pod: PodTarget) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = Kind.PODS.resource.object(pod.namespace, pod.name)
        self._post(f"{path}/eviction", body, self.WRITE_TIMEOUT_S)

    def event(
        self,
        pod: PodTarget,
        *,
        kind: str,
        reason: str,
        message: str,
        component: str = COMPONENT,
        host: str = "",
    ) -> None:
        source = {"component": component, "host": host}
        body = pod_event(pod, kind, reason, message, source, datetime.now(UTC))
        path = Kind.EVENTS.resource.collection(pod.namespace)
        self._post(path, body, self.WRITE_TIMEOUT_S)

    def _merge(self, kind: Kind, namespace: str, name: str, patch: Json) -> None:
        self._exchange(
            "PATCH",
            kind.resource.object(namespace, name),
            timeout_s=self.WRITE_TIMEOUT_S,
            body=patch,
            content_type=_MERGE,
        )


def _set(**query: str) -> dict[str, str]:
    return {key: value for key, value in query.items() if value}


def _event(line: bytes) -> WatchEvent:
    """Parse one line of a watch; raise the error of an ``ERROR`` event."""
    raw = orjson.loads(cut_managed_fields(line))
    if raw["type"] != "ERROR":
        _ = raw["object"]["metadata"]["resourceVersion"]
        return WatchEvent(raw["type"], raw["object"])
    status = raw["object"]
    message = str(status.get("message", "the watch failed"))
    if status.get("reason") in ("Expired", "Gone"):
        raise Gone(message)
    raise error_for(int(status.get("code") or 0), message)


def _resources(api_version: str, discovery: Json) -> Iterator[Resource]:
    try:
        for entry in discovery["resources"]:
            # Subresources have kinds too: pods/status is also a Pod.
            if "/" not in (name := entry["name"]):
                namespaced = entry["namespaced"]
                yield Resource(api_version, entry["kind"], name, namespaced)
    except (KeyError, TypeError) as error:
        raise Unavailable(
            f"the list of {version_path(api_version)} is not understood: {error!r}"
        ) from error


class ApiObjects(ApiConnection):
    """``Objects`` over HTTP. All methods raise ``ClusterError``s and nothing else."""

    READ_TIMEOUT_S = 10.0
    LIST_TIMEOUT_S = 60.0
    WRITE_TIMEOUT_S = 35.0
    """More than the 30 s that one slow admission webhook may take."""

    def __init__(self, api: client.ApiClient, *, page: int = 500) -> None:
        super().__init__(api)
        self._page = page
        self._known: dict[tuple[str, str], Resource] = {}

    def version(self) -> str:
        with translating_errors():
            return str(self._ask("/version")["gitVersion"])

    def serves(self, api_version: str, kind: str) -> bool:
        try:
            self._resource(api_version, kind)
        except NotFound:
            return False
        return True

    def may(self, verb: str, resource: str, namespace: str = "") -> bool:
        whole, _, subresource = resource.partition("/")
        plural, _, group = whole.partition(".")
        attributes = {
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": subresource,
            "namespace": namespace,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self._send("POST", path, body)
        with translating_errors():
            return bool(answer["status"]["allowed"])

    def get(self, ref: Ref) -> Json | None:
        """None also for a kind that is not served.

        An aggregated API that is down raises ``Unavailable``.
        """
        try:
            return self._ask(self._path(ref))
        except NotFound:
            return None

    def list(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> Sequence[Json]:
        path = self._resource(api_version, kind).collection(namespace)
        query = _set(labelSelector=label_selector, fieldSelector=field_selector)
        try:
            items = self._pages(path, {**query, "limit": str(self._page)})
        except Gone:
            # The continue token expired before the last page: read all in one page.
            items = self._pages(path, query)
        api_kind = {"apiVersion": api_version, "kind": kind}
        return tuple({**api_kind, **item} for item in items)

    def apply(self, body: Json, *, dry_run: bool = False) -> Json:
        query = {**_OURS, "force": "true", **(_DRY_RUN if dry_run else {})}
        with _well_formed():
            path = self._path(Ref.of(body))
        return self._send("PATCH", path, body, _APPLY, query)

    def create(self, body: Json, *, dry_run: bool = False) -> Json:
        query = {**_OURS, **(_DRY_RUN if dry_run else {})}
        with _well_formed():
            where = body["metadata"].get("namespace", "")
            resource = self._resource(body["apiVersion"], body["kind"])
            path = resource.collection(where)
        return self._send("POST", path, body, JSON, query)

    def merge(self, ref: Ref, patch: Json, *, subresource: str = "") -> Json:
        path = self._path(ref, subresource)
        return self._send("PATCH", path, patch, _MERGE, _OURS)

    def json_patch(
        self,
        ref: Ref,
        steps: Sequence[Mapping[str, object]],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        path = self._path(ref, subresource)
        query = {**_OURS, **(_DRY_RUN if dry_run else {})}
        return self._send("PATCH", path, [*map(dict, steps)], _JSON_PATCH, query)

    def delete(self, ref: Ref, *, grace_period_s: int | None = None) -> bool:
        options: Json = {"propagationPolicy": "Background"}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        try:
            self._send("DELETE", self._path(ref), options)
        except NotFound:
            return False
        return True

    def log(
        self, namespace: str, pod: str, container: str = "", *, lines: int = 50
    ) -> str:
        query = {"tailLines": str(lines)}
        if container:
            query["container"] = container
        path = self._path(Ref("v1", "Pod", pod, namespace), "log")
        text = self._exchange("GET", path, timeout_s=self.READ_TIMEOUT_S, query=query)
        return text.decode(errors="replace")

    def fetch(
        self,
        namespace: str,
        pod: str,
        port: int,
        path: str,
        *,
        tls: tuple[ssl.SSLContext, str] | None = None,
    ) -> bytes:
        ref = Ref("v1", "Pod", pod, namespace)
        return fetch_page(self._api, ref, port, path, tls=tls)

    def _pages(self, path: str, query: Mapping[str, str]) -> Sequence[Json]:
        items: deque[Json] = deque()
        token = ""
        while True:
            page_query = {**query, "continue": token} if token else query
            page = self._read_page(
                path, timeout_s=self.LIST_TIMEOUT_S, query=page_query
            )
            items += page.items
            token = page.continue_token
            if not token:
                return items

    def _resource(self, api_version: str, kind: str) -> Resource:
        """Find a kind by discovery, which reads each group and version once.

        Raises ``NotFound`` if the API server does not serve it.
        """
        key = (api_version, kind)
        if key not in self._known:
            with suppress(NotFound):
                discovery = self._ask(version_path(api_version))
                for resource in _resources(api_version, discovery):
                    self._known[api_version, resource.kind] = resource
        if key not in self._known:
            raise NotFound(f"the API server does not serve {kind} of {api_version}")
        return self._known[key]

    def _path(self, ref: Ref, subresource: str = "") -> str:
        """Return an object's path; ``Invalid`` where its namespace is missing."""
        resource = self._resource(ref.api_version, ref.kind)
        if not ref.name:
            raise Invalid(f"{ref}: give a name")
        if resource.namespaced and not ref.namespace:
            raise Invalid(f"{ref}: give its namespace")
        path = resource.object(ref.namespace, ref.name)
        return f"{path}/{subresource}" if subresource else path

    def _ask(self, path: str) -> Json:
        return self._read(path, timeout_s=self.READ_TIMEOUT_S)


@contextmanager
def _well_formed() -> Iterator[None]:
    """Raise ``Invalid`` if an object lacks what is needed to find its path."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        raise Invalid(
            "the object is not a Kubernetes object: it needs apiVersion, kind and "
            f"metadata.name ({error!r})"
        ) from error
