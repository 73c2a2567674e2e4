"""Whether a host's kube-scheduler writes through the API server of the same host.

Only then the extender beside it is asked about the claims that it allocates (decision
0066). kubeadm sets it up so, but a kubeconfig of an old kubeadm, or one that somebody
has edited, may name a load balancer.
"""

import ipaddress
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpushare.informers.resource_claims import UNCONFIRMED_S
from gpushare.yaml_edit import NotEditable, load_yaml
from gpusharectl.installer.kube_scheduler.host_files import HostFiles, HostPath

KUBEADM_APISERVER = Path("/etc/kubernetes/manifests/kube-apiserver.yaml")
_HTTPS = 443
_USUAL_PORT = "6443"
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|us|ns)")


def advertised_address(files: HostFiles) -> str:
    """Return the address of this host's API server by kubeadm's manifest, or ""."""
    return _flag(files, "advertise-address")


def why_elsewhere(files: HostFiles, kubeconfig: HostPath) -> str:
    """Return why a kubeconfig does not name this host's own API server, or "".

    Without kubeadm's manifest every port of loopback is taken for it, as in k3s. Also
    why that API server may store an allocation after its reservation was given up.
    """
    try:
        server = _server(files, kubeconfig)
        parts = urlsplit(server)
        host, port = parts.hostname or "", parts.port or _HTTPS
    except (KeyError, IndexError, TypeError, ValueError):
        return f"{kubeconfig} cannot be read, or names no API server"
    address = advertised_address(files)
    well = host == address or _is_loopback(host)
    if files.read(KUBEADM_APISERVER) is not None:
        well = well and str(port) == (_flag(files, "secure-port") or _USUAL_PORT)
    if well:
        return _why_too_late(files)
    here = f", {address}" if address else ""
    return (
        f"{kubeconfig} names {server}, which is not this host's API server{here}; it "
        "would ask the extender of another host, which does not decide. Name this "
        "host's there, as kubeadm does, and restart kube-scheduler; or leave DRA off "
        "(--no-dra)"
    )


def _why_too_late(files: HostFiles) -> str:
    timeout = _flag(files, "request-timeout")
    parts = _PART.findall(timeout)
    if sum(float(number) * _SECONDS[unit] for number, unit in parts) <= UNCONFIRMED_S:
        return ""
    return (
        f"{KUBEADM_APISERVER} has --request-timeout={timeout}: an allocation may be "
        f"stored when the extender has given up its reservation, after "
        f"{UNCONFIRMED_S:g} s, and its room is another pod's. Set it to "
        f"{UNCONFIRMED_S:g}s or less (the default is 1m0s); or leave DRA off (--no-dra)"
    )


def _server(files: HostFiles, kubeconfig: HostPath) -> str:
    body = parse_yaml_file(files.read(kubeconfig))
    context = _named(body["contexts"], body["current-context"])["context"]
    return str(_named(body["clusters"], context["cluster"])["cluster"]["server"])


def _named(entries: Any, name: str) -> Any:  # noqa: ANN401
    return next(iter([entry for entry in entries if entry["name"] == name]), None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _flag(files: HostFiles, name: str) -> str:
    """Return a flag of kubeadm's API server, or ""."""
    body = parse_yaml_file(files.read(KUBEADM_APISERVER))
    try:
        words = body["spec"]["containers"][0]["command"]
    except (KeyError, IndexError, TypeError):
        return ""
    begin = f"--{name}="
    flags = [str(word) for word in words if str(word).startswith(begin)]
    return flags[-1].removeprefix(begin) if flags else ""


def parse_yaml_file(content: bytes | None) -> Any:  # noqa: ANN401
    """Return a file's YAML; empty if it has none."""
    try:
        return load_yaml((content or b"").decode()) or {}
    except (NotEditable, UnicodeDecodeError):
        return {}
