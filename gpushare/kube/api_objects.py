"""A real API server's objects, through the kubernetes client.

The client gives connections, TLS and credentials; paths and bodies are ours, since
objects of any kind go through, and its models know none of tomorrow's fields.

Where an API server keeps the objects of a kind, by what it says of itself.
"""

import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self
from urllib.parse import quote

import orjson
from kubernetes import client

from gpushare.kube.client import CONNECT_TIMEOUT_S, dial, hang_up, refused, translated
from gpushare.kube.cluster import Json
from gpushare.kube.errors import Gone, Invalid, NotFound, Unavailable
from gpushare.kube.objects import FIELD_MANAGER, Ref
from gpushare.kube.port_forward import fetched


@dataclass(frozen=True, slots=True)
class Resource:
    """What discovery tells of a kind."""

    path: str
    """Of its group and version: ``/api/v1``, ``/apis/apps/v1``."""
    plural: str
    namespaced: bool


class Paths:
    """Paths of objects; asks for each group and version once, when it is first met.

    ``ask`` reads a path of the API server and raises ``ClusterError``s.
    """

    def __init__(self, ask: Callable[[str], Json]) -> None:
        self._ask = ask
        self._known: dict[tuple[str, str], Resource] = {}

    def resource(self, api_version: str, kind: str) -> Resource:
        """Find a kind; ``NotFound`` where the API server does not serve it."""
        key = (api_version, kind)
        if key not in self._known:
            path = group_path(api_version)
            try:
                listed = self._ask(path)
            except NotFound as error:
                raise _not_served(api_version, kind) from error
            self._known |= _resources(api_version, path, listed)
        if key not in self._known:
            raise _not_served(api_version, kind)
        return self._known[key]

    def of(self, ref: Ref, subresource: str = "") -> str:
        """Return an object's path; ``Invalid`` where its namespace is missing."""
        found = self.resource(ref.api_version, ref.kind)
        if not ref.name:
            raise Invalid(f"{ref}: give a name")
        if found.namespaced and not ref.namespace:
            raise Invalid(f"{ref}: give its namespace")
        path = f"{_folder(found, ref.namespace)}/{quote(ref.name, safe='')}"
        return f"{path}/{subresource}" if subresource else path

    def collection(self, api_version: str, kind: str, namespace: str = "") -> str:
        """Return the path of all objects of a kind, or of those in a namespace."""
        return _folder(self.resource(api_version, kind), namespace)


