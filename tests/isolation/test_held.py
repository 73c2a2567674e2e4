"""The exporter's verdict on real processes: with the preload library and without it."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from exporter.held import HeldVerdict, judge_container
from exporter.owners.limit_folders import LimitFolders
from exporter.owners.procfs import ProcFs
from gpushare.kubelet.limit_files import LIMITS, REGION
from tests.exporter.exporter_data import use
from tests.isolation.container import SHARE_MIB, Container
from tests.machine import needs

CONTEXT_MIB = 512
WITHOUT = ("env", "-u", "LD_PRELOAD")
IN_A_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def limit_folders(container: Container, state: Path) -> LimitFolders:
    """The container's files where the device plugin has them."""
    folder = state / "containers" / "key"
    folder.mkdir(parents=True)
    (folder / ".hard_limit").write_text(
        f'{{"tier": "preload", "mib": {SHARE_MIB}, "needed_mib": {SHARE_MIB}}}'
    )
    folder.with_name("key.json").write_text('{"uid": "u", "container": "c"}')
    (folder / REGION).hardlink_to(container.region)
    (folder / LIMITS).symlink_to(container.limits)
    return LimitFolders(state)


def program_of(pid: int) -> int:
    """The host's pid of the program, if another one has started it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


@pytest.mark.parametrize(
    ("before", "words", "mib", "why"),
    [
        ((), ("alloc", "cuMemAlloc_v2", "300"), 300 + CONTEXT_MIB, ""),
        ((), ("alloc", "cuMemAlloc_v2", "300"), 900, "counts 300 MiB"),
        ((), ("cuCtxCreate_v2",), 300, ""),
        (WITHOUT, ("alloc", "cuMemAlloc_v2", "300"), 700, "counts nothing"),
        (WITHOUT, ("alloc", "cuMemAlloc_v2", "300"), 300, "counts nothing"),
        (IN_A_NAMESPACE, ("alloc", "cuMemAlloc_v2", "300"), 600, ""),
        (IN_A_NAMESPACE, ("alloc", "cuMemAlloc_v2", "300"), 900, "counts 300 MiB"),
    ],
    ids=["held", "more", "context", "none", "small", "inner pid", "inner, more"],
)
def test_a_real_process_is_judged(
    container: Container,
    tmp_path: Path,
    before: Sequence[str],
    words: Sequence[str],
    mib: float,
    why: str,
) -> None:
    """``mib`` is what NVML says of it; the stand-in has no NVML."""
    needs(before != IN_A_NAMESPACE or os.geteuid() == 0, "root", "run as root")
    needs(shutil.which("unshare") is not None, "unshare", "apt-get install util-linux")
    container.limits.write_text(
        container.limits.read_text().replace("limits 1", "limits 2").rstrip() + " 0\n"
    )
    folders = limit_folders(container, tmp_path)
    with container.start("dlsym", *words, "wait", before=before) as process:
        assert process.stdout
        process.stdout.readline()
        pid = program_of(process.pid)
        [limit] = folders.read().values()
        inside = ProcFs().inside([pid])
        verdict = judge_container(limit, [use(pid, mib)], inside, CONTEXT_MIB)
        process.communicate("", timeout=60)
    assert isinstance(verdict, HeldVerdict)
    assert verdict.is_held == (not why)
    assert why in verdict.because
