"""kube-scheduler with its own configuration, and the flags of every process."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.addresses import find_free_address
from tests.testbed.manifests import stanza
from tests.testbed.process import Launcher, Process
from tests.testbed.rest import Json, Rest


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


@dataclass(frozen=True)
class SchedulerSettings:
    """What a test may want to choose; most defaults are kube-scheduler's."""

    leader_elect: bool = False
    lease_duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0
    qps: float = 50.0
    """Requests to the API server per second; comparisons want more in both runs."""
    burst: int = 100
    percentage_of_nodes_to_score: int = 100
    """All nodes; kube-scheduler's own default is 0, by which it chooses itself."""
    pod_max_backoff_s: int = 10
    profile: Json = field(default_factory=dict)
    """Keys of the profile: ``schedulerName``, ``plugins``, ``pluginConfig``."""
    extender: Json = field(default_factory=dict)
    """Keys that replace those of the extender's entry, such as ``httpTimeout``."""
    flags: tuple[str, ...] = ()
    """More flags, such as ``--v=4``."""


@dataclass
class Scheduler(Process):
    rest: Rest
    """Its own port, without a token: ``/metrics``, ``/readyz``."""
    config: Path

    def metrics(self) -> str:
        return str(self.rest.get("/metrics")[1]["text"])


def configuration(
    kubeconfig: Path, extender_url: str | None, settings: SchedulerSettings
) -> Json:
    """Describe a KubeSchedulerConfiguration; without an URL it has no extender."""
    entry = {**_extender(extender_url), **settings.extender} if extender_url else None
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(kubeconfig),
            "qps": settings.qps,
            "burst": settings.burst,
        },
        "leaderElection": {
            "leaderElect": settings.leader_elect,
            "leaseDuration": f"{settings.lease_duration_s}s",
            "renewDeadline": f"{settings.renew_deadline_s}s",
            "retryPeriod": f"{settings.retry_period_s}s",
        },
        "percentageOfNodesToScore": settings.percentage_of_nodes_to_score,
        "podMaxBackoffSeconds": settings.pod_max_backoff_s,
        "profiles": [{"schedulerName": "default-scheduler", **settings.profile}],
        "extenders": [entry] if entry else [],
    }


def _extender(url_prefix: str) -> Json:
    """Give the stanza that we ship, for an extender on another port."""
    return {**stanza(), "urlPrefix": url_prefix}


def start(
    launcher: Launcher, command: Sequence[str], name: str, config: Json
) -> Scheduler:
    """Start kube-scheduler under this name and wait until it schedules.

    One that may have to wait for its turn to lead is ready as soon as it is healthy.
    """
    path = launcher.folder / f"{name}.config.json"
    path.write_text(json.dumps(config, indent=2))
    port = find_free_address().port
    flags = scheduler_flags(path, port, path.with_suffix(".cert"))
    process = launcher.start(name, [*command, *flags])
    rest = Rest(port)
    scheduler = Scheduler(name, process.log, process.popen, rest, path)
    health = "/healthz" if config["leaderElection"]["leaderElect"] else "/readyz"
    scheduler.wait_ready(lambda: rest.get(health)[0] == 200)
    return scheduler
