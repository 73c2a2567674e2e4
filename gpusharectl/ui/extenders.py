"""Whom the page is asked of: an extender that is ready, through the API server."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Forbidden, NotFound, Unavailable
from gpushare.kube.names import EXTENDER_PORT
from gpusharectl.certificates import SERVER_NAME
from gpusharectl.inspection import facts

FOLDERS = (Path("/etc/kubernetes/vcuda/tls"), Path("/etc/rancher/k3s/vcuda/tls"))
"""Where the installer puts a control-plane host's certificates, with ``--tls``."""
FILES = ("ca.crt", "client.crt", "client.key")
SWITCH_ON = "gpusharectl install --ui"
Tls = tuple[ssl.SSLContext, str]
_SELECTOR = f"{facts.PART_NAME} in ({facts.EXTENDER},{facts.SECOND_SCHEDULER})"


class Fetching(Protocol):
    """As much of ``ApiObjects`` as is needed here."""

    def list(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str = "",
        label_selector: str = "",
    ) -> Sequence[Json]:
        """Read objects; ``ClusterError``s only."""
        ...

    def fetch(
        self, namespace: str, pod: str, port: int, path: str, *, tls: Tls | None = None
    ) -> bytes:
        """GET a page from a pod's loopback; ``ClusterError``s only."""
        ...


class Extenders:
    """The cluster's extenders, any of which has the page; the last that had is first.

    ``tls`` is for those that let in nobody without a certificate.
    """

    def __init__(self, objects: Fetching, tls: Tls | None = None) -> None:
        self._objects = objects
        self._tls = tls
        self._last = ""

    def get(self, path: str) -> bytes:
        """GET a path of the first that answers; ``ClusterError`` with what to do."""
        because = ""
        for pod in self._ready():
            name = facts.name_of(pod)
            try:
                body = self._ask(pod, path)
            except Forbidden:
                # Of the port-forward itself, so that no other would be allowed either.
                raise
            except ClusterError as error:
                because = f"{name}: {error}"
                if isinstance(error, NotFound) and not _shows_a_page(pod):
                    because = f"{name} has no page; switch it on: {SWITCH_ON}"
            else:
                self._last = name
                return body
        raise Unavailable(because)

    def _ready(self) -> Sequence[Json]:
        pods = self._objects.list(
            "v1", "Pod", namespace=facts.SYSTEM, label_selector=_SELECTOR
        )
        if not pods:
            raise Unavailable(
                f"no extender's pod is in {facts.SYSTEM}; gpusharectl install puts "
                "one beside kube-scheduler"
            )
        ready = [pod for pod in pods if facts.holds(pod, "Ready")]
        if not ready:
            raise Unavailable(
                f"none of the extender's pods in {facts.SYSTEM} is ready; see "
                f"kubectl -n {facts.SYSTEM} describe pods -l "
                f"{facts.PART_NAME}={facts.label(pods[0], facts.PART_NAME)}"
            )
        return sorted(ready, key=lambda pod: facts.name_of(pod) != self._last)

    def _ask(self, pod: Json, path: str) -> bytes:
        guarded = _is_guarded(pod)
        if guarded and self._tls is None:
            raise Unavailable(
                "lets in only who shows a certificate; run this as root on its "
                "control-plane host, or name a folder with "
                f"{', '.join(FILES)} by --certificates"
            )
        tls = self._tls if guarded else None
        name = facts.name_of(pod)
        return self._objects.fetch(facts.SYSTEM, name, EXTENDER_PORT, path, tls=tls)


def tls_from(folder: Path | None, usual: Sequence[Path] = FOLDERS) -> Tls | None:
    """Read a folder's certificates, or those of this host where none is named.

    None where there are none to be read; ``OSError`` for a folder that was named and
    has not what it should.
    """
    if folder is not None:
        return _read(folder)
    for place in usual:
        try:
            return _read(place)
        except OSError:
            continue
    return None


def _read(folder: Path) -> Tls:
    authority, certificate, key = (folder / name for name in FILES)
    # Before OpenSSL does, which would not say which one is missing.
    for path in (authority, certificate, key):
        with path.open("rb") as file:
            file.read(1)
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(certificate, key, password="")
    return context, SERVER_NAME


def _is_guarded(pod: Json) -> bool:
    return bool(facts.settings_of(pod).get("GPUSHARE_TLS_CLIENT_CA"))


def _shows_a_page(pod: Json) -> bool:
    return facts.settings_of(pod).get("GPUSHARE_UI") == "on"
