"""The pods of a node as owners of processes and holders of cards. Pure.

A process's cgroup names its pod and container. The paths are of many kinds: v1 and v2,
systemd's and cgroupfs's, one for each runtime, and Kubernetes inside Kubernetes. So two
independent patterns are searched in them instead of parsing each kind.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from gpushare.domain.model import Amount, CardUUID, PodUID, Share
from gpushare.kube.cluster import Json, PodTarget
from gpushare.kube.json_reader import Reader
from gpushare.kube.resource_claims.allocated import ResourceClaimUse
from gpushare.kubelet.pods import NodePod, PodName, read_node_pod

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


NO_POD = Owner()


def owner_of(cgroup_text: str, above: int = 0) -> Owner:
    """Parse the text of ``/proc/<pid>/cgroup``; ``NO_POD`` if it names no pod.

    The first pod below kubelet's root counts, and the first container after it; a
    container with writable cgroups may have chosen the names further down. ``above`` is
    how many pods are above kubelet's root (``pods_above``). A process of the pod's own
    cgroup has a pod and no container.

    >>> owner_of("0::/kubepods/pod11111111_2222_3333_4444_555555555555").pod
    '11111111-2222-3333-4444-555555555555'
    """
    # With v1 only some hierarchies may follow the pods, so each line may name it.
    owners = [_on_line(line, above) for line in cgroup_text.splitlines()]
    return max(
        owners,
        key=lambda owner: (bool(owner.container), bool(owner.pod)),
        default=NO_POD,
    )


def pods_above(own_cgroup_text: str) -> int:
    """Return how many pods the node itself runs in, by this process's own cgroup.

    That process is in a pod of this node, the last one of its path, or in none.
    """
    counts = [len(_POD.findall(line)) for line in own_cgroup_text.splitlines()]
    return max(0, max(counts, default=0) - 1)


def _on_line(line: str, above: int) -> Owner:
    match = next(islice(_POD.finditer(line), above, None), None)
    if match is None:
        return NO_POD
    pod = match["hash"] or match["uid"].replace("_", "-")
    container = _CONTAINER.search(line, match.end())
    return Owner(pod, container.group() if container else "")


CONFIG_HASH = "kubernetes.io/config.hash"
"""Annotation of a static pod's mirror: the name of the pod's cgroup."""
CONFIG_MIRROR = "kubernetes.io/config.mirror"
"""Annotation that marks the mirror of a static pod."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one container was allocated on one card.

    ``exclusive``: the pod asked for the whole card. ``part`` names a part that other
    containers may hold too: that of a ResourceClaim's request. It is empty for a part
    of the container's own.
    """

    card: CardUUID
    container: str
    amount: Amount
    exclusive: bool
    part: str = ""


@dataclass(frozen=True, slots=True)
class OwnerPod:
    """One pod of this node that has not ended.

    ``owner`` is the pod's name in cgroups: its UID, or a static pod's config hash.
    ``containers`` names its containers by the runtime's id, init and ephemeral ones
    too. ``by_claims`` is what it holds by ResourceClaims; with ``unknown_claims`` there
    may be more.
    """

    pod: NodePod
    owner: str
    containers: Mapping[str, str]
    static: bool = False
    by_claims: tuple[Holding, ...] = ()
    unknown_claims: bool = False

    @property
    def uid(self) -> PodUID:
        """The UID that the API server knows it by."""
        return self.pod.uid

    @property
    def name(self) -> PodName:
        """Its namespace and name."""
        return self.pod.name

    @property
    def target(self) -> PodTarget:
        """The pod as the target of a write."""
        return self.pod.target

    @property
    def terminating(self) -> bool:
        """Whether it is being deleted."""
        return self.pod.record.terminating

    @property
    def unplaced(self) -> bool:
        """Whether it asks for cards and it is not known which it has."""
        waits = bool(self.pod.gpu_containers) and self.pod.placement is None
        return waits or self.unknown_claims

    @property
    def moved(self) -> bool:
        """Whether kubelet gave it other cards than were planned for it."""
        plan, actual = self.pod.record.plan, self.pod.placement
        return plan is not None and actual is not None and actual.differs_from(plan)

    def shares(self) -> tuple[Share, ...]:
        """Return what is charged by its placement; none if it has none.

        What its claims hold is charged once for each claim: ``OwnerPods.claimed``.
        """
        placement = self.pod.placement
        return () if placement is None else placement.shares

    def holdings(self) -> Iterator[Holding]:
        """Return what each of its containers was allocated.

        Init containers that end are included only while they run, because later
        containers get their devices.
        """
        for share in self.shares():
            exclusive = share.is_whole
            containers = [
                container
                for container in share.containers
                if self._is_there(container.name)
            ]
            for container in containers:
                # A whole card belongs to the pod, whatever memory it asked for.
                alone = exclusive and len(containers) == 1
                amount = share.amount if alone else container.amount
                yield Holding(share.card, container.name, amount, exclusive)
        yield from self.by_claims

    def container_of(self, owner: Owner) -> str:
        """Name the container of a process of this pod; empty if it is not known.

        The pod's status may lack the id. Then it is the container that asks for cards
        and has no id, if there is just one. If all have ids, a container was restarted:
        it is the only one that asks, or the pod's only one.
        """
        known = self.containers.get(owner.container)
        if known is not None:
            return known
        named = set(self.containers.values())
        uses = self.pod.claim_uses
        by_request = [container.name for container in self.pod.gpu_containers]
        asking = dict.fromkeys([*by_request, *(use.container for use in uses)])
        unnamed = [name for name in asking if name not in named]
        ended = {use.container for use in uses if not self.uses_now(use)}
        there = [name for name in asking if self._is_there(name) and name not in ended]
        possible = unnamed or there or list(named)
        return possible[0] if len(possible) == 1 else ""

    def uses_now(self, use: ResourceClaimUse) -> bool:
        """Return whether a container may use its claim now: one that ends may not."""
        return not use.ends or use.container in self.pod.running

    def _is_there(self, container: str) -> bool:
        return (
            container not in self.pod.regular_init_containers
            or container in self.pod.running
        )


@dataclass(frozen=True, slots=True)
class OwnerPods:
    """All pods of this node at one moment.

    ``claimed`` is what prepared ResourceClaims have, each of them once though several
    pods may use it; None if it is not known.
    """

    all: tuple[OwnerPod, ...]
    _by_owner: Mapping[str, OwnerPod] = field(repr=False)
    claimed: tuple[Share, ...] | None = ()

    @classmethod
    def of(
        cls, owner_pods: Iterable[OwnerPod], claimed: tuple[Share, ...] | None = ()
    ) -> "OwnerPods":
        """Return these pods, in the order of their names."""
        ordered = tuple(sorted(owner_pods, key=lambda pod: (pod.name, pod.uid)))
        hashes = {_plain(pod.owner): pod for pod in ordered}
        # UIDs win over hashes: a hash is an annotation, in which a user may write the
        # UID of another pod.
        uids = {_plain(pod.uid): pod for pod in ordered}
        return cls(ordered, hashes | uids, claimed)

    def of_process(self, owner: Owner) -> OwnerPod | None:
        """Return the pod that a process belongs to; None if it is not known."""
        return self._by_owner.get(_plain(owner.pod)) if owner.pod else None

    def find(self, uid: str) -> OwnerPod | None:
        """Return the pod with this UID."""
        return next((pod for pod in self.all if pod.uid == uid), None)


def read_owner_pod(pod: Json) -> OwnerPod:
    """Read a pod; ``Malformed`` for what no API server would send."""
    node_pod, reader = read_node_pod(pod), Reader(pod)
    notes = reader.object("metadata").optional_object("annotations")
    static = bool(notes.optional_text(CONFIG_MIRROR))
    hashed = notes.optional_text(CONFIG_HASH) if static else ""
    status = reader.optional_object("status")
    containers = {
        container.optional_text("containerID").partition("://")[2]: container.text(
            "name"
        )
        for kind in ("initContainer", "container", "ephemeralContainer")
        for container in status.optional_objects(f"{kind}Statuses")
    }
    containers.pop("", None)
    return OwnerPod(node_pod, hashed or node_pod.uid, containers, static=static)


def _plain(uid: str) -> str:
    """Normalize a UID: cgroups write it with other dashes, or without."""
    return uid.replace("-", "").replace("_", "").lower()
