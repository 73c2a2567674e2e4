"""Command lines of the control plane's processes, for plain processes on loopback."""

from collections.abc import Sequence
from pathlib import Path


def etcd_flags(data: Path, client_port: int, peer_port: int) -> list[str]:
    clients = f"http://127.0.0.1:{client_port}"
    peers = f"https://127.0.0.1:{peer_port}"
    return [
        f"--data-dir={data}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        # Not for secrecy: this makes a key pair, which kube-apiserver needs too.
        "--peer-auto-tls",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver_flags(folder: Path, port: int, etcd_port: int) -> list[str]:
    """Give the flags; ``folder`` holds tokens.csv, audit-policy.json and etcd-data."""
    key = folder / "etcd-data" / "fixtures" / "peer" / "key.pem"
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--advertise-address=127.0.0.1",
        *_serving(port, folder / "kube-apiserver-cert"),
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        # ServiceAccount would want the accounts' controller; the taint would keep
        # pods off a posted node until a second write takes it away.
        "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        "--endpoint-reconciler-type=none",
        # Else it waits for clients to end their watches, and they never do.
        "--shutdown-watch-termination-grace-period=1s",
        f"--audit-policy-file={folder / 'audit-policy.json'}",
        f"--audit-log-path={folder / 'audit.log'}",
        # No rotation, because readers keep their place in this one file.
        "--audit-log-maxsize=0",
    ]


def scheduler_flags(config: Path, port: int, certificates: Path) -> list[str]:
    return [
        f"--config={config}",
        *_serving(port, certificates),
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
    ]


def controller_manager_flags(
    kubeconfig: Path, port: int, controllers: Sequence[str], qps: int
) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(controllers)}",
        "--leader-elect=false",
        f"--kube-api-qps={qps}",
        f"--kube-api-burst={2 * qps}",
        *_serving(port, kubeconfig.with_suffix(".cert")),
    ]


def _serving(port: int, certificates: Path) -> list[str]:
    return [
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={certificates}",
    ]
