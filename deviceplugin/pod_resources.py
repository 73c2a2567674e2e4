"""kubelet's pod resources: which containers hold which devices, with a deadline.

kubelet answers 100 requests a second, 10 at once, to all its clients together
(contracts 2.6). Beyond that it answers "rate limit", and we ask again a moment later.
"""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.pods import Held, Listed, PodName
from gpushare.kube import names
from gpushare.kube.proto import podresources_pb2 as pb
from gpushare.kube.proto.podresources_pb2_grpc import PodResourcesListerStub

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
        self._stub = PodResourcesListerStub(self._channel)
        self._list = self._channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListedPods.FromString,
        )
        self._read: dict[bytes, tuple[PodName, Mapping[str, Held]]] = {}

    def list(self, timeout_s: float) -> Listed:
        """Ask who holds which devices; ``KubeletSilentError`` after ``timeout_s``."""
        answer = self._with_retries(self._list, pb.ListPodResourcesRequest(), timeout_s)
        # A node's pods hold thousands of devices, and few pods change between two
        # lists.
        known = self._read
        read = {text: known.get(text) or _pod(text) for text in answer.pod_resources}
        self._read = read
        return Listed(dict(read.values()))

    def get(self, pod: PodName, timeout_s: float) -> Mapping[str, Held] | None:
        """Ask what one pod's containers hold; None if kubelet does not tell.

        It does not before 1.34, or if it does not have the pod.
        """
        try:
            return self.get_or_raise(pod, timeout_s)
        except (KubeletSilentError, NoGetError, UnknownPodError):
            return None

    def get_or_raise(self, pod: PodName, timeout_s: float) -> Mapping[str, Held]:
        """Ask what one pod's containers hold.

        Raises ``KubeletSilentError``, ``NoGetError`` or ``UnknownPodError``.
        """
        asked = pb.GetPodResourcesRequest(pod_namespace=pod[0], pod_name=pod[1])
        try:
            answer = self._with_retries(self._stub.Get, asked, timeout_s)
        except KubeletSilentError as error:
            if str(error).startswith(_NO_GET):
                raise NoGetError(str(error)) from error
            if _NOT_FOUND.match(str(error)):
                raise UnknownPodError(str(error)) from error
            raise
        return _containers(answer.pod_resources)

    def _with_retries(
        self, call: Callable[..., Any], asked: object, timeout_s: float
    ) -> Any:  # noqa: ANN401
        deadline = time.monotonic() + timeout_s
        busy_text = ""
        while True:
            try:
                return call(asked, timeout=deadline - time.monotonic())
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


def _pod(text: bytes) -> tuple[PodName, Mapping[str, Held]]:
    pod = pb.PodResources.FromString(text)
    return (pod.namespace, pod.name), _containers(pod)


def _containers(pod: pb.PodResources) -> Mapping[str, Held]:
    return {container.name: _held(container) for container in pod.containers}


def _held(container: pb.ContainerResources) -> Held:
    held: dict[str, set[str]] = {}
    for devices in container.devices:
        if devices.resource_name in RESOURCES:
            held.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return {resource: frozenset(ids) for resource, ids in held.items()}
