"""The pods of this node, as the API server and as kubelet tell of them, and events.

``NodePods`` follows the API server. ``PodResources`` asks kubelet, with a deadline,
which containers hold which devices. kubelet answers 100 requests a second, 10 at once,
to all its clients together (contracts 2.6). Beyond that it answers "rate limit", and
``PodResources`` asks again a moment later. ``EventRecorder`` warns about pods.
"""

import logging
import queue
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Event
from typing import Any

import grpc

from gpushare.domain.model import NodeName, PodUID
from gpushare.kube import names
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.errors import ClusterError, NotFound
from gpushare.kube.json_reader import Malformed
from gpushare.kube.proto import podresources_pb2 as pb
from gpushare.kube.reflector import Sink
from gpushare.kubelet.pods import (
    HeldDevices,
    ListedDevices,
    NodePod,
    PodName,
    read_node_pod,
)
from gpushare.kubelet.services import POD_RESOURCES, make_stub

logger = logging.getLogger(__name__)

COMPONENT = "vcuda-device-plugin"
_MOST_ENDED = 2000
_AGAIN_AFTER_S = 60.0
_MOST_WAITING = 1000
_LOOK_S = 0.5


class NodePods(Sink):
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
        self.version = 0
        """Grows with each change."""

    def begin_list(self) -> AbstractSet[str]:
        """Return the UIDs of the pods, also of those that were fetched."""
        with self._changed:
            return set(self._pods)

    def put(self, body: Json) -> None:
        """Take over a pod."""
        try:
            pod = read_node_pod(body)
        except Malformed as error:
            facts = {"pod": body["metadata"].get("uid"), "because": str(error)}
            logger.warning("pod not understood", extra=facts)
            return
        if pod.record.terminal:
            self.drop(pod.uid)
            return
        with self._changed:
            if pod.uid in self._ended:
                # It was read before its end, of which the watch has told meanwhile.
                return
            self._pods[pod.uid] = pod
            self._by_name[pod.name] = pod.uid
            self.version += 1
            self._changed.notify_all()

    def drop(self, key: str) -> None:
        """Forget a pod, by its UID."""
        uid = PodUID(key)
        with self._changed:
            self._ended[uid] = None
            if len(self._ended) > _MOST_ENDED:
                self._ended.popitem(last=False)
            gone = self._pods.pop(uid, None)
            if gone is not None and self._by_name.get(gone.name) == uid:
                del self._by_name[gone.name]
            self.version += 1
            self._changed.notify_all()

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
        """Wait for a pod of this name: kubelet may know it before ``NodePods``."""
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
        self.put(pod)
        return self.find(name)

    def fetch_or_find(self, name: PodName) -> NodePod | None:
        """Get a pod from the API server, or from the watch if it does not answer."""
        try:
            return self.fetch(name)
        except ClusterError as error:
            facts = {"pod": "/".join(name), "because": str(error)}
            logger.info("API server does not answer, using the watch", extra=facts)
            return self.find(name)


@dataclass
class EventRecorder:
    """Logs warnings about pods at once, and writes them as events from a thread.

    kubelet repeats its call while a pod waits; the same warning becomes an event once a
    minute at most.
    """

    cluster: Cluster
    node: str
    clock: Callable[[], float] = time.monotonic
    _written_at: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _queue: "queue.Queue[tuple[NodePod, str, str]]" = field(
        default_factory=lambda: queue.Queue(_MOST_WAITING)
    )

    def warn(self, pod: NodePod, reason: str, message: str) -> None:
        """Warn about a pod; never waits."""
        facts = {"pod": str(pod.ref), "because": message}
        now, key = self.clock(), (pod.uid, reason, message)
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
                pod, reason, message = self._queue.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            try:
                self.cluster.event(
                    pod.target,
                    kind="Warning",
                    reason=reason,
                    message=message,
                    component=COMPONENT,
                    host=self.node,
                )
            except ClusterError as error:
                facts = {"pod": str(pod.ref), "because": str(error)}
                logger.warning("event not written", extra=facts)


