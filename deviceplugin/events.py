"""Events about pods, written beside whoever has something to say."""

import logging
import queue
import time
from collections.abc import Callable
from threading import Event

from deviceplugin.pods import NodePod
from gpushare.kube.cluster import Cluster
from gpushare.kube.errors import ClusterError

logger = logging.getLogger(__name__)

COMPONENT = "vcuda-device-plugin"
_AGAIN_AFTER_S = 60.0
_MOST_WAITING = 1000
_LOOK_S = 0.5

_Said = tuple[str, str, str]


class Announcer:
    """Says things about pods, in the log at once and as events a moment later.

    kubelet asks again and again where a pod must wait; the same words are an event once
    a minute at most.
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
        self._said: dict[_Said, float] = {}
        self._queue: queue.Queue[tuple[NodePod, str, str]] = queue.Queue(_MOST_WAITING)

    def warn(self, pod: NodePod, reason: str, message: str) -> None:
        """Say that something is wrong with a pod; never waits."""
        facts = {"pod": str(pod.ref), "because": message}
        now, key = self._clock(), (pod.uid, reason, message)
        if now - self._said.get(key, float("-inf")) < _AGAIN_AFTER_S:
            logger.debug(reason, extra=facts)
            return
        logger.warning(reason, extra=facts)
        self._said = {
            k: at for k, at in self._said.items() if now - at < _AGAIN_AFTER_S
        }
        self._said[key] = now
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
