"""How much a container's processes count, by the locks that they hold on its region.

The region is a FIFO, and ``isolation/preload/region.c`` says which lock tells what.
To open or close it may take for ever, if a container wants that.
"""

import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpushare.kubelet.limit_files import InnerPid

SLOTS = 1024
SLOT_LENGTH = 1 << 50
USED, PID, START = range(3)
WITHIN_S = 0.1
"""A container may hold so many locks that the kernel needs seconds for them. Seconds of
this thread's processor time: a busy node or a limit of the exporter's is no hostile
container."""
_FLOCK = struct.Struct("@hhqqi0q")
"""``struct flock``: type, from where it counts, start, length, pid."""


def place(number: int, slot: int) -> int:
    """Return the first byte of the lock that tells this number of a slot."""
    return ((1 + number) * SLOTS + slot) * SLOT_LENGTH


def counted_in(
    region: Path, within_s: float = WITHIN_S
) -> Mapping[InnerPid, int] | None:
    """Return how many bytes are counted of each process; 0 of a context alone.

    None if it is not known: a container that runs since before an upgrade counts in
    another way. Raises ``OSError``, and ``TimeoutError`` after so much processor time.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(region, flags)
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISREG(mode):
            return None
        if not stat.S_ISFIFO(mode):
            raise OSError("it is not a FIFO, as which the device plugin makes it")
        over = time.thread_time() + within_s
        counted: dict[InnerPid, int] = {}
        for slot, used in _slots(file, over):
            pid, start = (_read_number(file, number, slot) for number in (PID, START))
            process = InnerPid(pid, start)
            counted[process] = counted.get(process, 0) + used
        return counted
    finally:
        os.close(file)


def _slots(file: int, over: float) -> Iterator[tuple[int, int]]:
    """Yield the slots that processes have, each with the bytes that it counts."""
    at = 0
    while at < SLOTS:
        slot, used = SLOTS, 0
        # The kernel returns any of several locks; one may begin before.
        while at < slot and (lock := _lock(file, place(USED, at), place(USED, slot))):
            slot = max(at, lock[0] // SLOT_LENGTH - SLOTS)
            used = min(lock[1], place(USED, slot + 1) - 1) - place(USED, slot)
            if time.thread_time() > over:
                raise TimeoutError("it has more locks than the library makes")
        if slot < SLOTS:
            yield slot, used
        at = slot + 1


def _read_number(file: int, number: int, slot: int) -> int:
    first = place(number, slot)
    lock = _lock(file, first, first + SLOT_LENGTH)
    return lock[1] - first if lock else 0


def _lock(file: int, first: int, end: int) -> tuple[int, int] | None:
    """Return the first and the last byte of a lock that somebody holds here."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, end - first, 0)
    kind, _, start, length, _ = _FLOCK.unpack(
        fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked)
    )
    if kind == fcntl.F_UNLCK:
        return None
    return start, min(start + length if length else end, end) - 1
