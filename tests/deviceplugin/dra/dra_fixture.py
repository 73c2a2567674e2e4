"""A node with the DRA driver on, and the part of kubelet that calls it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import pytest

from deviceplugin.dra import driver, slices
from gpushare.cards.source import FoundCard
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.names import DRA_DRIVER
from gpushare.kube.proto import dra_pb2 as dra
from gpushare.kube.proto import drahealth_pb2 as health
from gpushare.kube.proto import pluginregistration_pb2 as registration
from gpushare.kube.resource_claims.allocated import name_device
from gpushare.kubelet.services import (
    DRA_HEALTH,
    DRA_PLUGIN,
    DRIVER_REGISTRATION,
    make_stub,
)
from tests.builders import (
    allocation_json,
    claim_json,
    container_json,
    pod_json,
    with_claims,
)
from tests.deviceplugin.node_fixture import NODE, UUIDS, NodeFixture
from tests.testbed.waiting import wait_until

SOCKETS = (("grpc.use_local_subchannel_pool", 1),)
WITHIN_S = 10.0


def device_of(card: int) -> str:
    return name_device(UUIDS[card])


def result(card: int, **how: Any) -> Json:
    """What an allocation has of a card."""
    found: Json = allocation_json(device_of(card), **how)["devices"]["results"][0]
    return found


class DraNode(NodeFixture):
    """The plugin with DRA on, over stand-ins; ``kubelet_*`` is what kubelet does."""

    def __init__(
        self, folder: Path, *cards: FoundCard, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.cdi = folder / "cdi"
        defaults = {"dra": True, "cdi_dirs": (folder / "etc-cdi", self.cdi)}
        super().__init__(folder, *cards, settings=defaults | dict(settings or {}))
        self._patches = ExitStack()
        self.is_found = True
        """Whether kubelet finds the driver by itself."""

    def __enter__(self) -> Self:
        patch = self._patches.enter_context(pytest.MonkeyPatch.context())
        for module, name in (
            (driver, "_AGAIN_S"),
            (driver, "_LOOK_S"),
            (driver, "_GRACE_S"),
            (driver, "_HEALTH_LOOK_S"),
            (slices, "_LOOK_S"),
        ):
            patch.setattr(module, name, 0.02)
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._patches.close()

    def start(self) -> None:
        super().start()
        if self.is_found:
            self.kubelet_finds()

    @property
    def registry_socket(self) -> Path:
        return self.folder / "plugins_registry" / f"{DRA_DRIVER}-reg.sock"

    def kubelet_finds(self) -> registration.PluginInfo:
        """Register the driver, as kubelet does when its socket appears."""
        wait_until(self.registry_socket.exists, "the registration socket")
        with self._channel(self.registry_socket) as channel:
            stub = make_stub(channel, DRIVER_REGISTRATION)
            asked = registration.InfoRequest()
            info = stub.GetInfo(asked, timeout=WITHIN_S, wait_for_ready=True)
            done = registration.RegistrationStatus(plugin_registered=True)
            stub.NotifyRegistrationStatus(done, timeout=WITHIN_S)
        return info

    def prepare(self, *claims: Json) -> dict[str, dra.NodePrepareResourceResponse]:
        asked = dra.NodePrepareResourcesRequest(claims=map(ref, claims))
        with self._channel(Path(self.kubelet_finds().endpoint)) as channel:
            answer = make_stub(channel, DRA_PLUGIN).NodePrepareResources(
                asked, timeout=WITHIN_S, wait_for_ready=True
            )
        return dict(answer.claims)

    def prepare_one(self, claim: Json) -> dra.NodePrepareResourceResponse:
        return self.prepare(claim)[claim["metadata"]["uid"]]

    def unprepare(self, *claims: Json) -> dict[str, str]:
        """The error of each claim, by its UID."""
        asked = dra.NodeUnprepareResourcesRequest(claims=map(ref, claims))
        with self._channel(Path(self.kubelet_finds().endpoint)) as channel:
            answer = make_stub(channel, DRA_PLUGIN).NodeUnprepareResources(
                asked, timeout=WITHIN_S, wait_for_ready=True
            )
        return {uid: claim.error for uid, claim in answer.claims.items()}

    def health(self) -> Iterator[dict[str, tuple[int, str]]]:
        """The messages of one health stream: state and text by device."""
        with self._channel(Path(self.kubelet_finds().endpoint)) as channel:
            stream = make_stub(channel, DRA_HEALTH).NodeWatchResources(
                health.NodeWatchResourcesRequest(), timeout=WITHIN_S
            )
            for answer in stream:
                yield {
                    device.device.device_name: (device.health, device.message)
                    for device in answer.devices
                }

    def claim(
        self,
        name: str,
        card: int = 0,
        *,
        device: str = "",
        users: Iterable[str] | Mapping[str, str] = ("p",),
        **how: Any,
    ) -> Json:
        """Make a claim that kube-scheduler has allocated on this node."""
        allocation = allocation_json(device or device_of(card), **how)
        return self.claim_with(name, allocation, users)

    def claim_with(
        self,
        name: str,
        allocation: Json | None,
        users: Iterable[str] | Mapping[str, str] = (),
    ) -> Json:
        body = claim_json(name)
        made = self.cluster.create(Kind.CLAIMS, body)
        uids = dict(users) if isinstance(users, Mapping) else {}
        reserved = [
            {"resource": "pods", "name": pod, "uid": uids.get(pod, f"uid-{pod}")}
            for pod in users
        ]
        status = {"allocation": allocation, "reservedFor": reserved}
        return self.cluster.patch(
            Kind.CLAIMS,
            "default",
            made["metadata"]["name"],
            {"status": status},
            subresource="status",
        )

    def pod_with(self, name: str, uses: Mapping[str, str]) -> Json:
        """A pod on this node whose containers use claims, as the plugin sees it."""
        containers = [container_json(container) for container in uses]
        body = with_claims(pod_json(name, containers=containers, node=NODE), uses)
        made = self.cluster.create(Kind.PODS, body)
        self.wait_seen(name)
        return made

    def slices(self) -> list[Json]:
        return list(self.cluster.list_page(Kind.SLICES, limit=100).items)

    def published(self) -> list[Json]:
        return [device for each in self.slices() for device in each["spec"]["devices"]]

    def specification(self, claim: Json) -> Json:
        """The CDI specification of a claim."""
        uid = claim["metadata"]["uid"]
        found: Json = json.loads(
            (self.cdi / f"{DRA_DRIVER}-share_{uid}.json").read_text()
        )
        return found

    @staticmethod
    def _channel(socket: Path) -> grpc.Channel:
        return grpc.insecure_channel(f"unix://{socket}", options=SOCKETS)


def ref(claim: Json) -> dra.Claim:
    metadata = claim["metadata"]
    return dra.Claim(
        namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"]
    )


def memory_of(device: Json) -> str:
    return str(device["capacity"]["memory"]["value"])


def edits_of(specification: Json, number: int = 0) -> Json:
    found: Json = specification["devices"][number]["containerEdits"]
    return found


def env_of(specification: Json, number: int = 0) -> dict[str, str]:
    pairs = edits_of(specification, number)["env"]
    return dict(pair.split("=", 1) for pair in pairs)


def host_path(specification: Json, inside: str) -> Path:
    """What a mount of a claim's first request has on the node."""
    mounts = edits_of(specification)["mounts"]
    return Path(
        next(mount["hostPath"] for mount in mounts if mount["containerPath"] == inside)
    )


def charges(node: DraNode) -> set[str]:
    """The UIDs of all that is charged."""
    parts = node.serving.parts
    occupancy = node.occupancy
    charged = occupancy.charged(occupancy.as_allocated(), parts.offer.cards)
    return {str(held.pod.uid) for held in charged.placements.values()}
