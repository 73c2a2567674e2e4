"""``bitfusion.io/gpu``, offered so that quotas can go on counting it; it does nothing.

A pod that was written for Bitfusion may keep it beside what it really asks
(``docs/bitfusion.md``). kubelet must know the resource, else no node takes the pod.
"""

import grpc

from deviceplugin.metrics import PluginMetrics
from deviceplugin.offer import Offer
from deviceplugin.streams import Service
from gpushare.kube import names
from gpushare.kube.proto import deviceplugin_pb2 as pb


class QuotaPlugin(Service):
    """100 devices for each card, as many as it has cores, and as well as it is.

    Which of them a pod gets says nothing of its card. The ids are those of the cores:
    kubelet keeps the ids of two resources apart, and these stay the same for ever,
    which kubelet wants (contracts 2.2).
    """

    def __init__(self, offer: Offer, metrics: PluginMetrics) -> None:
        # Neither of the other two calls: kubelet may choose as it likes.
        plain = pb.DevicePluginOptions()
        super().__init__(names.BITFUSION_GPU, names.CORE, offer, plain)
        self._metrics = metrics

    def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        """Give nothing: the container's card comes with what it asks of ours."""
        del context
        answer = pb.AllocateResponse()
        with self._metrics.calls.labels("Allocate", self.resource).time():
            for _ in request.container_requests:
                answer.container_responses.add()
        return answer
