"""What all processes of a container count in together, and how it fails.

The region is a FIFO that each of them can lock; none of that may hang or crash them.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.owners.regions import SLOT_LENGTH, SLOTS, counted_in
from tests.exporter.exporter_data import slot_taken
from tests.isolation.build import PRELOAD, compile_program
from tests.isolation.container import (
    FILL,
    FULL,
    HALF,
    HALF_FULL,
    LIMITS,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    REFUSED,
    SHARE_MIB,
    Container,
    racing,
)
from tests.machine import needs


def test_processes_that_race_share_one_share(container: Container) -> None:
    with racing(container, 8, "fill", "cuMemAlloc_v2", "64") as told:
        assert sum(int(line.split()[1]) for line in told) == SHARE_MIB // 64
    assert container.peak_mib == SHARE_MIB


def test_threads_that_race_never_pass_the_share(container: Container) -> None:
    """Also on one pool, which takes more of the card than it gives; all comes back."""
    told = container.said(
        "dlsym", "threads", "8", "300", "fill", "cuMemAlloc_v2", "128"
    )
    assert told == ["threads done", f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}"]
    assert container.peak_mib == SHARE_MIB


def test_processes_that_race_on_pools_never_pass_the_share(
    container: Container,
) -> None:
    """A pool's growth is counted before the driver is called."""
    with racing(container, 6, "fill", "cuMemAllocAsync", "5") as told:
        assert all(line.endswith(f" {OUT_OF_MEMORY}\n") for line in told)
    assert 0 < container.peak_mib <= SHARE_MIB


POINTS = tuple(
    re.findall(r'vcuda_point\("([^"]+)"\)', (PRELOAD / "region.c").read_text())
)


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_this_point_hangs_nobody(
    container: Container, point: str
) -> None:
    """Also one that has the lock; what it held is free again."""
    alloc = ("alloc", "cuMemAlloc_v2", "128")
    before = () if point == "claimed" else alloc
    with container.start("dlsym", *before, "point", point, *alloc, *alloc) as process:
        process.communicate(timeout=60)
    assert process.returncode == -9
    full = f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}"
    assert container.said("dlsym", "fill", "cuMemAlloc_v2", "128") == [full]


def test_a_child_counts_for_itself(container: Container) -> None:
    """What its parent holds is the parent's: its child's end does not free it."""
    half = ("alloc", "cuMemAlloc_v2", "512")
    fill = ("fill", "cuMemAlloc_v2", "128")
    told = container.said("dlsym", *half, "child", *fill, "parent", *fill)
    assert told.count(f"cuMemAlloc_v2 4 {OUT_OF_MEMORY}") == 2


def test_a_program_that_takes_its_place_holds_nothing(container: Container) -> None:
    fill = ("fill", "cuMemAlloc_v2", "128")
    probe = str(container.folder / "probe")
    told = container.said("dlsym", *fill, "exec", probe, "dlsym", *fill)
    assert told == [f"cuMemAlloc_v2 8 {OUT_OF_MEMORY}"] * 2


def test_a_program_that_forks_while_threads_allocate(container: Container) -> None:
    """Its children use the card themselves, and all of it comes back."""
    told = container.said("dlsym", "forks", "40", *FILL)
    assert told == ["forks 0", FULL]


def test_threads_that_are_cancelled_lock_nobody_out(container: Container) -> None:
    told = container.said("dlsym", "cancel", "60", *FILL)
    assert told == ["cancelled", FULL]


def test_six_hundred_processes_have_one_share(container: Container) -> None:
    told = container.said("dlsym", "crowd", "600", *FILL)
    assert told == ["crowd 600", f"more {OUT_OF_MEMORY}", FULL]


def test_more_processes_than_slots_are_refused(container: Container) -> None:
    assert container.said("dlsym", *FILL) == [FULL]
    with slot_taken(container.region, 0, SLOTS * SLOT_LENGTH - 1):
        told, complaint = container.both("dlsym", *HALF)
    assert told == [REFUSED]
    assert "too many processes" in complaint
    assert container.said("dlsym", *FILL) == [FULL]


