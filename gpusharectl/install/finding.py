"""What of ours is in a cluster, whoever put it there, and in which order it goes."""

from collections.abc import Iterable, Sequence

from gpushare.kube.cluster import Json
from gpushare.kube.errors import NotFound
from gpushare.kube.objects import Objects, Ref
from gpusharectl.install.labels import OURS, PLUGIN, SYSTEM
from gpusharectl.install.overlays import WORKLOADS
from gpusharectl.install.webhookobjects import CONFIGURATIONS, SECRETS

LEASE = Ref("coordination.k8s.io/v1", "Lease", "vcuda-scheduler", SYSTEM)
"""The second scheduler makes it itself, so it bears no label of ours."""
_LAST = ("ClusterRole", "Role", "ServiceAccount")
"""A binding goes before what it binds, so that none is left that binds nothing."""
_MADE_HERE = (("batch/v1", "Job", SYSTEM), ("v1", "Pod", SYSTEM))


def ours(objects: Objects, manifests: Sequence[Json]) -> list[Ref]:
    """Find every object of ours, workloads first; pods and Jobs of our own as well.

    By their names in the manifests, and by our label, which an older version's have
    too. The pods of workloads go with those.
    """
    found: dict[Ref, None] = {}
    for body in manifests:
        ref = Ref.of(body)
        if ref not in found and objects.get(ref) is not None:
            found[ref] = None
    for api_version, kind, namespace in _kinds(manifests):
        for body in _labelled(objects, api_version, kind, namespace):
            if not body["metadata"].get("ownerReferences"):
                found[Ref.of(body)] = None
    for ref in (LEASE, *SECRETS):
        if objects.get(ref) is not None:
            found[ref] = None
    return sorted(found, key=_rank)


def is_plugin(ref: Ref) -> bool:
    """Tell whether it is the device plugin's DaemonSet, which goes before all else."""
    return ref.kind in WORKLOADS and ref.name == PLUGIN


def is_asking(ref: Ref) -> bool:
    """Tell whether by it the API server asks the webhook; it goes before that."""
    return ref in CONFIGURATIONS


def our_pods(objects: Objects) -> Sequence[Json]:
    """List our pods, those that are just ending included."""
    return objects.list("v1", "Pod", namespace=SYSTEM, label_selector=OURS)


def _kinds(manifests: Iterable[Json]) -> list[tuple[str, str, str]]:
    refs = map(Ref.of, manifests)
    own = [(ref.api_version, ref.kind, ref.namespace) for ref in refs]
    return [*dict.fromkeys([*own, *_MADE_HERE])]


def _labelled(
    objects: Objects, api_version: str, kind: str, namespace: str
) -> Sequence[Json]:
    """List a kind's objects with our label; those of other namespaces are not ours."""
    try:
        return objects.list(api_version, kind, namespace=namespace, label_selector=OURS)
    except NotFound:
        # Policies on an old cluster.
        return ()


def _rank(ref: Ref) -> tuple[int, str]:
    if ref.kind in WORKLOADS:
        return (0, ref.name)
    return (2 if ref.kind in _LAST else 1, ref.kind)
