"""Compile the preload library, the stand-in for the driver, and what calls it."""

import platform
import shutil
import subprocess
from pathlib import Path

from tests.isolation.headers import (
    DriverFunction,
    driver_functions,
    driver_source,
    include_folder,
)
from tests.machine import needs

HERE = Path(__file__).parent
PRELOAD = Path(__file__).parents[2] / "isolation" / "preload"
LIBRARY = "libvcuda.so.1"
DRIVER = "libcuda.so.1"

FUTURE = (
    DriverFunction("cuMemAlloc_v3", "cuMemAlloc", 99000, per_thread=False),
    DriverFunction(
        "cuStreamSynchronize_v2", "cuStreamSynchronize", 99000, per_thread=False
    ),
)
"""Functions of the stand-in that a driver may have in years to come."""


def needs_compiler() -> None:
    """Skip the test where there is no compiler for it."""
    here = platform.system() == "Linux" and platform.machine() == "x86_64"
    needs(here, "Linux on x86-64", "run it on such a machine")
    needs(shutil.which("gcc") is not None, "gcc", "apt-get install gcc libc6-dev")


def build_library(target: Path, *words: str) -> None:
    """Compile the library as it ships; ``words`` are flags and sources of a test."""
    script = ["sh", str(PRELOAD / "build.sh"), str(target), "-Werror", *words]
    subprocess.run(script, check=True)


def places_in(folder: Path) -> list[str]:
    """Give the flags for a library that has its files in this folder."""
    names = ("limits", "pace", "region")
    return [f'-DVCUDA_{name.upper()}="{folder / name}"' for name in names]


def build_driver(folder: Path) -> None:
    """Compile the stand-in: a card of 16 GiB, shared by the processes of one folder."""
    others = folder / "others.c"
    others.write_text(driver_source([*driver_functions(), *FUTURE]))
    # The driver's calls of its own functions are not seen by the library.
    words = ("-shared", "-fPIC", "-fno-ipa-icf", f"-Wl,-Bsymbolic,-soname,{DRIVER}")
    compile_program(folder / DRIVER, "standin.c", str(others), *words)


def build_hog(folder: Path) -> None:
    """Compile the program that takes all memory it gets."""
    compile_program(folder / "hog", "hog.c")


def build_launcher(folder: Path) -> None:
    """Compile the program that launches kernels, and the clock that it may have."""
    linked = ("-DLINKED", f"./{DRIVER}", f"-Wl,-rpath,{folder}")
    compile_program(folder / "launcher", "launcher.c", *linked)
    compile_program(folder / "clock.so", "clock.c", "-shared", "-fPIC")


def compile_program(target: Path, source: str, *words: str) -> None:
    """Compile one source of this folder."""
    own = ["gcc", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"]
    own += [f"-I{PRELOAD}", f"-I{include_folder()}", "-o", str(target)]
    told = [*own, str(HERE / source), *words, "-ldl"]
    subprocess.run(told, cwd=target.parent, check=True)