def test_a_process_of_another_pid_namespace_counts_as_any(
    container: Container,
) -> None:
    """Its number means nothing to the others."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    can = shutil.which("unshare") and subprocess.run(
        [*unshare, "true"], capture_output=True, check=False
    )
    needs(bool(can) and can.returncode == 0, "unshare --pid", "run it as root")
    with container.start("dlsym", *HALF, "wait", before=unshare) as inner:
        assert inner.stdout
        assert inner.stdout.readline() == "cuMemAlloc_v2 1 0\n"
        assert container.said("dlsym", *FILL) == [HALF_FULL]
        inner.communicate("go on", timeout=60)
    assert container.said("dlsym", *FILL) == [FULL]


LEADER_ENDS = (
    "import ctypes, threading, time; "
    "threading.Thread(target=time.sleep, args=(60,)).start(); "
    "print(open('/proc/self/stat').read().split()[21], flush=True); "
    "ctypes.CDLL(None).syscall(60, 0)"
)
"""A program whose first thread has ended and whose second has not."""


def test_who_is_there_is_asked_where_memory_is_short(container: Container) -> None:
    """A process whose first thread alone has ended is; its locks may outlive it."""
    namespace = int(re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink())))
    with subprocess.Popen(
        [sys.executable, "-c", LEADER_ENDS], stdout=subprocess.PIPE, text=True
    ) as ending:
        assert ending.stdout
        told = (512 * 2**20, ending.pid, int(ending.stdout.readline()), namespace)
        with slot_taken(container.region, 0, *told):
            try:
                state = Path(f"/proc/{ending.pid}/stat")
                while ") Z" not in state.read_text():
                    pass
                assert container.said("dlsym", *FILL) == [HALF_FULL]
            finally:
                ending.kill()
                ending.wait()
            assert container.said("dlsym", *FILL) == [FULL]


MANY_FILES = (
    "import os, sys; files = [os.open('other', os.O_WRONLY)]; "
    "files += [os.eventfd(0) for _ in range(900)]; "
    "[os.set_inheritable(file, True) for file in files]; "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Starts a program with many files that it closes at its end; the first is a pipe."""


def test_what_an_ending_process_holds_is_not_given_away(container: Container) -> None:
    """The driver frees its memory with the driver's files, whichever they are."""
    os.mkfifo(container.folder / "other")
    pipe = os.open(container.folder / "other", os.O_RDONLY | os.O_NONBLOCK)
    many = [sys.executable, "-c", MANY_FILES]
    try:
        with container.start("dlsym", *FILL, "wait", before=many) as process:
            assert process.stdout
            assert process.stdout.readline() == f"{FULL}\n"
            assert counted_in(container.region)
            process.kill()
            while counted_in(container.region):
                pass
            assert os.read(pipe, 1) == b"", "it has not closed all"
    finally:
        os.close(pipe)


def test_a_program_that_closes_all_files_stays_within_its_share(
    container: Container,
) -> None:
    """And nothing is written into the file that has the number now."""
    told = container.said("dlsym", *HALF, "shut", "info", *FILL)
    half_left = f"info 0 512 {SHARE_MIB} 0 {SHARE_MIB}"
    assert told[1:] == ["shut 3", half_left, HALF_FULL]
    assert (container.folder / "other").read_bytes() == b""


def test_a_program_that_closes_all_files_counts_again(container: Container) -> None:
    """At the latest when it asks how much is left."""
    with container.start("dlsym", *HALF, "shut", "info", "wait") as process:
        assert process.stdout
        while process.stdout.readline() != "waiting\n":
            pass
        assert container.said("dlsym", *FILL) == [HALF_FULL]


def test_a_program_without_stderr_does_not_complain_into_the_region(
    container: Container,
) -> None:
    script = 'exec "$@" 2>&-'
    shell = ["bash", "-c", script, "bash"]
    with container.start("dlsym", *HALF, "complain", *FILL, before=shell) as process:
        out, _ = process.communicate(timeout=60)
    assert out.splitlines() == ["cuMemAlloc_v2 1 0", HALF_FULL]
    assert container.said("dlsym", *FILL) == [FULL]