@dataclass(frozen=True, slots=True)
class ResourceName:
    """A resource as reviews of access name it."""

    resource: str
    group: str = ""
    subresource: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``pods``, ``daemonsets.apps``, ``pods/portforward``.

        >>> ResourceName.parse("deployments.apps/scale").group
        'apps'
        """
        whole, _, subresource = text.partition("/")
        resource, _, group = whole.partition(".")
        return cls(resource, group, subresource)


def review(verb: str, name: ResourceName, namespace: str) -> Json:
    """Write the question whether we may; no namespace is all of them."""
    asked = {
        "verb": verb,
        "group": name.group,
        "resource": name.resource,
        "subresource": name.subresource,
        "namespace": namespace,
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }


def group_path(api_version: str) -> str:
    """Return the path of a group and version.

    >>> group_path("v1"), group_path("apps/v1")
    ('/api/v1', '/apis/apps/v1')
    """
    return f"/{'apis' if '/' in api_version else 'api'}/{api_version}"


def _folder(resource: Resource, namespace: str) -> str:
    if resource.namespaced and namespace:
        inside = quote(namespace, safe="")
        return f"{resource.path}/namespaces/{inside}/{resource.plural}"
    return f"{resource.path}/{resource.plural}"


def _resources(
    api_version: str, path: str, listed: Json
) -> dict[tuple[str, str], Resource]:
    try:
        return {
            (api_version, one["kind"]): Resource(path, one["name"], one["namespaced"])
            for one in listed["resources"]
            # pods/status is of kind Pod too, pods/eviction of a kind of its own.
            if "/" not in one["name"]
        }
    except (KeyError, TypeError) as error:
        raise Unavailable(f"the list of {path} is not understood: {error!r}") from error


def _not_served(api_version: str, kind: str) -> NotFound:
    return NotFound(f"the API server does not serve {kind} of {api_version}")


READ_TIMEOUT_S = 10.0
LIST_TIMEOUT_S = 60.0
WRITE_TIMEOUT_S = 35.0
"""Over the 30 s that one slow admission webhook may take."""
PAGE = 500
_JSON = "application/json"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_OURS = {"fieldManager": FIELD_MANAGER}
_TRIED = {"dryRun": "All"}


class ApiObjects:
    """``Objects`` over HTTP. Every method raises ``ClusterError``s and nothing else."""

    def __init__(self, api: client.ApiClient, *, page: int = PAGE) -> None:
        self._api = api
        self._page = page
        self._paths = Paths(self._ask)

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Use a kubeconfig, or the pod's own service account where none is given.

        Raises ``Unavailable``, with what is wrong, when there is neither.
        """
        return cls(dial(kubeconfig, context))

    def close(self) -> None:
        """Close the connections."""
        hang_up(self._api)

    @property
    def host(self) -> str:
        """The API server's address, for sentences about it."""
        return str(self._api.configuration.host)

    def version(self) -> str:
        """Return the API server's version; see ``Objects``."""
        with translated():
            return str(self._ask("/version")["gitVersion"])

    def serves(self, api_version: str, kind: str) -> bool:
        """Return whether it knows this kind; see ``Objects``."""
        try:
            self._paths.resource(api_version, kind)
        except NotFound:
            return False
        return True

    def may(self, verb: str, resource: str, namespace: str = "") -> bool:
        """Ask whether we may; see ``Objects``."""
        body = review(verb, ResourceName.parse(resource), namespace)
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self._send("POST", path, body)
        with translated():
            return bool(answer["status"]["allowed"])

    def get(self, ref: Ref) -> Json | None:
        """Read one object; see ``Objects``. Of a kind that is not served there is none.

        An aggregated API that is down is told apart: ``Unavailable``.
        """
        try:
            return self._ask(self._paths.of(ref))
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
        """Read all objects of a kind; see ``Objects``."""
        path = self._paths.collection(api_version, kind, namespace)
        wanted = {"labelSelector": label_selector, "fieldSelector": field_selector}
        query = {key: value for key, value in wanted.items() if value}
        try:
            found = self._pages(path, {**query, "limit": str(self._page)})
        except Gone:
            # A later page came too late for the first one's moment.
            found = self._pages(path, query)
        own = {"apiVersion": api_version, "kind": kind}
        return tuple({**own, **item} for item in found)

    def apply(self, body: Json, *, dry_run: bool = False) -> Json:
        """Apply on the server's side; see ``Objects``."""
        query = {**_OURS, "force": "true", **(_TRIED if dry_run else {})}
        with _well_formed():
            path = self._paths.of(Ref.of(body))
        return self._send("PATCH", path, body, _APPLY, query)

    def create(self, body: Json, *, dry_run: bool = False) -> Json:
        """Add an object; see ``Objects``."""
        query = {**_OURS, **(_TRIED if dry_run else {})}
        with _well_formed():
            where = body["metadata"].get("namespace", "")
            path = self._paths.collection(body["apiVersion"], body["kind"], where)
        return self._send("POST", path, body, _JSON, query)

    def merge(self, ref: Ref, patch: Json, *, subresource: str = "") -> Json:
        """Merge a patch into an object; see ``Objects``."""
        path = self._paths.of(ref, subresource)
        return self._send("PATCH", path, patch, _MERGE, _OURS)

    def json_patch(
        self,
        ref: Ref,
        steps: Sequence[Mapping[str, object]],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        """Change an object by a JSON patch; see ``Objects``."""
        path = self._paths.of(ref, subresource)
        query = {**_OURS, **(_TRIED if dry_run else {})}
        return self._send("PATCH", path, [*map(dict, steps)], _JSON_PATCH, query)

    def delete(self, ref: Ref, *, grace_period_s: int | None = None) -> bool:
        """Delete an object; see ``Objects``."""
        options: Json = {"propagationPolicy": "Background"}
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        try:
            self._send("DELETE", self._paths.of(ref), options)
        except NotFound:
            return False
        return True

    def log(
        self, namespace: str, pod: str, container: str = "", *, lines: int = 50
    ) -> str:
        """Read the last lines that a container has written; see ``Objects``."""
        query = {"tailLines": str(lines)}
        if container:
            query["container"] = container
        path = self._paths.of(Ref("v1", "Pod", pod, namespace), "log")
        said = self._exchange("GET", path, None, "", query, READ_TIMEOUT_S)
        return said.decode(errors="replace")

    def fetch(
        self,
        namespace: str,
        pod: str,
        port: int,
        path: str,
        *,
        tls: tuple[ssl.SSLContext, str] | None = None,
    ) -> bytes:
        """GET a page from a pod's loopback, by port-forward; see ``Objects``.

        ``tls`` is the context for a port that wants TLS, and the server's name.
        """
        ref = Ref("v1", "Pod", pod, namespace)
        return fetched(self._api, ref, port, path, tls=tls)

    def _pages(self, path: str, query: Mapping[str, str]) -> Sequence[Json]:
        found: deque[Json] = deque()
        token = ""
        while True:
            more = {**query, "continue": token} if token else query
            answer = self._ask(path, more, LIST_TIMEOUT_S)
            with translated():
                found += answer["items"] or ()
                token = answer["metadata"].get("continue") or ""
            if not token:
                return found

    def _ask(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> Json:
        return _object(self._exchange("GET", path, None, "", query, timeout_s))

    def _send(
        self,
        method: str,
        path: str,
        body: object,
        kind: str = _JSON,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        return _object(self._exchange(method, path, body, kind, query, WRITE_TIMEOUT_S))

    def _exchange(
        self,
        method: str,
        path: str,
        body: object,
        kind: str,
        query: Mapping[str, str] | None,
        timeout_s: float,
    ) -> bytes:
        """Send one request and read its answer, which the client does not look at."""
        headers = {"Accept": _JSON} | ({"Content-Type": kind} if kind else {})
        with translated():
            request = self._api.param_serialize(
                method,
                path,
                query_params=[*(query or {}).items()],
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            timeout = (CONNECT_TIMEOUT_S, timeout_s)
            answer = self._api.call_api(*request, _request_timeout=timeout)
            said: bytes = answer.read()  # type: ignore[no-untyped-call]
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            after = answer.headers.get("Retry-After")
            raise refused(answer.status, answer.reason, said, after)
        return said


def _object(text: bytes) -> Json:
    with translated():
        found = orjson.loads(text)
    if not isinstance(found, dict):
        raise Unavailable("the API server's answer is no object")
    return found


@contextmanager
def _well_formed() -> Iterator[None]:
    """Say in a sentence what an object lacks that is needed to find its path."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        raise Invalid(
            "the object is not one of Kubernetes: it needs apiVersion, kind and "
            f"metadata.name ({error!r})"
        ) from error
