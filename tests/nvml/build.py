"""Compile the stub library, its likenesses of older drivers, and nvidia-smi."""

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.machine import needs
from tests.testbed.binaries import cache_folder

HERE = Path(__file__).parent
LIBRARY = (
    *("stub.c", "events.c", "values.c", "processes.c", "gpm.c"),
    *("mig.c", "limits.c", "nvlink.c"),
)
SOURCES = ("state.h", "stub.h", *LIBRARY, "smi.c")
SONAME = "libnvidia-ml.so.1"
SHARED = (
    *("-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
    f"-Wl,-soname,{SONAME}",
)
STATE_VARIABLE = "NVML_STUB_FILE"
"""The environment variable by which the library finds its driving file."""


@dataclass(frozen=True, slots=True)
class Stub:
    """What was compiled; each library lies in a folder of its own.

    For a process of its own: ``LD_LIBRARY_PATH=library.parent``. ``middle_library`` is
    a driver of 470, ``old_library`` one from before 450.
    """

    library: Path
    middle_library: Path
    old_library: Path
    smi: Path


def build(folder: Path) -> Stub:
    """Compile everything into a folder."""
    stub = _places(folder)
    likenesses = {
        stub.library: (),
        stub.middle_library: ("-DMIDDLE_DRIVER",),
        stub.old_library: ("-DOLD_DRIVER",),
    }
    for path in (*likenesses, stub.smi):
        path.parent.mkdir(parents=True, exist_ok=True)
    for path, flags in likenesses.items():
        _compile(LIBRARY, path, *SHARED, *flags)
    _compile(("smi.c",), stub.smi, "-static")
    return stub


def build_sanitized(folder: Path) -> Path:
    """Compile the library with gcc's AddressSanitizer in it; return its path."""
    _needs_gcc()
    _compile(LIBRARY, folder / SONAME, *SHARED, "-g", "-fsanitize=address")
    return folder / SONAME


@functools.cache
def the_stub() -> Stub:
    """Give the stub, compiled once for these sources and kept in the test bed's cache.

    Skips the test where there is no compiler.
    """
    _needs_gcc()
    texts = b"".join((HERE / name).read_bytes() for name in (*SOURCES, "build.py"))
    cache = cache_folder(os.environ)
    folder = cache / f"nvml-{hashlib.sha256(texts).hexdigest()[:16]}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="nvml-unfinished-") as made:
            build(Path(made) / "stub")
            try:
                (Path(made) / "stub").rename(folder)
            except OSError:
                # Another run was first, with the same sources.
                assert folder.exists()
    return _places(folder)


def _needs_gcc() -> None:
    needs(shutil.which("gcc") is not None, "gcc", "apt-get install gcc libc6-dev")


def _places(folder: Path) -> Stub:
    return Stub(
        folder / "lib" / SONAME,
        folder / "middle" / SONAME,
        folder / "old" / SONAME,
        folder / "bin" / "nvidia-smi",
    )


def _compile(sources: Sequence[str], target: Path, *flags: str) -> None:
    command = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", *flags, "-o", str(target)]
    subprocess.run([*command, *(str(HERE / name) for name in sources)], check=True)
