"""The pods of this node at the API server: followed, fetched, and warned in events."""

import logging
import queue
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Condition, Event

from deviceplugin.pods import NodePod, PodName, node_pod
from gpushare.domain.model import NodeName, PodUID
from gpushare.kube.cluster import Cluster, Json, Kind, Page, WatchEvent
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.json_reader import Malformed

logger = logging.getLogger(__name__)

COMPONENT = "vcuda-device-plugin"
_MOST_ENDED = 2000
_AGAIN_AFTER_S = 60.0
_MOST_WAITING = 1000
_LOOK_S = 0.5

_EventKey = tuple[str, str, str]


class NodePods:
    """Sink for all pods of this node, also for those that ask for no cards.

    A pod leaves when it is deleted, or once its phase is terminal: then kubelet has
    freed its devices, or frees them before it hands them out again (contracts 2.6).
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

        A pod that was known before the list began and is not in it has gone. A pod that
        was fetched meanwhile stays.
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
        """Return the pods that have not ended."""
        with self._changed:
            return tuple(self._pods.values())

    def find(self, name: PodName) -> NodePod | None:
        """Return the newest pod of this name that the watch has told of."""
        with self._changed:
            uid = self._by_name.get(name)
            return None if uid is None else self._pods.get(uid)

    def wait_for(self, name: PodName, timeout_s: float) -> NodePod | None:
        """Wait for a pod of this name: kubelet's watch may be ahead of ours."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._by_name, timeout_s)
        return self.find(name)

    def fetch(self, name: PodName) -> NodePod | None:
        """Get a pod of this node from the API server; None if there is none.

        Raises ``ClusterError`` if the API server does not answer.
        """
        try:
            pod = self._cluster.get(Kind.PODS, *name)
        except NotFound:
            return None
        if (pod.get("spec") or {}).get("nodeName") != self._node:
            return None
        self._take(pod)
        return self.find(name)

    def fetch_or_find(self, name: PodName) -> NodePod | None:
        """Get a pod from the API server, or from the watch if it does not answer."""
        try:
            return self.fetch(name)
        except ClusterError as error:
            facts = {"pod": "/".join(name), "because": str(error)}
            logger.info("API server does not answer, using the watch", extra=facts)
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
                # It was read before its end, of which the watch has told meanwhile.
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


class EventRecorder:
    """Logs warnings about pods at once, and writes them as events from a thread.

    kubelet repeats its call while a pod waits; the same warning becomes an event once a
    minute at most.
    """

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        look_s: float = _LOOK_S,
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._clock = clock
        self._look_s = look_s
        self._written_at: dict[_EventKey, float] = {}
        self._queue: queue.Queue[tuple[NodePod, str, str]] = queue.Queue(_MOST_WAITING)

    def warn(self, pod: NodePod, reason: str, message: str) -> None:
        """Warn about a pod; never waits."""
        facts = {"pod": str(pod.ref), "because": message}
        now, key = self._clock(), (pod.uid, reason, message)
        if now - self._written_at.get(key, float("-inf")) < _AGAIN_AFTER_S:
            logger.debug(reason, extra=facts)
            return
        logger.warning(reason, extra=facts)
        self._written_at = {
            k: at for k, at in self._written_at.items() if now - at < _AGAIN_AFTER_S
        }
        self._written_at[key] = now
        if pod.uid:
            try:
                self._queue.put_nowait((pod, reason, message))
            except queue.Full:
                logger.warning("too many events waiting", extra=facts)

    def run(self, stop: Event) -> None:
        """Write the events until ``stop`` is set."""
        while not stop.is_set():
            try:
                pod, reason, message = self._queue.get(timeout=self._look_s)
            except queue.Empty:
                continue
            try:
                self._cluster.event(
                    pod.target,
                    kind="Warning",
                    reason=reason,
                    message=message,
                    component=COMPONENT,
                    host=self._node,
                )
            except ClusterError as error:
                facts = {"pod": str(pod.ref), "because": str(error)}
                logger.warning("event not written", extra=facts)
