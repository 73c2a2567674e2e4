"""Both sides of kubelet's gRPC services, by the descriptors of their messages.

``make proto`` generates the messages alone. The generator's code for the services is
ten times as long as this module, half of it for an experimental API.
"""

from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from gpushare.kube.proto import deviceplugin_pb2, podresources_pb2

_DEVICES = deviceplugin_pb2.DESCRIPTOR.services_by_name
REGISTRATION: ServiceDescriptor = _DEVICES["Registration"]
DEVICE_PLUGIN: ServiceDescriptor = _DEVICES["DevicePlugin"]
_PODS = podresources_pb2.DESCRIPTOR.services_by_name
POD_RESOURCES: ServiceDescriptor = _PODS["PodResourcesLister"]


class Stub:
    """The client's side of a service: one attribute to call for each method."""

    def __init__(self, service: ServiceDescriptor, channel: grpc.Channel) -> None:
        for method in service.methods:
            streams = method.server_streaming
            call: Any = channel.unary_stream if streams else channel.unary_unary
            self.__dict__[method.name] = call(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
                _registered_method=True,
            )

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        raise AttributeError(name)


def serve(service: ServiceDescriptor, servicer: object, server: grpc.Server) -> None:
    """Answer a service's calls by methods of their names; others are unimplemented."""
    handlers = {}
    for method in service.methods:
        if hasattr(servicer, method.name):
            asked, answer = map(
                GetMessageClass, (method.input_type, method.output_type)
            )
            handlers[method.name] = (
                grpc.unary_stream_rpc_method_handler
                if method.server_streaming
                else grpc.unary_unary_rpc_method_handler
            )(
                getattr(servicer, method.name),
                request_deserializer=asked.FromString,
                response_serializer=answer.SerializeToString,
            )
    generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
    server.add_generic_rpc_handlers((generic,))
    server.add_registered_method_handlers(service.full_name, handlers)
