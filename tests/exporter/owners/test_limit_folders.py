"""What the device plugin wrote for a container, as the exporter reads it."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.allocation.records import AllocationRecord
from deviceplugin.dra.prepared import PreparedResourceClaims, RequestFiles
from exporter.held import ContainerLimit, of_container
from exporter.owners.limit_folders import LimitFolders, merge_limits
from gpushare.domain.model import PodUID
from gpushare.kube import names
from gpushare.kubelet.claim_records import PreparedResourceClaim
from gpushare.kubelet.limit_files import REGION, InnerPid
from gpushare.kubelet.pods import HardLimit
from tests.deviceplugin.node_fixture import NODE, allocation_records
from tests.exporter.exporter_data import counting
from tests.machine import needs

Log = pytest.LogCaptureFixture
PRELOAD, DRIVER = HardLimit("preload", 1024, 1536), HardLimit("driver", 768, 768)
RECORD = AllocationRecord(
    "default", "a", PodUID("uid-a"), "main", names.MEMORY, ("1f9c27aa-m0001",)
)
A = of_container("uid-a", "main")
LIMITS = "vcuda-limits 2\ncard GPU-1 1024 256\n"


def put(state: Path, record: AllocationRecord, limit: HardLimit | None) -> Path:
    """Let the device plugin start this container; its folder."""
    records = allocation_records(state / "containers")
    records.write(record, limit)
    records.fill(record, record, "{}", LIMITS if limit == PRELOAD else "")
    return records.folder(record)


def test_a_container_has_what_its_record_says(tmp_path: Path) -> None:
    """One without a limit is not there; a second resource's folder has no limit."""
    folder = put(tmp_path, RECORD, PRELOAD)
    put(tmp_path, replace(RECORD, resource=names.CORE, ids=("1f9c27aa-c001",)), None)
    put(tmp_path, replace(RECORD, uid=PodUID("uid-b")), None)
    put(tmp_path, replace(RECORD, uid=PodUID("uid-d")), DRIVER)
    folders = LimitFolders(tmp_path)
    driver = {of_container("uid-d", "main"): ContainerLimit(DRIVER)}
    assert folders.read() == {A: ContainerLimit(PRELOAD, {}, True)} | driver
    counted = {InnerPid(7, 100): 300 * 2**20, InnerPid(8, 0): 0}
    with counting(folder / REGION, {(7, 100): 300, (8, 0): 0}):
        assert folders.read()[A] == ContainerLimit(PRELOAD, counted, True)
        (folder / "limits").write_text("vcuda-limits 1\ncard GPU-1 1024\n")
        assert folders.read()[A] == ContainerLimit(PRELOAD, counted)


def test_a_container_that_allocate_did_not_know(tmp_path: Path) -> None:
    """Its record has no container's name; what the container sees has it."""
    folder = put(tmp_path, replace(RECORD, container=""), PRELOAD)
    inside = {"uid": "uid-a", "container": "main"}
    (folder / "allocation.json").write_text(json.dumps(inside))
    assert LimitFolders(tmp_path).read() == {A: ContainerLimit(PRELOAD, {}, True)}


@pytest.mark.parametrize("content", [b"", bytes(2**20)])
def test_a_container_that_runs_since_before_an_upgrade(
    tmp_path: Path, caplog: Log, content: bytes
) -> None:
    """Its library counts in a file: nothing is known, and nobody is alarmed."""
    folder = put(tmp_path, RECORD, PRELOAD)
    (folder / REGION).unlink()
    (folder / REGION).write_bytes(content)
    assert LimitFolders(tmp_path).read()[A].counted is None
    assert caplog.messages == []


def test_a_container_by_a_claim(tmp_path: Path) -> None:
    """By the part of the claim that it uses."""
    claim = PreparedResourceClaim("uid-c", "default", "c", (), {"r": PRELOAD}, {})
    prepared = PreparedResourceClaims(tmp_path / "claims", tmp_path / "cdi", NODE)
    prepared.put(claim, [RequestFiles("r", "{}", LIMITS)])
    read = LimitFolders(tmp_path).read()
    assert read == {"uid-c/r": ContainerLimit(PRELOAD, {}, True)}


