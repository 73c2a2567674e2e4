"""Where the picture comes from: the extender's books, pods and nodes.

All that inspect and why look at: taken once, at one time. Pure.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Protocol

from gpushare.cache.pods import UNFINISHED
from gpushare.domain.model import PodUID
from gpushare.kube import codec, facts
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.codec import PodRecord
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.json_reader import Malformed
from gpushare.kube.names import EXTENDER_PORT
from gpushare.kube.objects import Objects, Ref
from gpusharectl.state.placements import Books, chosen, reckoned, told


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that an operator should look at: what is so, and what to do."""

    about: str
    what: str
    do: str


@dataclass(frozen=True)
class Picture:
    """The books, and the objects that they were not told of.

    ``pods`` are those that name our resources and have not ended; ``parts`` are our own
    pods and kube-scheduler's; ``troubles`` what others have found, such as on this
    host's files; ``quotas`` all ResourceQuotas, None where they could not be read;
    ``reviewed`` whether the API server asks our webhook, None where nobody may know.
    """

    books: Books
    nodes: tuple[Json, ...]
    pods: tuple[Json, ...]
    parts: tuple[Json, ...]
    now: datetime
    troubles: tuple[Trouble, ...] = ()
    quotas: tuple[Json, ...] | None = ()
    reviewed: bool | None = None

    @cached_property
    def records(self) -> Mapping[PodUID, PodRecord]:
        """What the pods ask and hold; without those that cannot be read."""
        return {record.pod.uid: record for record, _ in self.read.values()}

    @cached_property
    def read(self) -> Mapping[PodUID, tuple[PodRecord, Json]]:
        """Each pod that can be read, with its object."""
        found: dict[PodUID, tuple[PodRecord, Json]] = {}
        for pod in self.pods:
            try:
                record = codec.pod_record(pod)
            except Malformed:
                # The books leave it out as well; the API server lets none such in.
                continue
            found[record.pod.uid] = (record, pod)
        return found

    def node(self, name: str) -> Json | None:
        """Give a node's object, None where there is none."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, Json]:
        return {facts.name_of(node): node for node in self.nodes}

    @cached_property
    def plugins(self) -> Mapping[str, bool]:
        """The nodes with a device plugin's pod, and whether one there is ready."""
        found: dict[str, bool] = {}
        for pod in self.parts:
            if facts.is_part(pod, facts.DEVICE_PLUGIN):
                name = facts.node_of(pod)
                ready = facts.holds(pod, "Ready") is True
                found[name] = found.get(name, False) or ready
        return found


_PAGE = 500
_TO_READ_QUOTAS = "have `list` of resourcequotas granted, for all namespaces"
_CUT_OFF = Trouble(
    "webhook",
    "an install was cut off: the API server asks it about no pod but that of a trial",
    "run it again: gpusharectl install, with the same options",
)
_LEASES = ("kube-scheduler", "vcuda-scheduler")
"""Who leads the cluster's own schedulers, and who leads ours."""


class Reach(Protocol):
    """A way into a cluster: in bulk, and object by object."""

    @property
    def cluster(self) -> Cluster:
        """For lists in pages."""
        ...

    @property
    def objects(self) -> Objects:
        """For single objects, and the extender's page."""
        ...


def look(reach: Reach, now: datetime, troubles: Sequence[Trouble] = ()) -> Picture:
    """Read the cluster once; ``ClusterError`` where pods or nodes cannot be read.

    The books are the extender's own where it answers, else they are reckoned here.
    """
    # The books log what they find odd; here the screen says it.
    logging.getLogger("gpushare").addHandler(logging.NullHandler())
    nodes = tuple(everything(reach.cluster, Kind.NODES))
    pods: list[Json] = []
    parts: list[Json] = []
    for pod in everything(reach.cluster, Kind.PODS, UNFINISHED):
        if codec.is_ours(pod):
            pods.append(pod)
        if facts.is_part(pod) or facts.is_kube_scheduler(pod):
            parts.append(pod)
    books = _books(reach.objects, nodes, pods, parts)
    return Picture(books, nodes, tuple(pods), tuple(parts), now, tuple(troubles))


def with_quotas(picture: Picture, objects: Objects) -> Picture:
    """Add what bounds the namespaces; where that cannot be read, it is to be looked at.

    No part of ours needs the right, so whoever looks may well lack it.
    """
    try:
        return replace(picture, quotas=tuple(objects.list("v1", "ResourceQuota")))
    except NotFound:
        # An API server without any, such as the demo's.
        return picture
    except ClusterError as error:
        lost = Trouble("quotas", f"cannot be read: {error}", _TO_READ_QUOTAS)
    return replace(picture, quotas=None, troubles=(*picture.troubles, lost))


def with_webhook(picture: Picture, objects: Objects) -> Picture:
    """Add whether the API server asks the webhook; who may not read that, goes without.

    No part of ours needs the right.
    """
    try:
        found = [objects.get(ref) for ref in facts.WEBHOOK_CONFIGURATIONS]
    except ClusterError:
        return picture
    cut_off = any(facts.is_narrowed(one) for one in found if one is not None)
    more = (_CUT_OFF,) if cut_off else ()
    return replace(
        picture,
        reviewed=found[0] is not None and not cut_off,
        troubles=(*picture.troubles, *more),
    )


def everything(
    cluster: Cluster, kind: Kind, field_selector: str = ""
) -> Iterator[Json]:
    """Read a collection page by page."""
    token = ""
    while True:
        page = cluster.list_page(
            kind, limit=_PAGE, continue_token=token, field_selector=field_selector
        )
        yield from page.items
        token = page.continue_token
        if not token:
            return


def _books(
    objects: Objects, nodes: Sequence[Json], pods: Sequence[Json], parts: Sequence[Json]
) -> Books:
    extenders = [pod for pod in parts if facts.is_extender(pod)]
    ready = [pod for pod in extenders if facts.holds(pod, "Ready")]
    if not extenders:
        because = f"no pod of it is in {facts.SYSTEM}"
    elif not ready:
        because = "none of its pods is ready"
    else:
        books, because = _asked(objects, ready)
        if books is not None:
            return books
    settings = facts.settings_of(extenders[0]) if extenders else {}
    return reckoned(nodes, pods, chosen(settings), because)


def _asked(objects: Objects, ready: Sequence[Json]) -> tuple[Books | None, str]:
    """Ask one after the other; with several any is right, the leader's knows first."""
    because = ""
    leaders = _leaders(objects) if len(ready) > 1 else frozenset()
    for pod in sorted(ready, key=lambda pod: leaders.isdisjoint(_hosts(pod))):
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        try:
            return told(objects.fetch(namespace, name, EXTENDER_PORT, "/snapshot")), ""
        except (ClusterError, Malformed) as error:
            because = f"{name}: {error}"
    return None, because


def _leaders(objects: Objects) -> frozenset[str]:
    """Name the hosts whose schedulers lead; none where nobody tells."""
    found = set()
    for name in _LEASES:
        ref = Ref("coordination.k8s.io/v1", "Lease", name, facts.SYSTEM)
        try:
            lease = objects.get(ref) or {}
        except ClusterError:
            continue
        holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
        found.add(holder.partition("_")[0])
    return frozenset(found)


def _hosts(pod: Json) -> set[str]:
    """Give what a scheduler beside this extender calls its host: its node, its pod."""
    return {facts.node_of(pod), facts.name_of(pod)}
