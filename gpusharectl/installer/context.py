"""Everything that ``install`` and ``uninstall`` work with; tests pass stand-ins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Forbidden
from gpushare.kube.objects import Objects
from gpusharectl.installer.kube_scheduler.host import HostScheduler
from gpusharectl.installer.kube_scheduler.host_files import HostFiles
from gpusharectl.installer.kube_scheduler.job import SchedulerJobs, SchedulerTarget
from gpusharectl.installer.progress import InstallPatience, Screen, Waiting

_API_SERVER = "the API server"


@dataclass(frozen=True, slots=True)
class Context:
    """The cluster, this host, the screen, and how to reach kube-schedulers."""

    objects: Objects
    files: HostFiles
    screen: Screen
    load: Callable[..., tuple[Json, ...]]
    """``manifests.load_manifests``."""
    host: Callable[[SchedulerTarget], HostScheduler]
    others: Callable[[SchedulerTarget], SchedulerJobs]
    """The kube-schedulers on other control-plane nodes."""
    patience: InstallPatience = field(default_factory=InstallPatience)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def until(
        self, look: Callable[[], Sequence[Waiting]], most_s: float | None = None
    ) -> tuple[Waiting, ...]:
        """Look until nothing is waited for; return what still is when time is up.

        Retryable errors of the API server are waited out until then. So is what it
        forbids after such an error: one that has just started knows no rights yet.
        """
        patience = self.patience
        limit_s = patience.timeout_s if most_s is None else most_s
        deadline = patience.clock() + min(limit_s, patience.timeout_s)
        was_down = False
        try:
            while True:
                waits = self._left(look, deadline, was_down=was_down)
                was_down = was_down or any(wait.who == _API_SERVER for wait in waits)
                if not waits or patience.clock() >= deadline:
                    return waits
                if any(wait.hopeless for wait in waits):
                    return waits
                self.screen.wait(waits)
                patience.pause(patience.look_every_s)
        finally:
            # Also on Ctrl-C: a list that is updated hides the cursor.
            self.screen.settle()

    def _left(
        self, look: Callable[[], Sequence[Waiting]], deadline: float, *, was_down: bool
    ) -> tuple[Waiting, ...]:
        try:
            return tuple(look())
        except ClusterError as error:
            passes = error.retryable or (was_down and isinstance(error, Forbidden))
            if not passes or self.patience.clock() >= deadline:
                raise
            return (Waiting(_API_SERVER, str(error)),)
