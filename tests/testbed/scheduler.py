"""Start kube-scheduler with its own configuration, with or without an extender."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.addresses import free_address
from tests.testbed.flags import scheduler_flags
from tests.testbed.manifests import stanza
from tests.testbed.process import Launcher, Process
from tests.testbed.rest import Json, Rest


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
    pod_initial_backoff_s: int = 1
    pod_max_backoff_s: int = 10
    profile: Json = field(default_factory=dict)
    """Keys of the profile: ``schedulerName``, ``plugins``, ``pluginConfig``."""
    extender: Json = field(default_factory=dict)
    """Keys that replace those of the extender's entry, such as ``httpTimeout``."""
    flags: tuple[str, ...] = ()
    """More flags, such as ``--v=4``."""


@dataclass
class Scheduler(Process):
    """A running kube-scheduler."""

    rest: Rest
    """Its own port, without a token: ``/metrics``, ``/readyz``."""
    config: Path

    def metrics(self) -> str:
        """Give its metrics in the text format."""
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
        "podInitialBackoffSeconds": settings.pod_initial_backoff_s,
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
    port = free_address().port
    flags = scheduler_flags(path, port, path.with_suffix(".cert"))
    process = launcher.start(name, [*command, *flags])
    rest = Rest(port)
    scheduler = Scheduler(name, process.log, process.popen, rest, path)
    health = "/healthz" if config["leaderElection"]["leaderElect"] else "/readyz"
    scheduler.wait_ready(lambda: rest.get(health)[0] == 200)
    return scheduler
