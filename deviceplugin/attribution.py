"""Whose a process is: from its cgroup to a pod and a container. Pure.

The paths are of many kinds: v1 and v2, systemd's and cgroupfs's, one per runtime, and
Kubernetes within Kubernetes. Two independent patterns are read out of any of them
instead of a grammar of paths.
"""

import re
from dataclasses import dataclass
from itertools import islice

_POD = re.compile(
    r"pod(?:(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})"
    r"|(?P<hash>[0-9a-f]{32}))(?![0-9a-f])"
)
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Owner:
    """The pod and the container that a cgroup's path names.

    ``pod`` is the pod's UID, or a static pod's config hash, with dashes as the API
    server writes a UID; ``container`` the runtime's id, 64 hex digits. Both are empty
    for a process outside Kubernetes.
    """

    pod: str = ""
    container: str = ""


NOBODY = Owner()


def owner_of(cgroup_text: str, above: int = 0) -> Owner:
    """Read the text of ``/proc/<pid>/cgroup``; ``NOBODY`` where it names no pod.

    The first pod below kubelet's root counts, and the first container after it. What
    comes further down a container with writable cgroups may have named after another's
    pod. ``above`` is how many pods are above kubelet's root (``pods_above``). A process
    of the pod's own cgroup has a pod and no container.

    >>> owner_of("0::/kubepods/pod11111111_2222_3333_4444_555555555555").pod
    '11111111-2222-3333-4444-555555555555'
    """
    # On v1 only some hierarchies may follow the pods: each line may be the one.
    owners = [_on_line(line, above) for line in cgroup_text.splitlines()]
    for owner in owners:
        if owner.container:
            return owner
    return next((owner for owner in owners if owner.pod), NOBODY)


def pods_above(own_cgroup_text: str) -> int:
    """Say how many pods the node itself is in, by the cgroup of an own process there.

    That is in a pod of this node, the last one of its path, or in none.
    """
    counts = [len(_POD.findall(line)) for line in own_cgroup_text.splitlines()]
    return max(0, max(counts, default=0) - 1)


def _on_line(line: str, above: int) -> Owner:
    found = next(islice(_POD.finditer(line), above, None), None)
    if found is None:
        return NOBODY
    pod = found["hash"] or found["uid"].replace("_", "-")
    container = _CONTAINER.search(line, found.end())
    return Owner(pod, container.group() if container else "")
