"""kube-scheduler's flags: how they are written, and which a configuration replaces.

Beside ``--config`` kube-scheduler ignores the deprecated ones and honours those of the
leader election (``cmd/kube-scheduler/app/options``, ``deprecated.go`` and
``ApplyLeaderElectionTo`` of 1.36; old ones ignored these too). Both go into the
configuration; where they stand they may stay, because they say the same. All others,
such as ``--bind-address`` and ``--feature-gates``, are nobody's business but theirs.
"""

from collections.abc import Callable, Mapping, Sequence

from gpushare.kube.cluster import Json
from gpusharectl.kube_scheduler.host_files import Obstacle

CONFIG = "config"
_TRUTHS = {"1", "t", "T", "TRUE", "true", "True"}
_LIES = {"0", "f", "F", "FALSE", "false", "False"}
_GONE = frozenset(
    {
        "algorithm-provider",
        "hard-pod-affinity-symmetric-weight",
        "lock-object-name",
        "lock-object-namespace",
        "policy-config-file",
        "policy-configmap",
        "policy-configmap-namespace",
        "scheduler-name",
        "use-legacy-policy-config",
    }
)
"""Flags of 1.22 that a configuration silently replaces by profiles."""


def parsed(words: Sequence[str]) -> dict[str, str]:
    """Read flags as kube-scheduler does; the last of one name counts.

    ``--name=value``, ``--name value`` and a bare ``--name``, which means true; ``_``
    is as good as ``-`` in a name. kube-scheduler takes nothing but flags, so a word
    without a dash is the value of the flag before it.
    """
    flags: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            flags[name] = value if equals else "true"
        elif name:
            flags[name] = word
    return flags


def configured_by(flags: Mapping[str, str]) -> Json | Obstacle:
    """Give the part of a configuration that says what these flags say."""
    old = sorted(_GONE & flags.keys())
    if old:
        return Obstacle(
            f"--{old[0]} is ignored beside --config: write what it says as profiles of "
            "a KubeSchedulerConfiguration, give that with --config and start again"
        )
    config: Json = {}
    for name, (path, read) in _moves().items():
        if name not in flags:
            continue
        value = read(flags[name])
        if value is None or "$(" in flags[name]:
            return Obstacle(f"--{name}={flags[name]} is not understood")
        part = config
        for key in path[:-1]:
            part = part.setdefault(key, {})
        part[path[-1]] = value
    return config


Reader = Callable[[str], object]
"""Gives the value as the configuration has it, None where it is not understood."""


def _moves() -> dict[str, tuple[tuple[str, ...], Reader]]:
    connection, election = "clientConnection", "leaderElection"
    return {
        "kubeconfig": ((connection, "kubeconfig"), str),
        "kube-api-content-type": ((connection, "contentType"), str),
        "kube-api-qps": ((connection, "qps"), _number(float)),
        "kube-api-burst": ((connection, "burst"), _number(int)),
        "leader-elect": ((election, "leaderElect"), _truth),
        "leader-elect-lease-duration": ((election, "leaseDuration"), str),
        "leader-elect-renew-deadline": ((election, "renewDeadline"), str),
        "leader-elect-retry-period": ((election, "retryPeriod"), str),
        "leader-elect-resource-lock": ((election, "resourceLock"), str),
        "leader-elect-resource-name": ((election, "resourceName"), str),
        "leader-elect-resource-namespace": ((election, "resourceNamespace"), str),
        "profiling": (("enableProfiling",), _truth),
        "contention-profiling": (("enableContentionProfiling",), _truth),
    }


def _truth(text: str) -> bool | None:
    if text in _TRUTHS:
        return True
    return False if text in _LIES else None


def _number(kind: type[int] | type[float]) -> Reader:
    def read(text: str) -> object:
        try:
            return kind(text)
        except ValueError:
            return None

    return read
