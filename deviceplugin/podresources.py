"""kubelet's pod resources: who holds which devices, with a deadline.

kubelet answers 100 questions a second, 10 at once, to all its clients together
(contracts 2.6), and says "rate limit" beyond that: then we ask again a little later.
"""

import time
from pathlib import Path

import grpc

from deviceplugin.nodepod import Held, Listed
from gpushare.kube import names
from gpushare.kube.proto import podresources_pb2 as pb
from gpushare.kube.proto.podresources_pb2_grpc import PodResourcesListerStub

RESOURCES = (names.CORE, names.MEMORY)
_AGAIN_S = 0.02
_CHANNEL = (
    # Our own channel, not one shared by address: after kubelet's restart the old one
    # would wait out its backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 << 20),
)


class KubeletSilentError(Exception):
    """kubelet did not answer in time; ``str()`` says what it said instead."""


class PodResources:
    """A client of kubelet's pod resources socket."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=_CHANNEL)
        self._stub = PodResourcesListerStub(self._channel)

    def list(self, timeout_s: float) -> Listed:
        """Ask who holds what; ``KubeletSilentError`` after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            try:
                answer = self._stub.List(pb.ListPodResourcesRequest(), timeout=left)
            except grpc.RpcError as error:
                busy = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                if not busy or deadline - time.monotonic() < _AGAIN_S:
                    text = f"{error.code().name}: {error.details()}"
                    raise KubeletSilentError(text) from error
                time.sleep(_AGAIN_S)
            else:
                return _listed(answer)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def _listed(answer: pb.ListPodResourcesResponse) -> Listed:
    return Listed(
        {
            (pod.namespace, pod.name): {c.name: _held(c) for c in pod.containers}
            for pod in answer.pod_resources
        }
    )


def _held(container: pb.ContainerResources) -> Held:
    held: dict[str, set[str]] = {}
    for devices in container.devices:
        if devices.resource_name in RESOURCES:
            held.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return {resource: frozenset(ids) for resource, ids in held.items()}
