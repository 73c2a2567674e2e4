"""How kube-scheduler is started on a host: all that kubeadm and k3s differ in.

``KubeadmFile`` and ``K3sFile`` are the two.
"""

from dataclasses import dataclass
from typing import Protocol

from gpusharectl.scheduler.obstacle import Obstacle
from gpusharectl.scheduler.staticpod import Ours


@dataclass(frozen=True, slots=True)
class Found:
    """What kube-scheduler has been reading before us."""

    config: str
    """Its own configuration on the host; "" for none."""
    flags: dict[str, str]


class Starter(Protocol):
    """The file that tells how kube-scheduler is started. Pure; None is no file."""

    path: str
    folder: str
    """Where our files are to lie."""
    cure: str
    """What helps where the file is spoiled."""

    def kubeconfig(self, bare: str | None) -> str:
        """Give kube-scheduler's, where none of its flags tells it; else ""."""
        ...

    def edited(self, text: str | None, ours: Ours) -> str | Obstacle:
        """Give the text with our configuration; itself where it has it."""
        ...

    def bare(self, text: str | None, ours: Ours) -> str | Obstacle | None:
        """Give the text without what is ours; None where nothing is left."""
        ...

    def is_edited(self, text: str | None, ours: Ours) -> bool:
        """Tell whether kube-scheduler is told to read our configuration."""
        ...

    def found(self, bare: str | None) -> Found | Obstacle:
        """Tell what a text without ours makes kube-scheduler read."""
        ...