def test_a_process_without_proc_counts_as_any(container: Container) -> None:
    script = 'mount -t tmpfs none /proc && exec "$@"'
    hidden = ["unshare", "--mount", "sh", "-c", script, "sh"]
    can = shutil.which("unshare") and subprocess.run(
        [*hidden, "true"], capture_output=True, check=False
    )
    needs(bool(can) and can.returncode == 0, "unshare --mount", "run it as root")
    with container.start("dlsym", *HALF, "wait", *FILL, before=hidden) as process:
        assert process.stdout
        assert process.stdout.readline() == "cuMemAlloc_v2 1 0\n"
        assert container.said("dlsym", *FILL) == [HALF_FULL]
        out, err = process.communicate("go on", timeout=60)
    assert (out.splitlines()[-1], err) == (HALF_FULL, "")


@pytest.mark.parametrize("limit", ["-n 4", "-f 1"], ids=["open files", "file sizes"])
def test_limits_of_a_process_do_not_end_it(container: Container, limit: str) -> None:
    shell = ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash"]
    # The stand-in's own file would end it.
    container.region.with_name("card").write_bytes(b"\0" * 2**20)
    with container.start("dlsym", *FILL, before=shell) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.splitlines() == [FULL]
    assert container.said("dlsym", *FILL) == [FULL]


def harm(region: Path) -> None:
    """Do what a process can that may write the file."""
    with suppress(OSError):
        os.truncate(region, 0)
    with suppress(OSError):
        os.truncate(region, 20 << 30)
    file = os.open(region, os.O_RDWR | os.O_NONBLOCK)
    try:
        with suppress(BlockingIOError):
            os.write(file, b"x" * 4096)
    finally:
        os.close(file)


def test_nobody_notices_what_is_done_to_the_region(container: Container) -> None:
    """Cut off just when a process counts, a mapped file would end it."""
    with container.start("dlsym", *HALF, "pairs", "30000", *FILL) as process:
        while process.poll() is None:
            harm(container.region)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.splitlines()[-1] == HALF_FULL
    assert err == ""
    assert container.region.stat().st_size == container.region.stat().st_blocks == 0


TOLD: dict[str, tuple[int, ...]] = {
    "nothing": (0, 1, 1, 1),
    "nobody": (2**29,),
    "all slots at once": (SLOT_LENGTH * 8,),
    "more than there is": (SLOT_LENGTH - 2, 2**50 - 2, 2**50 - 2, 2**50 - 2),
}


@pytest.mark.parametrize("what", TOLD)
def test_whatever_a_process_tells_of_itself_ends_with_it(
    container: Container, what: str
) -> None:
    """It may keep memory from the others, and never gives them more."""
    with slot_taken(container.region, 5, *TOLD[what]):
        [told] = container.said("dlsym", *FILL)
        most = SHARE_MIB - TOLD[what][0] // 2**20
        assert told == f"cuMemAlloc_v2 {max(most, 0) // 128} {OUT_OF_MEMORY}"
    assert container.said("dlsym", *FILL) == [FULL]


def test_a_complaint_that_nobody_reads_locks_nobody_out(container: Container) -> None:
    """Its stderr is a pipe that is full."""
    os.mkfifo(container.folder / "other")
    fill = 'exec 2<>other; head -c 65536 /dev/zero >&2; exec "$@"'
    full = ["bash", "-c", fill, "bash"]
    limits = container.limits.read_text()
    container.limits.unlink()
    with container.start("dlsym", *HALF, before=full) as process:
        waits = Path(f"/proc/{process.pid}/wchan")
        until = time.monotonic() + 10
        while "pipe" not in waits.read_text() and time.monotonic() < until:
            time.sleep(0.01)
        container.limits.write_text(limits)
        assert container.said("dlsym", *FILL) == [FULL]


