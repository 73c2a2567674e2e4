"""The pods of this node, as the API server tells of them."""

import logging
from collections import OrderedDict
from collections.abc import Iterator
from threading import Condition

from deviceplugin.pods import NodePod, PodName, node_pod
from gpushare.domain.model import NodeName, PodUID
from gpushare.kube.cluster import Cluster, Json, Kind, Page, WatchEvent
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.json_reader import Malformed

logger = logging.getLogger(__name__)

_MOST_ENDED = 2000


class NodePods:
    """Sink for the pods of this node: all of them, so that a stranger is noticed.

    A pod leaves with its object, or once its phase is terminal: then kubelet has freed
    its devices, or will before it gives them to another (contracts 2.6).
    """

    def __init__(self, cluster: Cluster, node: NodeName) -> None:
        self._cluster = cluster
        self._node = node
        self._changed = Condition()
        self._pods: dict[PodUID, NodePod] = {}
        self._by_name: dict[PodName, PodUID] = {}
        self._ended: OrderedDict[PodUID, None] = OrderedDict()

    def replace(self, pages: Iterator[Page]) -> None:
        """Take over all pods of the node.

        Whoever was known before the list began, and is not in it, has gone; not who
        was fetched meanwhile.
        """
        before = set(self._pods)
        seen: set[PodUID] = set()
        for page in pages:
            for pod in page.items:
                seen.add(PodUID(pod["metadata"]["uid"]))
                self._take(pod)
        for uid in before - seen:
            self._drop(uid)

    def apply(self, event: WatchEvent) -> None:
        """Take over one change."""
        if event.type == "DELETED":
            self._drop(PodUID(event.object["metadata"]["uid"]))
        else:
            self._take(event.object)

    def all(self) -> tuple[NodePod, ...]:
        """Give the pods that have not ended."""
        with self._changed:
            return tuple(self._pods.values())

    def find(self, name: PodName) -> NodePod | None:
        """Give the newest pod of this name, as far as the watch has told."""
        with self._changed:
            uid = self._by_name.get(name)
            return None if uid is None else self._pods.get(uid)

    def wait_for(self, name: PodName, timeout_s: float) -> NodePod | None:
        """Give the pod of this name, which the watch may be about to bring.

        kubelet's watch and ours race on every pod.
        """
        with self._changed:
            self._changed.wait_for(lambda: name in self._by_name, timeout_s)
        return self.find(name)

    def fetch(self, name: PodName) -> NodePod | None:
        """Ask the API server for a pod of this node; None where it has none.

        Raises ``ClusterError`` where it does not answer.
        """
        try:
            pod = self._cluster.get(Kind.PODS, *name)
        except NotFound:
            return None
        if (pod.get("spec") or {}).get("nodeName") != self._node:
            return None
        self._take(pod)
        return self.find(name)

    def fresh(self, name: PodName) -> NodePod | None:
        """Ask the API server, and take what the watch told where it does not answer."""
        try:
            return self.fetch(name)
        except ClusterError as error:
            facts = {"pod": "/".join(name), "because": str(error)}
            logger.info("going by the watch", extra=facts)
            return self.find(name)

    def _take(self, pod: Json) -> None:
        try:
            found = node_pod(pod)
        except Malformed as error:
            facts = {"pod": pod["metadata"].get("uid"), "because": str(error)}
            logger.warning("pod not understood", extra=facts)
            return
        if found.record.terminal:
            self._drop(found.uid)
            return
        with self._changed:
            if found.uid in self._ended:
                # Read by us before its end, which the watch has told meanwhile.
                return
            self._pods[found.uid] = found
            self._by_name[found.name] = found.uid
            self._changed.notify_all()

    def _drop(self, uid: PodUID) -> None:
        with self._changed:
            self._ended[uid] = None
            if len(self._ended) > _MOST_ENDED:
                self._ended.popitem(last=False)
            gone = self._pods.pop(uid, None)
            if gone is not None and self._by_name.get(gone.name) == uid:
                del self._by_name[gone.name]
            self._changed.notify_all()
