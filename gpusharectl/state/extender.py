"""Read a page of an extender by port-forward, with certificates if it requires them."""

import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpushare.kube import facts
from gpushare.kube.cluster import Json
from gpushare.kube.errors import Unavailable
from gpushare.kube.names import EXTENDER_PORT, EXTENDER_SERVER_NAME
from gpushare.kube.objects import Objects

FOLDERS = (Path("/etc/kubernetes/vcuda/tls"), Path("/etc/rancher/k3s/vcuda/tls"))
"""Where ``install --tls`` puts a control-plane host's certificates."""
FILES = ("ca.crt", "client.crt", "client.key")
Tls = tuple[ssl.SSLContext, str]


def requires_certificate(pod: Json) -> bool:
    """Return whether the extender in this pod requires a client certificate."""
    return bool(facts.read_environment(pod).get("GPUSHARE_TLS_CLIENT_CA"))


def fetch_page(objects: Objects, pod: Json, path: str, tls: Tls | None) -> bytes:
    """GET a path of the extender in this pod; ``ClusterError`` if it does not answer.

    ``tls`` is used only if the extender requires a certificate.
    """
    if not requires_certificate(pod):
        tls = None
    elif tls is None:
        raise Unavailable(
            "requires a client certificate; run this as root on its control-plane host"
        )
    name = facts.name_of(pod)
    return objects.fetch(facts.SYSTEM, name, EXTENDER_PORT, path, tls=tls)


def read_certificates(
    folder: Path | None, usual: Sequence[Path] = FOLDERS
) -> Tls | None:
    """Read the certificates of a folder, else those of this host.

    None if this host has none; ``OSError`` if the named folder lacks them.
    """
    if folder is not None:
        return _read(folder)
    for place in usual:
        with suppress(OSError):
            return _read(place)
    return None


def _read(folder: Path) -> Tls:
    authority, certificate, key = (folder / name for name in FILES)
    # OpenSSL would not say which one is missing.
    for path in (authority, certificate, key):
        with path.open("rb") as file:
            file.read(1)
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(certificate, key, password="")
    return context, EXTENDER_SERVER_NAME
