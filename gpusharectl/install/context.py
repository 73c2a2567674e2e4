"""All that installing and taking away work with, handed in from outside."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from gpushare.kube.cluster import Json
from gpushare.kube.objects import Objects
from gpusharectl.install.progress import Screen
from gpusharectl.install.rollout import Patience
from gpusharectl.install.scheduler import OtherHosts, SchedulerHost
from gpusharectl.kube_scheduler.drift import Flavour
from gpusharectl.kube_scheduler.host_files import FileChange, HostFiles


class Load(Protocol):
    """Give an overlay's objects; an empty image is the one that is shipped."""

    def __call__(
        self, overlay: str, *, image: str = "", components: Sequence[str] = ()
    ) -> tuple[Json, ...]:
        """Put them together."""
        ...


@dataclass(frozen=True, slots=True)
class SchedulerTarget:
    """What a host's kube-scheduler is to be set to."""

    flavour: Flavour
    node: str
    version: str
    image: str
    tls: bool = False
    frag: bool = False
    """Whether the policy is ``frag``, whose word is to outweigh all others."""
    restart: bool = False
    timeout_s: float = 0.0


def _no_files(_: SchedulerTarget) -> Sequence[FileChange]:
    """Give no files to write."""
    return ()


def _now() -> datetime:
    return datetime.now(UTC)


def _nothing() -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class Context:
    """The cluster, this host, the person at the terminal."""

    objects: Objects
    files: HostFiles
    screen: Screen
    load: Load
    host: Callable[[SchedulerTarget], SchedulerHost]
    others: Callable[[SchedulerTarget], OtherHosts]
    certificates: Callable[[SchedulerTarget], Sequence[FileChange]] = _no_files
    patience: Patience = field(default_factory=Patience)
    inspect: Callable[[], None] = _nothing
    now: Callable[[], datetime] = _now
