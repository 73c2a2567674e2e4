"""kubelet's PodResources service: who holds which devices, without pod UIDs."""

import grpc

from gpushare.kube.cluster import Json
from gpushare.kube.fields import Reader
from gpushare.kube.proto.podresources_pb2 import (
    ContainerDevices,
    ContainerResources,
    GetPodResourcesRequest,
    GetPodResourcesResponse,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    PodResources,
)
from gpushare.kube.proto.podresources_pb2_grpc import PodResourcesListerServicer
from gpusharectl.demo.asked import asked_of
from gpusharectl.demo.holdings import Holdings


class PodResourcesLister(PodResourcesListerServicer):
    """Answers as kubelet does from 1.34 on: active pods alone (contracts 2.6).

    An init container that ends is not listed, and each device is an entry of its own.
    Left out: the limit on how often one may ask.
    """

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def List(  # noqa: N802
        self,
        request: ListPodResourcesRequest,  # noqa: ARG002
        context: grpc.ServicerContext,  # noqa: ARG002
    ) -> ListPodResourcesResponse:
        """List all active pods; this is also when ended pods' devices come free."""
        pods = self._holdings.active()
        self._holdings.sweep()
        return ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in pods])

    def Get(  # noqa: N802
        self, request: GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> GetPodResourcesResponse:
        """Give one pod."""
        wanted = (request.pod_namespace, request.pod_name)
        for pod in self._holdings.active():
            metadata = pod["metadata"]
            if (metadata["namespace"], metadata["name"]) == wanted:
                return GetPodResourcesResponse(pod_resources=self._pod(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return context.abort(grpc.StatusCode.UNKNOWN, text)

    def _pod(self, pod: Json) -> PodResources:
        metadata = pod["metadata"]
        names = [one.name for one in asked_of(Reader(pod)) if not one.ends]
        containers = [self._container(metadata["uid"], name) for name in names]
        return PodResources(
            name=metadata["name"],
            namespace=metadata["namespace"],
            containers=containers,
        )

    def _container(self, uid: str, name: str) -> ContainerResources:
        devices = [
            ContainerDevices(resource_name=resource, device_ids=[one])
            for resource, held in self._holdings.of(uid, name).items()
            for one in held.ids
        ]
        return ContainerResources(name=name, devices=devices)