RESOURCES = (names.CORE, names.MEMORY)
_NO_GET = ("UNIMPLEMENTED: ", "UNKNOWN: PodResources API Get method disabled")
"""Before 1.27, and if the feature gate KubeletPodResourcesGet is off, which is the
default before 1.34; that answer has no code of its own."""
_NOT_FOUND = re.compile("UNKNOWN: .*not found")
"""kubelet's answer about a pod that it does not have; it has no code of its own."""
_AGAIN_S = 0.02
_CHANNEL = (
    # Not shared by address: after kubelet's restart a shared channel would wait for
    # the end of its backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 << 20),
)


class KubeletSilentError(Exception):
    """kubelet did not answer in time; ``str()`` is what it answered instead."""


class NoGetError(Exception):
    """This kubelet cannot be asked about one pod."""


class UnknownPodError(Exception):
    """kubelet does not know such a pod yet, or not any more."""


class PodResources:
    """A client of kubelet's pod resources socket."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=_CHANNEL)
        self._stub = make_stub(self._channel, POD_RESOURCES)
        self._list = self._channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListedPods.FromString,
        )
        self._read: dict[bytes, tuple[PodName, Mapping[str, HeldDevices]]] = {}

    def list(self, timeout_s: float) -> ListedDevices:
        """Ask who holds which devices; ``KubeletSilentError`` after ``timeout_s``."""
        answer = self._with_retries(self._list, pb.ListPodResourcesRequest(), timeout_s)
        # A node's pods hold thousands of devices, and few pods change between two
        # lists.
        known_pods = self._read
        read = {
            text: known_pods.get(text) or _pod(text) for text in answer.pod_resources
        }
        self._read = read
        return ListedDevices(dict(read.values()))

    def get(self, pod: PodName, timeout_s: float) -> Mapping[str, HeldDevices] | None:
        """Ask what one pod's containers hold; None if kubelet does not tell.

        It does not before 1.34, or if it does not have the pod.
        """
        try:
            return self.get_or_raise(pod, timeout_s)
        except (KubeletSilentError, NoGetError, UnknownPodError):
            return None

    def get_or_raise(self, pod: PodName, timeout_s: float) -> Mapping[str, HeldDevices]:
        """Ask what one pod's containers hold.

        Raises ``KubeletSilentError``, ``NoGetError`` or ``UnknownPodError``.
        """
        request = pb.GetPodResourcesRequest(pod_namespace=pod[0], pod_name=pod[1])
        try:
            answer = self._with_retries(self._stub.Get, request, timeout_s)
        except KubeletSilentError as error:
            if str(error).startswith(_NO_GET):
                raise NoGetError(str(error)) from error
            if _NOT_FOUND.match(str(error)):
                raise UnknownPodError(str(error)) from error
            raise
        return _containers(answer.pod_resources)

    def _with_retries(
        self, call: Callable[..., Any], request: object, timeout_s: float
    ) -> Any:  # noqa: ANN401
        deadline = time.monotonic() + timeout_s
        busy_text = ""
        while True:
            try:
                return call(request, timeout=deadline - time.monotonic())
            except grpc.RpcError as error:
                text = f"{error.code().name}: {error.details()}"
                late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                busy = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                if not busy or deadline - time.monotonic() < _AGAIN_S:
                    # That it was busy says more than that the last attempt was short.
                    why = busy_text if late and busy_text else text
                    raise KubeletSilentError(why) from error
                busy_text = text
                time.sleep(_AGAIN_S)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def _pod(text: bytes) -> tuple[PodName, Mapping[str, HeldDevices]]:
    pod = pb.PodResources.FromString(text)
    return (pod.namespace, pod.name), _containers(pod)


def _containers(pod: pb.PodResources) -> Mapping[str, HeldDevices]:
    return {container.name: _devices_of(container) for container in pod.containers}


def _devices_of(container: pb.ContainerResources) -> HeldDevices:
    ids_of: dict[str, set[str]] = {}
    for devices in container.devices:
        if devices.resource_name in RESOURCES:
            ids_of.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return {resource: frozenset(ids) for resource, ids in ids_of.items()}
