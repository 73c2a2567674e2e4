"""Where an API server keeps the objects of a kind, by what it says of itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

from gpushare.kube.cluster import Json
from gpushare.kube.errors import Invalid, NotFound, Unavailable
from gpushare.kube.objects import Ref


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
        """Give an object's path; ``Invalid`` where its namespace is missing."""
        found = self.resource(ref.api_version, ref.kind)
        if not ref.name:
            raise Invalid(f"{ref}: give a name")
        if found.namespaced and not ref.namespace:
            raise Invalid(f"{ref}: give its namespace")
        path = f"{_folder(found, ref.namespace)}/{quote(ref.name, safe='')}"
        return f"{path}/{subresource}" if subresource else path

    def collection(self, api_version: str, kind: str, namespace: str = "") -> str:
        """Give the path of all objects of a kind, or of those in a namespace."""
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
    """Give the path of a group and version.

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
