"""The Protocol ``Cluster``: an API server as the processes use it, raw JSON in and out.

``ApiServer`` uses a real one and ``Embedded`` is one in memory; one contract suite
(``tests/contract/test_cluster.py``) tests both. Objects are plain dicts in the shape of
the Kubernetes API; ``codec`` and ``facts`` read them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, Protocol, Self
from urllib.parse import quote

from gpushare.kube.names import COMPONENT

Json = dict[str, Any]
"""One Kubernetes object, or a part of one, as JSON gives it."""

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
"""The type of a watch event; a bookmark only brings a newer resource version."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object as discovery describes it, and where the API has it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def version_path(self) -> str:
        """The path of its group's version: ``/api/v1``, ``/apis/apps/v1``."""
        return version_path(self.api_version)

    def collection(self, namespace: str = "") -> str:
        """Return the path of all objects, or of those in a namespace."""
        if self.namespaced and namespace:
            inside = quote(namespace, safe="")
            return f"{self.version_path}/namespaces/{inside}/{self.plural}"
        return f"{self.version_path}/{self.plural}"

    def object(self, namespace: str, name: str) -> str:
        """Return the path of one object."""
        return f"{self.collection(namespace)}/{quote(name, safe='')}"


def version_path(api_version: str) -> str:
    """Return the path of a group's version, such as ``/apis/policy/v1``."""
    return f"/{'apis' if '/' in api_version else 'api'}/{api_version}"


class Kind(StrEnum):
    """The collections that gpushare reads, by their plural in the API's paths."""

    PODS = "pods"
    NODES = "nodes"
    EVENTS = "events"
    BUDGETS = "poddisruptionbudgets"
    CLAIMS = "resourceclaims"
    SLICES = "resourceslices"

    @property
    def resource(self) -> Resource:
        """How the API describes it."""
        return _RESOURCES[self]


_DRA = "resource.k8s.io/v1"
_RESOURCES = {
    Kind.PODS: Resource("v1", "Pod", "pods"),
    Kind.NODES: Resource("v1", "Node", "nodes", namespaced=False),
    Kind.EVENTS: Resource("v1", "Event", "events"),
    Kind.BUDGETS: Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind.CLAIMS: Resource(_DRA, "ResourceClaim", "resourceclaims"),
    Kind.SLICES: Resource(_DRA, "ResourceSlice", "resourceslices", namespaced=False),
}


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a list.

    ``continue_token`` is empty on the last page; ``resource_version`` is the version
    to watch from, and the same on all pages of one list.
    """

    items: tuple[Json, ...]
    resource_version: str
    continue_token: str = ""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change; a bookmark's object has only ``metadata.resourceVersion``."""

    type: EventType
    object: Json


@dataclass(frozen=True, slots=True)
class PodTarget:
    """The pod of a write; ``uid`` is a precondition of the write."""

    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, pod: Json) -> Self:
        """Return the pod itself, and no other one of its name."""
        metadata = pod["metadata"]
        return cls(metadata["namespace"], metadata["name"], metadata["uid"])


class Cluster(Protocol):
    """An API server. All methods raise ``ClusterError``s and nothing else."""

    def list_page(
        self,
        kind: Kind,
        *,
        limit: int,
        continue_token: str = "",
        field_selector: str = "",
    ) -> ListPage:
        """Read one page over all namespaces; ``Gone`` when the token is too old."""

    def watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        timeout_s: float,
        field_selector: str = "",
    ) -> Iterator[WatchEvent]:
        """Follow changes after a version, bookmarks included, for ``timeout_s``.

        The iterator ends when the server ends the watch. ``Gone`` when the version is
        too old, at once or later; ``Unavailable`` when the connection breaks or is
        silent for longer than ``timeout_s`` and a grace. ``.close()`` of the iterator
        ends the watch.
        """

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """Read one object; ``namespace`` is empty for nodes. ``NotFound``."""

    def create(self, kind: Kind, body: Json, *, dry_run: bool = False) -> Json:
        """Add an object, and return it as it was stored, or would be by ``dry_run``.

        ``AlreadyExists`` when there is one of its name, ``InvalidObject``.
        """

    def replace(self, kind: Kind, body: Json) -> Json:
        """Replace the object of the same name, and return it as it was stored.

        ``Conflict`` when its ``resourceVersion`` is no longer that of ``body``.
        """

    def delete(self, kind: Kind, namespace: str, name: str) -> object:
        """Delete an object; ``NotFound`` when there is none."""

    def bind(
        self,
        pod: PodTarget,
        node: str,
        annotations: Mapping[str, str],
        *,
        timeout_s: float,
    ) -> None:
        """Bind the pod and merge the annotations into it, in one write.

        ``Conflict`` when the pod is bound already or has another UID; ``NotFound``
        when it is gone; ``Unavailable`` when no answer came within ``timeout_s``, so
        that the result is unknown. A binding to a node that does not exist is accepted,
        as by the real API server (contracts 1.5).
        """

    def annotate(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        """Merge annotations into a pod or node, and labels in the same write.

        ``namespace`` is empty for nodes. None as a value removes the key.
        """

    def set_taints(
        self, node: str, taints: Sequence[Json], resource_version: str
    ) -> None:
        """Replace all taints of a node, if nothing of it was written since.

        ``Conflict`` when its ``resourceVersion`` is another one now; ``NotFound``.
        """

    def evict(self, pod: PodTarget) -> None:
        """Delete the pod by the Eviction API, with its own grace; budgets count.

        ``Throttled`` while a PodDisruptionBudget allows no disruption, ``Conflict``
        when the pod has another UID, ``NotFound`` when it is gone.
        """

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
        """Write an event about a pod; ``kind`` is ``Normal`` or ``Warning``.

        ``component`` on node ``host`` is the source; kubectl shows both under From.
        """


def patch_of_marks(
    annotations: Mapping[str, str | None], labels: Mapping[str, str | None] | None
) -> Json:
    """Return the merge patch that sets these; None as a value removes the key."""
    metadata: Json = {"annotations": dict(annotations)}
    return {"metadata": metadata | ({"labels": dict(labels)} if labels else {})}


def patch_of_taints(taints: Sequence[Json], resource_version: str) -> Json:
    """Return the merge patch that sets a node's taints, with its precondition."""
    metadata = {"resourceVersion": resource_version}
    return {"metadata": metadata, "spec": {"taints": list(taints)}}


def timestamp(moment: datetime) -> str:
    """Return a time as the API writes it, in whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_event(
    pod: PodTarget,
    kind: str,
    reason: str,
    message: str,
    source: Mapping[str, str],
    at: datetime,
) -> Json:
    """Return an event about a pod; kubectl shows ``source`` under From."""
    now = timestamp(at)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{pod.name}.", "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {name: text for name, text in source.items() if text},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
