"""Write the discovery documents of the demo's API server for a real kubectl.

Discovery is in its old form, which every kubectl accepts. OpenAPI has only what kubectl
asks before it sends a body: whether a kind's PATCH takes ``fieldValidation``
(``k8s.io/cli-runtime/pkg/resource/query_param_verifier_v3.go``).
"""

from collections.abc import Iterator

from gpushare.kube.cluster import Json, Kind, version_path
from gpusharectl.demo.fakeapi.rules import STATUS_APART

VERSION = "v1.36.3"
"""The Kubernetes version whose behaviour the demo shows."""
_SHORT = {Kind.PODS: "po", Kind.NODES: "no", Kind.EVENTS: "ev", Kind.BUDGETS: "pdb"}
"""The short names that kubectl knows; other kinds have none."""
_STATUS = ("get", "patch", "update")
_ALL = ("create", "delete", "get", "list", "patch", "update", "watch")
_VERSIONS = ("v1", "policy/v1", "resource.k8s.io/v1")


def discovery_documents(build: str = "") -> dict[str, Json]:
    """Return every fixed document by its path; ``build`` ends the server's version."""
    groups = [_group(version) for version in _VERSIONS if "/" in version]
    major, minor, _ = VERSION.removeprefix("v").split(".")
    number = {"major": major, "minor": minor, "gitVersion": VERSION + build}
    paths = [version_path(version) for version in _VERSIONS]
    openapi = {path[1:]: {"serverRelativeURL": f"/openapi/v3{path}"} for path in paths}
    return {
        "/version": {**number, "platform": "embedded"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
        **{
            f"/apis/{group['name']}": {"kind": "APIGroup", "apiVersion": "v1", **group}
            for group in groups
        },
        "/openapi/v3": {"paths": openapi},
        **{version_path(version): _resources(version) for version in _VERSIONS},
        **{f"/openapi/v3{version_path(each)}": _openapi(each) for each in _VERSIONS},
    }


def _group(version: str) -> Json:
    name, _, short = version.partition("/")
    known = {"groupVersion": version, "version": short}
    return {"name": name, "versions": [known], "preferredVersion": known}


def _resources(version: str) -> Json:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": list(_entries(version)),
    }


def _entries(version: str) -> Iterator[Json]:
    for kind in _kinds(version):
        name, namespaced = kind.resource.kind, kind.resource.namespaced
        yield _entry(kind, name, _ALL, _SHORT.get(kind, ""), namespaced=namespaced)
        if kind in STATUS_APART:
            yield _entry(f"{kind}/status", name, _STATUS, namespaced=namespaced)
    if version == "v1":
        yield _entry("pods/binding", "Binding", ("create",))
        yield _entry("namespaces", "Namespace", ("get", "list"), "ns", namespaced=False)


def _kinds(version: str) -> Iterator[Kind]:
    return (kind for kind in Kind if kind.resource.api_version == version)


def _entry(
    name: str,
    kind: str,
    verbs: tuple[str, ...],
    short: str = "",
    *,
    namespaced: bool = True,
) -> Json:
    entry: Json = {
        "name": name,
        "singularName": "" if "/" in name else kind.lower(),
        "namespaced": namespaced,
        "kind": kind,
        "verbs": list(verbs),
    }
    return entry | ({"shortNames": [short]} if short else {})


def _openapi(version: str) -> Json:
    group, _, short = version.rpartition("/")
    field = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    paths = {}
    for kind in _kinds(version):
        named = {"group": group, "version": short, "kind": kind.resource.kind}
        patch = {
            "parameters": [field],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-group-version-kind": named,
        }
        paths[f"{kind.resource.collection()}/{{name}}"] = {"patch": patch}
    info = {"title": "gpusharectl demo", "version": VERSION}
    return {"openapi": "3.0.0", "info": info, "paths": paths}
