"""What containers use, kept up to date for scrapes and for the watchdog."""

from collections.abc import Callable
from threading import Lock

from deviceplugin.fields import MEMORY, UTILIZATION
from deviceplugin.reckoning import CONTEXT_MIB, reckon
from deviceplugin.snapshot import Snapshot
from deviceplugin.tenancy import Tenancy
from deviceplugin.usage import Usage


class UsageBook:
    """The join of processes and pods, worked out anew only when one of them changed.

    One for a process: it remembers since when each container has been idle. Without
    ``tenants`` there are no pods to tell of. May be asked from any thread.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        tenants: Callable[[], Tenancy | None] | None = None,
        *,
        context_mib: float = CONTEXT_MIB,
    ) -> None:
        self._context_mib = context_mib
        self._snapshot = snapshot
        self._tenants = tenants
        self._lock = Lock()
        self._read: tuple[object, ...] = ()
        self._usage = Usage()

    def tenancy(self) -> Tenancy | None:
        """Give the pods of the node; None while nobody tells of them."""
        return self._tenants() if self._tenants else None

    @property
    def has_pods(self) -> bool:
        """Whether pods are followed at all."""
        return self._tenants is not None

    def now(self) -> Usage:
        """Give what containers use by the newest round."""
        with self._lock:
            snapshot, tenancy = self._snapshot(), self.tenancy()
            read = (
                snapshot.processes,
                snapshot.found,
                snapshot.rounds.get(MEMORY),
                snapshot.rounds.get(UTILIZATION),
                snapshot.troubles,
                tenancy,
            )
            if not _same(read, self._read):
                self._usage = reckon(snapshot, tenancy, self._usage, self._context_mib)
                self._read = read
            return self._usage


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Tell whether these are the very same objects: comparing rounds would cost."""
    return len(one) == len(other) and all(
        a is b for a, b in zip(one, other, strict=True)
    )
