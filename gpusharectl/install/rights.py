"""What an installer must be allowed to do, all asked before anything is done."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.labels import SYSTEM
from gpusharectl.install.webhookobjects import is_configuration
from gpusharectl.install.webhookway import NAMESPACE


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource, such as ``patch`` on ``daemonsets.apps``."""

    verb: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{where}"


_ALWAYS = (
    Right("list", "nodes"),
    Right("patch", "nodes"),
    Right("list", "pods"),
    Right("create", "pods", SYSTEM),
    Right("delete", "pods", SYSTEM),
    Right("get", "pods/log", SYSTEM),
    Right("list", "events", SYSTEM),
)
_PROBE = Right("patch", "pods", SYSTEM)
"""Of the proof that kube-scheduler asks the extender, which lets its pod through."""
_JOBS = (
    Right("get", "leases.coordination.k8s.io", SYSTEM),
    Right("get", "jobs.batch", SYSTEM),
    Right("create", "jobs.batch", SYSTEM),
    Right("delete", "jobs.batch", SYSTEM),
)
_LEASES = tuple(
    Right(verb, "leases.coordination.k8s.io", SYSTEM) for verb in ("get", "delete")
)
"""The second scheduler leaves one."""
_SECRET = tuple(Right(verb, "secrets", SYSTEM) for verb in ("get", "delete"))
"""The webhook's certificate."""
_TRIAL = Right("create", "pods", NAMESPACE)
"""Of the way to the webhook; one that leads nowhere is taken back."""
_CLASSES = Right("list", "runtimeclasses.node.k8s.io")
"""The webhook is told which of them bring cards."""
STATUS = Right("patch", "nodes/status")
"""Needed only to take out what kubelet keeps at 0."""


def to_install(
    manifests: Iterable[Json], *, probe: bool = False, jobs: bool = False
) -> tuple[Right, ...]:
    """Give the rights that installing these objects takes.

    ``probe`` where a kube-scheduler's configuration is to be proved, ``jobs`` for other
    hosts.
    """
    more = (_PROBE,) if probe else ()
    found = dict.fromkeys(_ALWAYS + more + (_JOBS if jobs else ()))
    for body in manifests:
        for verb in ("get", "create", "patch"):
            found[_right(verb, body)] = None
        if is_configuration(body):
            found |= dict.fromkeys((_TRIAL, _CLASSES, _right("delete", body)))
    return tuple(found)


def to_uninstall(
    manifests: Iterable[Json], *, wait: bool = False, jobs: bool = False
) -> tuple[Right, ...]:
    """Give the rights that taking these objects away takes."""
    more = (STATUS,) if wait else ()
    found = dict.fromkeys(_ALWAYS + _LEASES + _SECRET + more + (_JOBS if jobs else ()))
    for body in manifests:
        for verb in ("list", "delete"):
            found[_right(verb, body)] = None
    return tuple(found)


def to_take_away(refs: Iterable[Ref]) -> tuple[Right, ...]:
    """Give the rights that taking these objects away takes, by their names."""
    found = [
        Right(verb, resource(ref.api_version, ref.kind), ref.namespace)
        for ref in refs
        for verb in ("get", "delete")
    ]
    return tuple(dict.fromkeys(found))


def missing(objects: Objects, rights: Sequence[Right]) -> tuple[Right, ...]:
    """Ask for each right, and give all that we do not have."""
    return tuple(
        one for one in rights if not objects.may(one.verb, one.resource, one.namespace)
    )


def resource(api_version: str, kind: str) -> str:
    """Give a kind's resource as rights name it.

    >>> resource("rbac.authorization.k8s.io/v1", "ClusterRole")
    'clusterroles.rbac.authorization.k8s.io'
    """
    word = kind.lower()
    if word.endswith("y"):
        word = f"{word[:-1]}ies"
    else:
        word += "es" if word.endswith("s") else "s"
    group, slash, _ = api_version.partition("/")
    return f"{word}.{group}" if slash else word


def _right(verb: str, body: Json) -> Right:
    name = resource(body["apiVersion"], body["kind"])
    return Right(verb, name, body["metadata"].get("namespace", ""))