def test_a_complaint_into_a_broken_pipe_ends_nobody(container: Container) -> None:
    os.mkfifo(container.folder / "other")
    closed = 'exec 3<>other 2>other 3<&-; exec "$@"'
    container.limits.unlink()
    broken = ["bash", "-c", closed, "bash"]
    with container.start("dlsym", *HALF, *HALF, before=broken) as process:
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()) == (0, [REFUSED] * 2)


def test_a_pool_outlives_the_context_that_used_it(container: Container) -> None:
    """What is allocated of it stays counted."""
    words = ("alloc", "cuMemAllocAsync", "512", "destroy")
    assert container.said("dlsym", "context", *words, *FILL)[-1] == HALF_FULL


def test_a_file_of_the_version_before_does_as_well(container: Container) -> None:
    """That of a claim from before an upgrade; a program may still count in it."""
    container.region.unlink()
    container.region.write_bytes(b"\1" * 40000)
    with container.region.open("r+b") as before:
        fcntl.lockf(before, fcntl.LOCK_EX, SLOTS + 1)
        with container.start("dlsym", *HALF, "wait") as process:
            assert process.stdout
            process.stdout.readline()
            assert container.said("dlsym", *FILL) == [HALF_FULL]
    assert container.region.read_bytes() == b"\1" * 40000


BROKEN: dict[str, Callable[[Container], object]] = {
    "no limits": lambda it: it.limits.unlink(),
    "another form": lambda it: it.limits.write_text("vcuda-limits 2\n"),
    "cut short": lambda it: it.limits.write_text(LIMITS[:-1]),
    "no number": lambda it: it.limits.write_text(LIMITS.replace("1024", "1024x")),
    "two cards": lambda it: it.limits.write_text(f"{LIMITS}card b 5\n"),
    "junk behind it": lambda it: it.limits.write_text(f"{LIMITS}junk"),
    "an empty line behind it": lambda it: it.limits.write_text(f"{LIMITS}\n"),
    "a byte of zero": lambda it: it.limits.write_bytes(LIMITS.encode() + b"\0"),
    "too long": lambda it: it.limits.write_text(LIMITS.replace("GPU", "G" * 300)),
    "a long name": lambda it: it.limits.write_text(LIMITS.replace("GPU", "G" * 90)),
    "whole": lambda it: it.limits.write_text(LIMITS.replace("1024", "whole")),
    "negative": lambda it: it.limits.write_text(LIMITS.replace("1024", "-1")),
    "no number at all": lambda it: it.limits.write_text(LIMITS.replace("1024", "")),
    "more than there is": lambda it: it.limits.write_text(
        LIMITS.replace("1024", "18446744073709551616")
    ),
    "empty": lambda it: it.limits.write_text(""),
    "no region": lambda it: it.region.unlink(),
    "a folder": lambda it: (it.region.unlink(), it.region.mkdir()),
}


@pytest.mark.parametrize("how", BROKEN)
def test_it_fails_closed(container: Container, how: str) -> None:
    """Nothing can be allocated, and one line says why."""
    BROKEN[how](container)
    alloc = ("alloc", "cuMemAlloc_v2", "1")
    with container.start("dlsym", *alloc, *alloc) as process:
        out, err = process.communicate(timeout=60)
    assert out.splitlines() == [f"cuMemAlloc_v2 0 {OPERATING_SYSTEM}"] * 2
    assert err.startswith("vcuda: ")
    assert err.count("\n") == 1


def test_a_kernel_without_locks_of_open_files_refuses_all(
    container: Container, tmp_path: Path
) -> None:
    """Processes could not count together there; the complaint says what is missing."""
    compile_program(tmp_path / "nolocks.so", "nolocks.c", "-shared", "-fPIC")
    held = replace(container, ahead=str(tmp_path / "nolocks.so"))
    with held.start("dlsym", *HALF) as process:
        out, err = process.communicate(timeout=60)
    assert out.splitlines() == [REFUSED]
    assert "has no locks of open files, which Linux has from 3.15 on" in err
