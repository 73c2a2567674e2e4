"""The Protocol ``Objects``: an API server as the commands use it, any kind of object.

The processes read a few kinds in bulk and use ``Cluster`` instead. ``ApiObjects`` uses
a real API server.
"""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from gpushare.kube.cluster import Json

FIELD_MANAGER = "gpusharectl"
"""gpushare's name as a field manager of server-side apply."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Which object: ``api_version`` as in a manifest, no namespace for cluster-wide."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""

    @classmethod
    def of(cls, body: Json) -> Self:
        """Read the reference of an object."""
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

    def serves(self, api_version: str, kind: str) -> bool:
        """Return whether the API server knows this kind at this version."""

    def may(self, verb: str, resource: str, namespace: str = "") -> bool:
        """Return whether RBAC allows ``verb`` on ``pods`` or ``daemonsets.apps``.

        A subresource comes after a slash: ``pods/portforward``.
        """

    def get(self, ref: Ref) -> Json | None:
        """Read one object; None if there is none."""

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

        Without a namespace it reads all namespaces.
        """

    def apply(self, body: Json, *, dry_run: bool = False) -> Json:
        """Apply on the server, taking over all fields; return the result."""

    def create(self, body: Json, *, dry_run: bool = False) -> Json:
        """Create an object; ``AlreadyExists``. A dry run returns what it would be."""

    def merge(self, ref: Ref, patch: Json, *, subresource: str = "") -> Json:
        """Merge a patch into an object; None as a value removes a field."""

    def json_patch(
        self,
        ref: Ref,
        steps: Sequence[Mapping[str, object]],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        """Change an object by a JSON patch; return the result."""

    def delete(self, ref: Ref, *, grace_period_s: int | None = None) -> bool:
        """Delete an object and, in the background, its dependents; False if none."""

    def log(
        self, namespace: str, pod: str, container: str = "", *, lines: int = 50
    ) -> str:
        """Read the last lines of a container's log."""

    def fetch(
        self,
        namespace: str,
        pod: str,
        port: int,
        path: str,
        *,
        tls: tuple[ssl.SSLContext, str] | None = None,
    ) -> bytes:
        """GET a page from a pod's loopback, by port-forward.

        ``tls`` is the context for a port with TLS, and the server's name.
        """
