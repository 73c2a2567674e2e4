"""Whether what should hold a container to its share really does. Pure.

Tier ``preload``: each of its processes on a card must be counted in its region, with
about as much as the driver says. A process that is not counted has no library: it is
static or of musl, uses OpenGL or Vulkan, found its functions in another way, or took
the library away. So neither its memory nor its maps have to be read.

Tier ``driver``: what the driver holds never uses more than its limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exporter.telemetry.base import ProcessUse
from gpushare.kubelet.limit_files import InnerPid
from gpushare.kubelet.pods import HardLimit

TOLERANCE = 1.05
"""More than so many times what is counted is more, because memory comes in pages."""
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class ContainerLimit:
    """What should hold one container, or the containers of a part of a ResourceClaim.

    ``counted`` is what its region counts of each process, in bytes; None if it is not
    known. ``counts_contexts``: the library counts a process's context, too.
    """

    limit: HardLimit
    counted: Mapping[InnerPid, int] | None = None
    counts_contexts: bool = False


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What should hold the containers of a node at one moment.

    ``containers`` by ``of_container`` or the part of a ResourceClaim, ``inside`` the
    processes by the host's pid.
    """

    containers: Mapping[str, ContainerLimit] = field(default_factory=dict)
    inside: Mapping[int, InnerPid] = field(default_factory=dict)


def of_container(uid: str, container: str) -> str:
    """Return the key of a container in ``NodeLimits``."""
    return f"{uid} {container}"


@dataclass(frozen=True, slots=True)
class HeldVerdict:
    """Whether a container is held; ``because`` says why not, empty if it is."""

    because: str = ""

    @property
    def is_held(self) -> bool:
        """Whether it is held to its share."""
        return not self.because


EARLIER = HeldVerdict(
    "it has no limit, because it started before its node had an isolation tier; delete "
    "its pod, and the one that replaces it is limited"
)


def judge_container(
    limit: ContainerLimit,
    processes: Sequence[ProcessUse],
    inside: Mapping[int, InnerPid],
    context_mib: float,
) -> HeldVerdict | None:
    """Judge a container by its processes on one card; None if it is not known.

    ``context_mib`` is what each may hold for its context beside what is counted.
    """
    if limit.limit.tier == "driver":
        return _by_use(limit.limit, processes)
    if limit.limit.tier != "preload" or limit.counted is None:
        return None
    known = bool(processes)
    for process in processes:
        name = inside.get(process.pid)
        if name is None or process.memory_mib is None:
            # It has just ended, or the kernel does not tell.
            known = False
            continue
        counted = limit.counted.get(name, limit.counted.get(InnerPid(name.pid, 0)))
        because = _why_not_counted(process, counted, context_mib)
        if because and counted is None and not _must_count(limit, process, context_mib):
            known = False
        elif because:
            return HeldVerdict(because)
    return HeldVerdict() if known else None


def _must_count(limit: ContainerLimit, process: ProcessUse, context_mib: float) -> bool:
    """Return whether the library would have a slot for a process.

    One of an earlier version counts nothing before the first allocation.
    """
    return limit.counts_contexts or (process.memory_mib or 0.0) > context_mib


def _why_not_counted(
    process: ProcessUse, counted: int | None, context_mib: float
) -> str:
    holds = f"its process {process.pid} holds {process.memory_mib or 0:.0f} MiB"
    if counted is None:
        return (
            f"{holds}, of which the preload library counts nothing: the program is "
            "static or of musl, uses OpenGL or Vulkan, or took the library away"
        )
    counted_mib = counted / _MIB
    if (process.memory_mib or 0.0) > counted_mib * TOLERANCE + context_mib:
        return f"{holds}, and the preload library counts {counted_mib:.0f} MiB"
    return ""


def _by_use(limit: HardLimit, processes: Sequence[ProcessUse]) -> HeldVerdict | None:
    """Judge by use alone: nobody below the limit shows that it stands."""
    used = sum(process.memory_mib or 0.0 for process in processes)
    if used <= limit.mib * TOLERANCE:
        return None
    return HeldVerdict(
        f"its processes hold {used:.0f} MiB, above the {limit.mib} MiB to which the "
        "driver should hold them"
    )
