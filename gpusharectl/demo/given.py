"""What a container gets of its devices: the plugins' answers, merged. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.kube.proto.deviceplugin_pb2 import (
    ContainerAllocateResponse,
    DeviceSpec,
    Mount,
)


@dataclass(frozen=True, slots=True)
class Given:
    """All that kubelet tells the runtime to put into one container.

    Mounts and devices are by their path in the container.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, Mount] = field(default_factory=dict)
    devices: Mapping[str, DeviceSpec] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()


def merged(answers: Iterable[ContainerAllocateResponse]) -> Given:
    """Merge what was answered for each of a container's resources.

    The first wins where two differ, and who is first is chance with kubelet (contracts
    2.3): answers that agree are the plugin's business.
    """
    envs: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    devices: dict[str, DeviceSpec] = {}
    annotations: dict[str, str] = {}
    cdi: dict[str, None] = {}
    for answer in answers:
        envs = {**answer.envs, **envs}
        annotations = {**answer.annotations, **annotations}
        mounts = {mount.container_path: mount for mount in answer.mounts} | mounts
        devices = {spec.container_path: spec for spec in answer.devices} | devices
        cdi |= {device.name: None for device in answer.cdi_devices}
    return Given(envs, mounts, devices, annotations, tuple(cdi))
