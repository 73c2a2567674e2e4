"""How the preload library is built: by one script, for make, the image and tests."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.isolation.build import LIBRARY, PRELOAD, build_library, needs_compiler
from tests.machine import needs

ROOT = PRELOAD.parents[1]
MAY_NEED = {"libc.so.6", "libpthread.so.0", "libdl.so.2"}
NEWEST = (2, 17)
"""The glibc of CentOS 7, the oldest that CUDA images are built on."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as it ships."""
    needs_compiler()
    path = tmp_path_factory.mktemp("library") / LIBRARY
    build_library(path)
    return path


def objdump(option: str, path: Path) -> str:
    needs(shutil.which("objdump") is not None, "objdump", "apt-get install binutils")
    words = ["objdump", option, str(path)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_it_needs_no_symbol_newer_than_glibc_2_17(library: Path) -> None:
    found = re.findall(r"GLIBC_([\d.]+)", objdump("-T", library))
    wanted = {tuple(map(int, one.split("."))) for one in found}
    assert wanted
    assert max(wanted) <= NEWEST


def test_it_needs_only_libraries_that_each_glibc_has(library: Path) -> None:
    found = set(re.findall(r"NEEDED +(\S+)", objdump("-p", library)))
    assert "libc.so.6" in found
    assert found <= MAY_NEED


def test_it_exports_what_it_replaces_and_nothing_else(library: Path) -> None:
    """A program's own function of some other name must not be replaced by ours."""
    lines = objdump("-T", library).splitlines()
    found = {
        line.split()[-1] for line in lines if " g " in line and "*UND*" not in line
    }
    table = (PRELOAD / "driver.h").read_text()
    hooks = set(re.findall(r" HOOK\(\w+, (\w+),", table))
    assert found == hooks | {"dlsym"}


def test_the_same_sources_give_the_same_bytes(library: Path, tmp_path: Path) -> None:
    """Wherever they lie."""
    copy = shutil.copytree(PRELOAD, tmp_path / "elsewhere")
    again = tmp_path / "again" / LIBRARY
    subprocess.run(["sh", copy / "build.sh", again], cwd="/", check=True)
    assert again.read_bytes() == library.read_bytes()
    assert str(PRELOAD).encode() not in library.read_bytes()


def make_image(folder: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run ``make image`` with a builder that only says what it is told."""
    needs(shutil.which("make") is not None, "make", "apt-get install make")
    for name, line in {
        "buildah": 'echo "builder: $*"',
        "uname": "echo aarch64",
    }.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    if "CC" in variables:
        (folder / "uname").unlink()
    told = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **variables}
    words = ["make", "--no-print-directory", "image"]
    done = subprocess.run(
        words, cwd=ROOT, env=told, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_an_image_of_another_machine_is_built_without_it(tmp_path: Path) -> None:
    code, said = make_image(tmp_path, {})
    assert code == 0
    first, second, *_rest = said.splitlines()
    assert first == "Without the preload library, which is written for x86-64 only"
    assert second.startswith("builder: bud")


def test_an_image_without_a_compiler_says_what_to_do(tmp_path: Path) -> None:
    """And the builder is not called."""
    code, said = make_image(tmp_path, {"CC": "no-such-compiler"})
    assert code != 0
    assert "missing: no-such-compiler; cure: apt-get install gcc libc6-dev" in said
    assert "builder" not in said
