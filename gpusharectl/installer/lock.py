"""Let one ``install`` or ``uninstall`` at a time change a cluster, by a Lease.

The Lease is renewed while the command runs and deleted when it ends. One that is no
longer renewed belongs to a command that was killed; the next command then takes it.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event, Thread
from uuid import uuid4

from gpushare.kube.cluster import Json
from gpushare.kube.errors import AlreadyExists, ClusterError, Conflict, Forbidden
from gpushare.kube.facts import PART_NAME, PART_OF, PRODUCT, SYSTEM
from gpushare.kube.objects import Objects, Ref
from gpusharectl.installer.context import Context
from gpusharectl.installer.progress import NOTHING_DONE, Exit, InstallError, Waiting

LEASE = Ref("coordination.k8s.io/v1", "Lease", "gpushare-installer", SYSTEM)
LASTS_S = 10.0
"""A Lease that is not renewed for so long belongs to nobody."""
RENEWED_EVERY_S = 3.0


@contextmanager
def hold_lease(context: Context, command: str) -> Iterator[None]:
    """Hold the Lease; wait for another command that holds it.

    ``InstallError`` if that does not end in time. Without the right to write Leases
    nothing is held: the checks then name this right.
    """
    # In containers several commands have the same process number.
    holder = f"{command} on {socket.gethostname()} (process {os.getpid()})_{uuid4()}"
    lease = _Lease(context.objects, context.patience.clock, holder)
    try:
        waits = context.until(lease.take)
    except Forbidden:
        yield
        return
    if waits:
        why = f"{waits[0].who} still runs; {NOTHING_DONE}"
        raise InstallError(why, exit_code=Exit.REFUSED)
    over = Event()
    thread = Thread(target=lease.keep, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        # Left over, it is taken after ``LASTS_S``.
        with suppress(ClusterError):
            lease.release()


@dataclass
class _Lease:
    """The Lease as one command takes, renews and releases it.

    Whether another's is still renewed is measured here, since clocks may differ.
    """

    objects: Objects
    clock: Callable[[], float]
    holder: str
    seen: tuple[str, float] = ("", 0.0)
    """The version of another's Lease, and when it was first seen."""

    def take(self) -> list[Waiting]:
        """Take the Lease if it is free; return who has it otherwise."""
        try:
            self.objects.create(self._body())
        except AlreadyExists:
            there = self.objects.get(LEASE)
        else:
            return []
        # A lost answer may hide that it was created.
        if there and _holder(there) == self.holder:
            return []
        if there and self._is_left(there):
            body = self._body()
            body["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"]
            with suppress(Conflict):
                self.objects.merge(LEASE, body)
                return []
        who = _holder(there or {}).rpartition("_")[0] or "of somebody else"
        since = str(((there or {}).get("spec") or {}).get("acquireTime", ""))
        return [Waiting(f"gpusharectl {who}", "its end", since)]

    def keep(self, over: Event) -> None:
        """Renew the Lease until ``over``; not if another command has it meanwhile."""
        while not over.wait(RENEWED_EVERY_S):
            # If it fails, the next renewal may succeed.
            with suppress(ClusterError):
                there = self.objects.get(LEASE)
                if there is None or _holder(there) != self.holder:
                    return
                self.objects.merge(LEASE, {"spec": {"renewTime": _now()}})

    def release(self) -> None:
        """Delete the Lease, if it is still this command's."""
        there = self.objects.get(LEASE)
        if there and _holder(there) == self.holder:
            self.objects.delete(LEASE)

    def _is_left(self, there: Json) -> bool:
        version, now = there["metadata"]["resourceVersion"], self.clock()
        if version != self.seen[0]:
            self.seen = (version, now)
        return now - self.seen[1] >= LASTS_S

    def _body(self) -> Json:
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {
                "name": LEASE.name,
                "namespace": LEASE.namespace,
                "labels": {PART_OF: PRODUCT, PART_NAME: LEASE.name},
            },
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": round(LASTS_S),
                "acquireTime": _now(),
                "renewTime": _now(),
            },
        }


def _holder(lease: Json) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _now() -> str:
    """Return the time as a Lease has it."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    return now.replace("+00:00", "Z")
