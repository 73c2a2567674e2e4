"""The rights that a command needs, and which of them the user does not have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpushare.kube.facts import SYSTEM
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.webhook.objects import CONFIGURATIONS, NAMESPACE

REVISION = ("apps/v1", "ControllerRevision")
RUNTIME_CLASS = ("node.k8s.io/v1", "RuntimeClass")
_LEASES = "leases.coordination.k8s.io"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource, such as ``patch`` on ``daemonsets.apps``."""

    verb: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{where}"


def resource_of_kind(api_version: str, kind: str) -> str:
    """Return a kind's resource as rights name it.

    >>> resource_of_kind("rbac.authorization.k8s.io/v1", "ClusterRole")
    'clusterroles.rbac.authorization.k8s.io'
    """
    word = kind.lower()
    if word.endswith("y"):
        word = f"{word[:-1]}ies"
    else:
        word += "es" if word.endswith("s") else "s"
    group, slash, _ = api_version.partition("/")
    return f"{word}.{group}" if slash else word


LIST_NODES, LIST_PODS = Right("list", "nodes"), Right("list", "pods")
_ALWAYS = (
    LIST_NODES,
    Right("patch", "nodes"),
    LIST_PODS,
    *(Right(verb, "pods", SYSTEM) for verb in ("get", "create", "delete")),
    Right("get", "pods/log", SYSTEM),
    Right("list", "events", SYSTEM),
    *(Right(verb, _LEASES, SYSTEM) for verb in ("get", "create", "patch", "delete")),
)
CHECK_RIGHTS = (
    LIST_NODES,
    *(Right(verb, "pods", SYSTEM) for verb in ("get", "create", "delete")),
    Right("list", "events", SYSTEM),
)
"""To check nodes by short-lived pods."""
_JOBS = (*(Right(verb, "jobs.batch", SYSTEM) for verb in ("get", "create", "delete")),)
PROBE = Right("patch", "pods", SYSTEM)
"""To prove that kube-scheduler calls the extender: the probe pod is changed."""
REVISIONS = Right("list", resource_of_kind(*REVISION), SYSTEM)
"""To tell which pods of a DaemonSet are made from its present template."""
STATUS = Right("patch", "nodes/status")
"""To remove the capacity of 0 that kubelet keeps."""
LEFTOVERS = (
    *(Right(verb, "secrets", SYSTEM) for verb in ("get", "delete")),
    *(Right(verb, "jobs.batch", SYSTEM) for verb in ("list", "delete")),
)
"""To remove the webhook's certificate, and Jobs that a killed run has left."""
WEBHOOKS = (
    Right("create", "pods", NAMESPACE),
    Right("list", resource_of_kind(*RUNTIME_CLASS)),
    *(
        Right("delete", resource_of_kind(ref.api_version, ref.kind))
        for ref in CONFIGURATIONS
    ),
)
"""For the webhook's probe pod, its configurations, and the RuntimeClasses."""


def needed_rights(
    refs: Iterable[Ref], *verbs: str, more: Iterable[Right] = (), jobs: bool = False
) -> tuple[Right, ...]:
    """Return the rights for these verbs on all objects, and what is always needed.

    ``jobs``: also to run Jobs on other hosts.
    """
    rights = [*_ALWAYS, *more, *(_JOBS if jobs else ())]
    for ref in refs:
        name = resource_of_kind(ref.api_version, ref.kind)
        rights += [Right(verb, name, ref.namespace) for verb in verbs]
    return tuple(rights)


def missing_rights(objects: Objects, rights: Sequence[Right]) -> tuple[Right, ...]:
    """Return those of the rights that the user does not have, each once."""
    return tuple(
        right
        for right in dict.fromkeys(rights)
        if not objects.may(right.verb, right.resource, right.namespace)
    )


def may_get(objects: Objects, ref: Ref) -> bool:
    """Return whether the user may read an object."""
    return objects.may(
        "get", resource_of_kind(ref.api_version, ref.kind), ref.namespace
    )
