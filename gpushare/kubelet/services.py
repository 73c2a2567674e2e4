"""Call and serve the gRPC services between kubelet, plugins and drivers.

``make proto`` generates their messages. What a plugin of protoc would write for each
service is the same for all of them, and is done here by the service's descriptor.
"""

from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gpushare.kube.proto import (
    deviceplugin_pb2,
    dra_pb2,
    drahealth_pb2,
    pluginregistration_pb2,
    podresources_pb2,
)

DEVICE_PLUGIN = deviceplugin_pb2.DESCRIPTOR.services_by_name["DevicePlugin"]
"""A plugin's, for kubelet."""
REGISTRATION = deviceplugin_pb2.DESCRIPTOR.services_by_name["Registration"]
"""kubelet's, for device plugins."""
DRA_PLUGIN = dra_pb2.DESCRIPTOR.services_by_name["DRAPlugin"]
"""A driver's, for kubelet."""
DRA_HEALTH = drahealth_pb2.DESCRIPTOR.services_by_name["DRAResourceHealth"]
"""A driver's, for kubelet."""
DRIVER_REGISTRATION = pluginregistration_pb2.DESCRIPTOR.services_by_name["Registration"]
"""A driver's, by which kubelet finds it."""
POD_RESOURCES = podresources_pb2.DESCRIPTOR.services_by_name["PodResourcesLister"]
"""kubelet's, for everybody on the node."""


def make_stub(channel: grpc.Channel, service: ServiceDescriptor) -> Any:  # noqa: ANN401
    """Return an object whose methods, by the service's names, call a server."""
    stub = SimpleNamespace()
    for method in service.methods:
        request, answer = _messages(method)
        call = channel.unary_stream if method.server_streaming else channel.unary_unary
        made = call(
            f"/{service.full_name}/{method.name}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        setattr(stub, method.name, made)
    return stub


def add_servicer(
    server: grpc.Server, service: ServiceDescriptor, servicer: object
) -> None:
    """Serve the methods of a service that an object has; others are unimplemented."""
    handlers = {}
    for method in service.methods:
        if (handle := getattr(servicer, method.name, None)) is None:
            continue
        request, answer = _messages(method)
        make = (
            grpc.unary_stream_rpc_method_handler
            if method.server_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        handlers[method.name] = make(
            handle,
            request_deserializer=request.FromString,
            response_serializer=answer.SerializeToString,
        )
    server.add_registered_method_handlers(service.full_name, handlers)


def _messages(method: MethodDescriptor) -> tuple[type[Message], type[Message]]:
    return GetMessageClass(method.input_type), GetMessageClass(method.output_type)
