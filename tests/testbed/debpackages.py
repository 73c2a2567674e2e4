"""Programs of Debian's packages, unpacked into the cache: nothing is installed.

An installed ``prometheus`` would start as a service on the machine of whoever tests.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.toolchain import BinariesUnavailableError


def ensure_unpacked(cache: Path, name: str, packages: Sequence[str]) -> Path:
    """Give the folder that has these packages' files, fetched now where there is none.

    It is ``<cache>/<name>``, laid out like the root of a file system. Raises
    ``BinariesUnavailableError`` where apt cannot fetch them.
    """
    folder = cache / name
    if folder.exists():
        return folder
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            wanted = " and ".join(packages)
            cure = f"run it on Debian or Ubuntu, which have {wanted}"
            raise BinariesUnavailableError(f"no {program}", cure)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f"{name}-unfinished-") as work:
        root = Path(work) / "root"
        root.mkdir()
        for archive in _fetched(Path(work), packages):
            subprocess.run(["dpkg-deb", "--extract", archive, root], check=True)
        try:
            root.rename(folder)
        except OSError:
            # Another run was first.
            assert folder.exists()
    print(f"unpacked {', '.join(packages)} into {folder}", flush=True)
    return folder


def needed_for(*packages: str) -> list[str]:
    """Name these packages and all that they need and this machine has not installed.

    Raises ``BinariesUnavailableError`` where apt does not know.
    """
    with tempfile.TemporaryDirectory() as work:
        order = ("--simulate", "--no-install-recommends", "install", *packages)
        said = _asked(Path(work), *order)
        if said is None and _apt(Path(work), "update"):
            said = _asked(Path(work), *order)
    if said is None:
        raise BinariesUnavailableError(
            f"apt-get does not know what {' and '.join(packages)} needs",
            "apt-get update, and let apt reach Debian's packages",
        )
    # Those that are installed already are found where they are.
    new = [line.split()[1] for line in said.splitlines() if line.startswith("Inst ")]
    return sorted({*packages, *new})


def _fetched(work: Path, packages: Sequence[str]) -> list[Path]:
    # A machine that is new has no list of packages yet, or an old one.
    if not (
        _apt(work, "download", *packages)
        or (_apt(work, "update") and _apt(work, "download", *packages))
    ):
        raise BinariesUnavailableError(
            f"apt-get could not download {' and '.join(packages)}",
            "apt-get update, and let apt reach Debian's packages",
        )
    return sorted(work.glob("*.deb"))


def _apt(work: Path, *arguments: str) -> bool:
    return _asked(work, *arguments) is not None


def _asked(work: Path, *arguments: str) -> str | None:
    """Give what apt-get says; None where it fails, or is not there."""
    if shutil.which("apt-get") is None:
        return None
    done = subprocess.run(
        ["apt-get", "--quiet", *arguments],
        cwd=work,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
    return done.stdout if done.returncode == 0 else None
