"""How the operator's hands know the API server: objects of any kind, one by one.

``Cluster`` is for the wings, which read a few kinds in bulk; this is for who installs,
explains and takes away. ``ApiObjects`` speaks to a real API server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from gpushare.kube.cluster import Json

FIELD_MANAGER = "gpusharectl"
"""Who we are to server-side apply."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Which object: ``api_version`` as in a manifest, no namespace for cluster-wide."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""

    @classmethod
    def of(cls, body: Json) -> Self:
        """Read it off an object."""
        metadata = body["metadata"]
        return cls(
            body["apiVersion"],
            body["kind"],
            metadata["name"],
            metadata.get("namespace", ""),
        )

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {where}{self.name}"


class Objects(Protocol):
    """An API server. All methods raise ``ClusterError``s and nothing else."""

    def version(self) -> str:
        """Return the API server's version, such as ``v1.36.3``."""
        ...

    def serves(self, api_version: str, kind: str) -> bool:
        """Return whether the API server knows this kind at this version."""
        ...

    def may(self, verb: str, resource: str, namespace: str = "") -> bool:
        """Ask whether we may; ``resource`` is ``pods`` or ``daemonsets.apps``.

        A subresource comes after a slash: ``pods/portforward``.
        """
        ...

    def get(self, ref: Ref) -> Json | None:
        """Read one object; None where there is none."""
        ...

    def list(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> Sequence[Json]:
        """Read all objects of a kind, each with its ``apiVersion`` and ``kind``.

        Without a namespace: of all namespaces.
        """
        ...

    def apply(self, body: Json, *, dry_run: bool = False) -> Json:
        """Apply on the server's side, taking over fields of others; give the result."""
        ...

    def create(self, body: Json, *, dry_run: bool = False) -> Json:
        """Add an object; ``AlreadyExists``. A dry run gives what it would be."""
        ...

    def merge(self, ref: Ref, patch: Json, *, subresource: str = "") -> Json:
        """Merge a patch into an object; None values take fields out."""
        ...

    def json_patch(
        self,
        ref: Ref,
        steps: Sequence[Mapping[str, object]],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        """Change an object by a JSON patch; give the result."""
        ...

    def delete(self, ref: Ref, *, grace_period_s: int | None = None) -> bool:
        """Delete an object and, in the background, what it owns; False if none."""
        ...

    def log(
        self, namespace: str, pod: str, container: str = "", *, lines: int = 50
    ) -> str:
        """Read the last lines that a pod's container has written."""
        ...

    def fetch(self, namespace: str, pod: str, port: int, path: str) -> bytes:
        """GET a page from a pod's loopback, by port-forward."""
        ...
