"""Everything that a cluster is made of: binaries and images, built once."""

from dataclasses import dataclass
from pathlib import Path

from tests.testbed.binaries import (
    NODE,
    NVIDIA,
    NVIDIA_MODULE,
    RUNTIME,
    RUNTIME_MODULE,
    Binaries,
    ensure_binaries,
)
from tests.testbed.kubeadm.imageset import ImageSet, ensure_images, version
from tests.testbed.kubeadm.machine import install_packages, why_not
from tests.testbed.kubernetes import ensure_kubernetes
from tests.testbed.toolchain import BinariesUnavailableError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Programs:
    control_plane: Binaries
    node: Binaries
    runtime: Binaries
    nvidia: Binaries
    images: ImageSet

    @property
    def version(self) -> str:
        return version(self.node.path("kubeadm"))

    @property
    def path(self) -> str:
        """What a node's processes have as PATH: ours first, or others' are taken."""
        ours = (self.node, self.runtime, self.nvidia, self.control_plane)
        return ":".join([*(str(each.folder) for each in ours), SYSTEM_PATH])


def ensure_programs(cache: Path) -> Programs:
    """Give all of it, installed and built now (minutes) where something is missing.

    Raises ``BinariesUnavailableError`` where this machine cannot carry a cluster.
    """
    if obstacle := why_not():
        raise BinariesUnavailableError(*obstacle)
    install_packages()
    control_plane = ensure_kubernetes(cache)
    node = ensure_kubernetes(cache, NODE)
    runtime = ensure_binaries(cache, RUNTIME_MODULE, RUNTIME)
    nvidia = ensure_binaries(cache, NVIDIA_MODULE, NVIDIA)
    images = ensure_images(cache, control_plane, node)
    return Programs(control_plane, node, runtime, nvidia, images)
