"""The devices of one node, kept as kubelet keeps them, over its real gRPC interfaces.

A device plugin cannot tell it from kubelet by what it sees: sockets in a folder, the
order of calls, who is asked what, and what a failure does (contracts 2).
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import grpc

from gpushare.kube.cluster import Json
from gpushare.kube.fields import Reader
from gpushare.kube.proto.deviceplugin_pb2_grpc import add_RegistrationServicer_to_server
from gpushare.kube.proto.podresources_pb2_grpc import (
    add_PodResourcesListerServicer_to_server,
)
from gpusharectl.demo.admission import Admission, NotAdmittedError, shuffled
from gpusharectl.demo.asked import Asked, asked_of
from gpusharectl.demo.endpoint import CallFailedError
from gpusharectl.demo.given import Given, merged
from gpusharectl.demo.holdings import Holdings
from gpusharectl.demo.podresources import PodResourcesLister
from gpusharectl.demo.registry import Registry

LONGEST_PATH = 107
"""Bytes that the path of a unix socket may have."""
_SOCKET = "kubelet.sock"
_CALLERS = 4


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why kubelet will not run a pod: its status gets both, its event the second."""

    reason: str
    because: str

    @property
    def message(self) -> str:
        """What the pod's status says."""
        return f"Pod was rejected: {self.because}"


class CannotStartYetError(Exception):
    """A plugin would not let a container start; ``str()`` is kubelet's message.

    The container waits as ``CreateContainerConfigError``, and kubelet tries again.
    """


class Devices:
    """Serves ``<folder>/device-plugins`` and ``<folder>/pod-resources``.

    ``with`` it, or ``open`` and ``close`` it. Left out: the checkpoint, so that a
    second one in the same folder is a kubelet that has lost it; ``readmit`` is what
    such a kubelet does with the pods of its node.
    """

    def __init__(self, folder: Path) -> None:
        self.plugins = folder / "device-plugins"
        self.pod_resources = folder / "pod-resources"
        self._registry = Registry(self.plugins)
        self._holdings = Holdings()
        self._admission = Admission(self._registry, self._holdings)
        self._turn = Lock()
        self._servers: list[grpc.Server] = []

    def open(self) -> None:
        """Remove all sockets, plugins' included, as kubelet does, and serve."""
        for folder in (self.plugins, self.pod_resources):
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                if path.is_socket():
                    path.unlink()
        lister = _server(self.pod_resources)
        add_PodResourcesListerServicer_to_server(
            PodResourcesLister(self._holdings), lister
        )
        registration = _server(self.plugins)
        add_RegistrationServicer_to_server(self._registry, registration)
        for server in (lister, registration):
            self._servers.append(server)
            server.start()

    def close(self) -> None:
        """Serve no more; plugins see their streams end."""
        for server in self._servers:
            server.stop(None).wait()
        self._registry.close()

    def capacity(self) -> dict[str, int]:
        """Count the devices of each resource, as the node's status tells it."""
        return self._registry.capacity()

    def allocatable(self) -> dict[str, int]:
        """Count the healthy devices of each resource, taken ones included."""
        return self._registry.allocatable()

    def admit(self, pod: Json) -> Mapping[str, Given] | Rejection:
        """Give a pod's containers their devices: one pod at a time, whoever calls.

        What each container gets is known, but nothing may start yet. A resource that no
        plugin ever offered is passed over in silence, as kubelet does. ``ValueError``
        for a pod that no API server would have stored.
        """
        return self._admit(pod, asked_of(Reader(pod)))

    def readmit(self, pod: Json) -> Mapping[str, Given] | Rejection:
        """Admit a pod as a restarted kubelet does: running containers get nothing.

        kubelet asks the runtime what runs; here the pod's status says it.
        """
        running = _running(pod)
        asked = asked_of(Reader(pod))
        return self._admit(pod, [one for one in asked if one.name not in running])

    def _admit(
        self, pod: Json, containers: Sequence[Asked]
    ) -> Mapping[str, Given] | Rejection:
        uid = pod["metadata"]["uid"]
        with self._turn:
            self._holdings.begin(pod)
            try:
                self._admission.admit(uid, containers)
            except NotAdmittedError as error:
                self._holdings.end(uid)
                because = f"Allocate failed due to {error}, which is unexpected"
                return Rejection("UnexpectedAdmissionError", because)
        return {one.name: self._given(uid, one.name) for one in containers}

    def start(self, uid: str, container: str) -> Given:
        """Ask the plugins before a container's start or restart; give what it gets.

        ``CannotStartYetError`` when one of them says no.
        """
        try:
            for resource in shuffled(self._asked(uid, container)):
                self._pre_start(uid, container, resource)
        except CallFailedError as error:
            raise CannotStartYetError(str(error)) from error
        return self._given(uid, container)

    def release(self, uid: str) -> None:
        """Take a pod as ended: its devices come free when they are next looked for."""
        self._holdings.end(uid)

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _asked(self, uid: str, container: str) -> list[str]:
        found: list[Asked] = []
        for pod in self._holdings.active():
            if pod["metadata"]["uid"] == uid:
                found = [one for one in asked_of(Reader(pod)) if one.name == container]
        return [
            resource
            for one in found
            for resource, amount in one.amounts.items()
            if amount and self._admission.knows(resource)
        ]

    def _pre_start(self, uid: str, container: str, resource: str) -> None:
        endpoint = self._registry.endpoint(resource)
        if endpoint is None or not endpoint.options.pre_start_required:
            return
        held = self._holdings.of(uid, container).get(resource)
        if held is None:
            raise CallFailedError(
                f"no devices found allocated in local cache for pod {uid}, "
                f"container {container}, resource {resource}"
            )
        endpoint.pre_start(shuffled(held.ids))

    def _given(self, uid: str, container: str) -> Given:
        held = self._holdings.of(uid, container)
        return merged(held[resource].answer for resource in shuffled(held))


def _running(pod: Json) -> frozenset[str]:
    status = Reader(pod).optional_object("status")
    return frozenset(
        one.text("name")
        for key in ("initContainerStatuses", "containerStatuses")
        for one in status.optional_objects(key)
        if "running" in one.optional_object("state").raw
    )


def _server(folder: Path) -> grpc.Server:
    path = folder / _SOCKET
    if (length := len(bytes(path))) > LONGEST_PATH:
        text = f"{path} has {length} bytes; a unix socket's path has {LONGEST_PATH}"
        raise ValueError(f"{text} at most")
    server = grpc.server(ThreadPoolExecutor(_CALLERS))
    server.add_insecure_port(f"unix:{path}")
    return server
