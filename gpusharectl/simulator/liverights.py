"""Which rights to read a cluster are missing, whose they would be, and what to do.

Found by asking for the very things that a what-if reads, in small: so a right counts
however it was granted, for one namespace or for one object by its name.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from gpushare.kube.cluster import Kind
from gpushare.kube.errors import ClusterError, Forbidden
from gpushare.kube.objects import Ref
from gpusharectl.access import Access

_MEND = (
    "take an administrator's kubeconfig by --kubeconfig, or have what is missing "
    "granted: docs/simulator.md has a ClusterRole"
)
_WHO = {
    "apiVersion": "authentication.k8s.io/v1",
    "kind": "SelfSubjectReview",
    "metadata": {},
}


def without_rights(
    access: Access, gets: Sequence[tuple[str, Ref]], error: Forbidden
) -> str:
    """Say in a sentence who lacks which rights, all at once, and what to do.

    ``gets`` are the single objects to be read, with their resources as rights have
    them. Where all of it may be read by now, ``error`` has to do.
    """
    missing = ", ".join(_missing(access, gets))
    if not missing:
        return f"{access.objects.host}: {error}; {_MEND}"
    who = _who(access)
    if not who:
        # The refusal names the account, too.
        return f"{access.objects.host} does not let you {missing} ({error}); {_MEND}"
    return f'{access.objects.host} does not let "{who}" {missing}; {_MEND}'


def _missing(access: Access, gets: Sequence[tuple[str, Ref]]) -> Iterator[str]:
    list_one = partial(access.cluster.list_page, limit=1)
    if _refused(partial(list_one, Kind.NODES)):
        yield "list nodes"
    if _refused(partial(list_one, Kind.PODS)):
        yield "list pods in all namespaces"
    seen = set()
    for resource, ref in gets:
        right = f"get {resource} in {ref.namespace}"
        if right not in seen and _refused(partial(access.objects.get, ref)):
            seen.add(right)
            yield right


def _refused(read: Callable[[], object]) -> bool:
    try:
        read()
    except Forbidden:
        return True
    except ClusterError:
        # Nobody can tell.
        return False
    return False


def _who(access: Access) -> str:
    """Name the account, as the API server knows it; empty where it does not tell.

    A question in the form of a POST: nothing is stored. Kubernetes 1.28 and newer.
    """
    try:
        found = access.objects.create(_WHO)
    except ClusterError:
        return ""
    user = (found.get("status") or {}).get("userInfo") or {}
    return str(user.get("username") or "")
