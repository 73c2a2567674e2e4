"""What ``make gpusharectl`` builds: one file, for hosts on which pip may do nothing."""

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpushare import __version__
from release.archives import unpack
from release.krew import write_plugin
from tests.machine import needs

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
UNIX = ("sh", "env", "uname", "ldd", "cat", "dirname", "basename")


@pytest.fixture(scope="module")
def executable() -> Path:
    """The file, built anew; its parts are fetched once and then in pip's cache."""
    needs(shutil.which("make"), "make is not installed", "apt-get install make")
    built = ["make", "--no-print-directory", "gpusharectl"]
    subprocess.run(built, cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
    return ROOT / "dist/gpusharectl"


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A folder with what every host has, and no Python."""
    return with_programs(tmp_path / "bin")


@pytest.fixture(scope="module")
def home(executable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's, into which the file has unpacked itself by this Python."""
    folder = tmp_path_factory.mktemp("user")
    path = with_programs(folder / "bin")
    (path / "python3").symlink_to(sys.executable)
    before = os.umask(0o022)
    try:
        ran(executable, path, folder / "home", "--version")
    finally:
        os.umask(before)
    return folder / "home"


def with_programs(folder: Path) -> Path:
    folder.mkdir()
    for name in UNIX:
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


def ran(
    executable: Path, path: Path, home: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [executable, *words],
        cwd=home.parent,
        env={"PATH": str(path), "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def interpreter(name: str) -> Path | None:
    """Find a Python itself, since what is first on the PATH may only choose one."""
    told = [name, "-c", "import sys; print(sys._base_executable)"]
    try:
        done = subprocess.run(told, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return Path(done.stdout.strip())


def test_runs_on_the_pythons_of_this_machine(
    executable: Path, bare_path: Path, tmp_path: Path
) -> None:
    """With compiled packages too, which simulate imports; nothing else is needed."""
    scenario = ROOT / "tests/scenarios/two-cards.yaml"
    there = {name: found for name in PYTHONS if (found := interpreter(name))}
    assert there
    for name, python in there.items():
        (bare_path / name).symlink_to(python)
        told = ran(executable, bare_path, tmp_path / name, "--version")
        assert told.stdout == f"gpusharectl, version {__version__}\n", told.stderr
        told = ran(executable, bare_path, tmp_path / name, "simulate", str(scenario))
        assert told.returncode == 0, told.stderr
        (bare_path / name).unlink()


def test_has_compiled_packages_for_each_python(executable: Path) -> None:
    """Also for those that this machine does not have."""
    with zipfile.ZipFile(executable) as opened:
        names = "\n".join(opened.namelist())
    for package in ("grpcio", "orjson", "pydantic_core"):
        for name in PYTHONS:
            tag = name.replace("python", "cp").replace(".", "")
            assert re.search(rf"/{package}-[\w.]+-{tag}-", names), (package, tag)


def test_only_its_owner_may_change_what_it_unpacked(home: Path) -> None:
    """It is run by root: nobody else may put code there."""
    unpacked = [each.lstat() for each in home.rglob("*") if not each.is_symlink()]
    assert unpacked
    assert {each.st_uid for each in unpacked} == {os.geteuid()}
    assert not any(each.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for each in unpacked)


def test_kubectl_runs_it_as_krew_installs_it(
    executable: Path, kubectl: Path, bare_path: Path, home: Path, tmp_path: Path
) -> None:
    """From its archive, by a link; kubectl completes its words by the usual script."""
    write_plugin(executable, "1.2.3", "https://example.org", 86400, tmp_path)
    unpack(tmp_path / "kubectl-vcuda-1.2.3-linux-amd64.tar.gz", tmp_path / "store")
    (bare_path / "kubectl-vcuda").symlink_to(tmp_path / "store/kubectl-vcuda")
    (bare_path / "kubectl").symlink_to(kubectl)
    (bare_path / "python3").symlink_to(sys.executable)
    script = bare_path / "kubectl_complete-vcuda"
    told = ran(kubectl, bare_path, home, "vcuda", "inspect", "--help")
    assert told.stdout.startswith("Usage: kubectl vcuda inspect"), told.stderr
    script.write_text('#!/bin/sh\nexec kubectl vcuda __complete "$@"\n')
    script.chmod(0o755)
    told = ran(kubectl, bare_path, home, "__complete", "vcuda", "cord")
    assert told.stdout.startswith("cordon-card\t"), told.stderr


def test_says_which_python_it_needs(
    executable: Path, bare_path: Path, tmp_path: Path
) -> None:
    """On a host that has none of them."""
    told = ran(executable, bare_path, tmp_path / "home", "--version")
    assert told.returncode != 0
    assert all(name in told.stderr for name in PYTHONS)
