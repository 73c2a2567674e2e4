"""NVIDIA's own hook sets the limits that Allocate asks for, over the stub driver.

It wants cgroup v2 at /sys/fs/cgroup, so it runs in a mount namespace that has it there.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from deviceplugin.allocation.cdi import LIMIT, REQUEST, hard_limit_env
from tests.machine import needs
from tests.nvml.build import SONAME, STATE_VARIABLE, the_stub
from tests.nvml.driver import StubDriver, stub_card
from tests.testbed.binaries import (
    CDI_HOOK,
    NVIDIA_MODULE,
    cache_folder,
    ensure_binaries,
)
from tests.testbed.toolchain import BinariesUnavailableError

CARD = stub_card(0)
V2 = "mount -t cgroup2 none /sys/fs/cgroup && "
V1 = "mount -t tmpfs none /sys/fs/cgroup && "

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def hook() -> str:
    needs(os.geteuid() == 0, "root", "run the tests as root")
    try:
        found = ensure_binaries(cache_folder(os.environ), NVIDIA_MODULE, CDI_HOOK)
    except BinariesUnavailableError as error:
        needs(condition=False, what="nvidia-cdi-hook", cure=str(error))
        raise
    return found.path("nvidia-cdi-hook")


def run(
    hook: str,
    folder: Path,
    variables: Mapping[str, str],
    *,
    groups: str = V2,
    library: Path | None = None,
) -> tuple[int, str, list[tuple[int, int]]]:
    """Run the hook as runc does; give status, last words and the limits in MiB."""
    driver, root, bundle = (folder / name for name in ("state", "root", "bundle"))
    for made in (driver, root / "usr/lib64", bundle):
        made.mkdir(parents=True, exist_ok=True)
    stub = StubDriver(driver, [CARD])
    shutil.copy(library or the_stub().library, root / "usr/lib64" / SONAME)
    env = [f"{name}={value}" for name, value in variables.items()]
    config = {"ociVersion": "1.0.2", "process": {"env": env}, "root": {"path": "r"}}
    (bundle / "config.json").write_text(json.dumps(config))
    state = {"ociVersion": "1.0.2", "id": "x", "status": "created"}
    state |= {"pid": os.getpid(), "bundle": str(bundle)}  # type: ignore[dict-item]
    call = f"{hook} apply-cuda-memory-limits --driver-root {root} --gpu-id {CARD.uuid}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{groups}exec {call}"],
        input=json.dumps(state),
        env={**os.environ, STATE_VARIABLE: str(stub.path)},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr, list(stub.limits().values())


def test_what_allocate_gives_is_a_hard_limit_that_reserves_nothing(
    hook: str, tmp_path: Path
) -> None:
    status, words, limits = run(hook, tmp_path, hard_limit_env(768))
    assert (status, limits) == (0, [(0, 768)]), words


def test_without_variables_there_is_no_limit(hook: str, tmp_path: Path) -> None:
    status, words, limits = run(hook, tmp_path, hard_limit_env(None))
    assert (status, limits) == (0, []), words


def test_the_limit_alone_would_reserve(hook: str, tmp_path: Path) -> None:
    """Why Allocate gives both."""
    assert run(hook, tmp_path, {LIMIT: "768"})[2] == [(768, 768)]


def test_what_the_checks_keep_from_users(hook: str, tmp_path: Path) -> None:
    """With any of these every container with a limit would fail."""
    old = the_stub().old_library
    v1, words, _ = run(hook, tmp_path / "1", hard_limit_env(768), groups=V1)
    assert v1 == 1
    assert "only supported in cgroup v2" in words
    code, words, _ = run(hook, tmp_path / "2", hard_limit_env(768), library=old)
    assert code == 127
    assert "symbol lookup error" in words
    above = {REQUEST: "769", LIMIT: "768"}
    assert run(hook, tmp_path / "3", above)[0] == 1