def test_what_cannot_be_read_is_unknown_and_logged_once(
    tmp_path: Path, caplog: Log
) -> None:
    folder = put(tmp_path, RECORD, PRELOAD)
    (folder / REGION).unlink()
    folders = LimitFolders(tmp_path)
    assert folders.read() == {A: ContainerLimit(PRELOAD)}
    assert caplog.messages == []
    (folder / REGION).mkdir()
    for _ in range(3):
        assert folders.read() == {A: ContainerLimit(PRELOAD)}
    assert len(caplog.messages) == 1
    (tmp_path / "containers" / "broken").mkdir()
    (tmp_path / "containers" / "broken" / ".hard_limit").write_text("{")
    assert folders.read().keys() == {A}
    assert LimitFolders(tmp_path / "elsewhere").read() == {}


WRITES_WHAT_NEVER_COMES = """
import ctypes, fcntl, mmap, os, signal, struct, sys
signal.alarm(10)
kernel = ctypes.CDLL(None, use_errno=True)
faults = kernel.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK)
if faults < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
fcntl.ioctl(faults, 0xC018AA3F, struct.pack("3Q", 0xAA, 0, 0))
page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
fcntl.ioctl(faults, 0xC020AA00, struct.pack("4Q", at, 4096, 1, 0))
region = os.open(sys.argv[1], os.O_RDWR | os.O_NONBLOCK)
print("writes", flush=True)
kernel.write(region, ctypes.c_void_p(at), 4096)
"""
"""Keeps the kernel's lock of a FIFO, by ``userfaultfd(2)``, 10 s at most; a file system
in user space would do as well."""


def test_a_container_that_keeps_its_region_from_being_opened(
    tmp_path: Path, caplog: Log
) -> None:
    """It is unknown itself, keeps nothing of the others, and is known again later."""
    folder = put(tmp_path, RECORD, PRELOAD)
    put(tmp_path, replace(RECORD, uid=PodUID("uid-b")), PRELOAD)
    folders, known = LimitFolders(tmp_path), ContainerLimit(PRELOAD, {}, True)
    words = [sys.executable, "-c", WRITES_WHAT_NEVER_COMES, str(folder / REGION)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as writer:
        try:
            assert writer.stdout
            needs(writer.stdout.readline() == "writes\n", "userfaultfd", "run as root")
            waits = Path(f"/proc/{writer.pid}/wchan")
            while "userfault" not in waits.read_text() and writer.poll() is None:
                time.sleep(0.01)
            for _ in range(3):
                read = folders.read()
                assert writer.poll() is None
                assert read[A] == ContainerLimit(PRELOAD)
                assert read[of_container("uid-b", "main")] == known
        finally:
            writer.kill()
    assert len(caplog.messages) == 1
    until = time.monotonic() + 120
    while folders.read()[A] != known and time.monotonic() < until:
        time.sleep(0.01)
    assert folders.read()[A] == known


def test_what_was_counted_before_or_after_counts() -> None:
    """The driver is asked in between: what was given back meanwhile, it may tell of."""
    one, other, third = (InnerPid(pid, 1) for pid in (1, 2, 3))

    def limits(counted: dict[InnerPid, int] | None) -> dict[str, ContainerLimit]:
        return {A: ContainerLimit(PRELOAD, counted)}

    merged = merge_limits(limits({one: 9, other: 1}), limits({one: 2, third: 5}))
    assert merged == limits({one: 9, other: 1, third: 5})
    assert merge_limits({}, limits({one: 2})) == limits({one: 2})
    assert merge_limits(limits({one: 2}), {}) == {}
    assert merge_limits(limits({one: 2}), limits(None)) == limits(None)
