"""Whether kube-scheduler writes through the API server of its own host."""

from pathlib import Path

import pytest
import yaml

from gpusharectl.installer.kube_scheduler.api_server import (
    KUBEADM_APISERVER,
    advertised_address,
    why_elsewhere,
)
from gpusharectl.installer.kube_scheduler.host_files import HostFiles

CONF = "/etc/kubernetes/scheduler.conf"


def kubeconfig(server: str) -> bytes:
    return yaml.safe_dump(
        {
            "clusters": [
                {"name": "other", "cluster": {"server": "https://10.0.0.1:6443"}},
                {"name": "c", "cluster": {"server": server}},
            ],
            "contexts": [{"name": "s@c", "context": {"cluster": "c", "user": "s"}}],
            "current-context": "s@c",
        }
    ).encode()


def host(folder: Path, server: str, *flags: str) -> HostFiles:
    files = HostFiles(folder)
    files.write(CONF, kubeconfig(server))
    command = ["kube-apiserver", "--advertise-address=10.0.0.1", *flags]
    manifest = {"spec": {"containers": [{"command": command}]}}
    files.write(KUBEADM_APISERVER, yaml.safe_dump(manifest).encode())
    return files


@pytest.mark.parametrize(
    ("server", "flags", "own"),
    [
        ("https://10.0.0.1:6443", [], True),
        ("https://127.0.0.1:6443", [], True),
        ("https://[::1]:6443", [], True),
        ("https://localhost:6443", [], True),
        ("https://10.0.0.1:8443", ["--secure-port=8443"], True),
        ("https://10.0.0.1", ["--secure-port=443"], True),
        # Of another host, a load balancer, and one on this host.
        ("https://10.0.0.2:6443", [], False),
        ("https://api.example:6443", [], False),
        ("https://127.0.0.1:8443", [], False),
        ("https://10.0.0.1:6443", ["--secure-port=8443"], False),
    ],
)
def test_the_address_and_the_port_decide(
    tmp_path: Path, server: str, flags: list[str], own: bool
) -> None:
    why = why_elsewhere(host(tmp_path, server, *flags), CONF)
    words = f"{CONF} names {server}, which is not this host's API server, 10.0.0.1; "
    assert why.startswith("" if own else words)
    assert bool(why) != own


def test_without_kubeadm_loopback_is_the_own_one(tmp_path: Path) -> None:
    """k3s: its API server is in the same process."""
    files = host(tmp_path, "https://127.0.0.1:6444")
    files.remove(KUBEADM_APISERVER)
    assert why_elsewhere(files, CONF) == ""
    files.write(CONF, kubeconfig("https://10.0.0.1:6443"))
    assert "is not this host's API server" in why_elsewhere(files, CONF)


@pytest.mark.parametrize(
    "content",
    [None, b"{", b"\xff", b"clusters: []", b"contexts: 1", kubeconfig("https://[")],
)
def test_what_cannot_be_read_is_not_taken_for_well(
    tmp_path: Path, content: bytes | None
) -> None:
    files = host(tmp_path, "https://10.0.0.1:6443")
    files.remove(CONF)
    if content is not None:
        files.write(CONF, content)
    assert why_elsewhere(files, CONF) == (
        f"{CONF} cannot be read, or names no API server"
    )


def test_a_manifest_of_another_form_has_no_address(tmp_path: Path) -> None:
    files = host(tmp_path, "https://10.0.0.1:6443")
    files.write(KUBEADM_APISERVER, b"spec: {}")
    assert advertised_address(files) == ""


@pytest.mark.parametrize(
    ("timeout", "late"),
    [
        *(("60s", False), ("1m15s", False), ("75000ms", False)),
        *(("1m15.5s", True), ("75001ms", True), ("2m0s", True), ("1h", True)),
    ],
)
def test_requests_must_end_before_a_reservation_is_given_up(
    tmp_path: Path, timeout: str, *, late: bool
) -> None:
    """An allocation that is stored later takes room that another pod has by then."""
    flag = f"--request-timeout={timeout}"
    why = why_elsewhere(host(tmp_path, "https://10.0.0.1:6443", flag), CONF)
    assert why.startswith(f"{KUBEADM_APISERVER} has {flag}: " if late else "")
    assert bool(why) is late
