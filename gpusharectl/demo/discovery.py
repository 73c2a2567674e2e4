"""Write the discovery documents of the demo's API server for a real kubectl.

Discovery is in its old form, which every kubectl accepts. OpenAPI has only what kubectl
asks before it sends a body: whether a kind's PATCH takes ``fieldValidation``
(``k8s.io/cli-runtime/pkg/resource/query_param_verifier_v3.go``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.kube.cluster import Json

VERSION = "v1.36.3"
"""The Kubernetes version whose behaviour the demo shows."""
_ALL = ("create", "delete", "get", "list", "patch", "update", "watch")
_STATUS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Resource:
    """One entry of discovery."""

    plural: str
    kind: str
    short: str = ""
    namespaced: bool = True
    verbs: tuple[str, ...] = _ALL

    def entry(self) -> Json:
        """Return the entry as the API has it."""
        entry: Json = {
            "name": self.plural,
            "singularName": "" if "/" in self.plural else self.kind.lower(),
            "namespaced": self.namespaced,
            "kind": self.kind,
            "verbs": list(self.verbs),
        }
        return entry | ({"shortNames": [self.short]} if self.short else {})


_GROUPS: Mapping[str, tuple[Resource, ...]] = {
    "v1": (
        Resource("pods", "Pod", "po"),
        Resource("pods/binding", "Binding", verbs=("create",)),
        Resource("pods/status", "Pod", verbs=_STATUS),
        Resource("nodes", "Node", "no", namespaced=False),
        Resource("nodes/status", "Node", namespaced=False, verbs=_STATUS),
        Resource("events", "Event", "ev"),
        Resource(
            "namespaces", "Namespace", "ns", namespaced=False, verbs=("get", "list")
        ),
    ),
    "policy/v1": (
        Resource("poddisruptionbudgets", "PodDisruptionBudget", "pdb"),
        Resource("poddisruptionbudgets/status", "PodDisruptionBudget", verbs=_STATUS),
    ),
}


def documents() -> dict[str, Json]:
    """Return every fixed document by its path."""
    policy = {"groupVersion": "policy/v1", "version": "v1"}
    group = {"name": "policy", "versions": [policy], "preferredVersion": policy}
    return {
        "/version": _version(),
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]},
        "/apis/policy": {"kind": "APIGroup", "apiVersion": "v1", **group},
        "/openapi/v3": {
            "paths": {
                path[1:]: {"serverRelativeURL": f"/openapi/v3{path}"}
                for path in map(_path, _GROUPS)
            }
        },
        **{_path(version): _resources(version) for version in _GROUPS},
        **{f"/openapi/v3{_path(version)}": _openapi(version) for version in _GROUPS},
    }


def _path(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _version() -> Json:
    major, minor, _ = VERSION.removeprefix("v").split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": VERSION,
        "platform": "embedded",
    }


def _resources(version: str) -> Json:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": [resource.entry() for resource in _GROUPS[version]],
    }


def _openapi(version: str) -> Json:
    return {
        "openapi": "3.0.0",
        "info": {"title": "gpusharectl demo", "version": VERSION},
        "paths": {
            f"{_path(version)}/{resource.plural}/{{name}}": {
                "patch": _patch(version, resource)
            }
            for resource in _GROUPS[version]
            if "/" not in resource.plural and "patch" in resource.verbs
        },
    }


def _patch(version: str, resource: Resource) -> Json:
    group, _, short = version.rpartition("/")
    return {
        "parameters": [
            {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
        ],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-group-version-kind": {
            "group": group,
            "version": short,
            "kind": resource.kind,
        },
    }
