"""kubelet's services, called and served by their descriptors."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from gpushare.kube.proto import deviceplugin_pb2 as pb
from gpushare.kubelet.services import (
    DEVICE_PLUGIN,
    REGISTRATION,
    add_servicer,
    make_stub,
)


class Plugin:
    """Has two of the methods of a device plugin."""

    def ListAndWatch(  # noqa: N802
        self, _request: pb.Empty, _context: grpc.ServicerContext
    ) -> Iterator[pb.ListAndWatchResponse]:
        yield from (pb.ListAndWatchResponse(devices=[pb.Device(ID=i)]) for i in "ab")

    def GetDevicePluginOptions(  # noqa: N802
        self, _request: pb.Empty, _context: grpc.ServicerContext
    ) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(pre_start_required=True)


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[grpc.Channel]:
    server = grpc.server(ThreadPoolExecutor(2))
    add_servicer(server, DEVICE_PLUGIN, Plugin())
    server.add_insecure_port(f"unix:{tmp_path / 'p.sock'}")
    server.start()
    with grpc.insecure_channel(f"unix:{tmp_path / 'p.sock'}") as opened:
        yield opened
    server.stop(None).wait()


def test_calls_and_streams(channel: grpc.Channel) -> None:
    plugin = make_stub(channel, DEVICE_PLUGIN)
    assert plugin.GetDevicePluginOptions(pb.Empty()).pre_start_required
    lists = plugin.ListAndWatch(pb.Empty())
    assert [device.ID for each in lists for device in each.devices] == ["a", "b"]


def test_what_nobody_serves_is_unimplemented(channel: grpc.Channel) -> None:
    """A method that the object lacks, and another service."""
    plugin, kubelet = (
        make_stub(channel, DEVICE_PLUGIN),
        make_stub(channel, REGISTRATION),
    )
    for call, request in (
        (plugin.Allocate, pb.AllocateRequest()),
        (kubelet.Register, pb.RegisterRequest()),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call(request)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
