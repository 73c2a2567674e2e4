"""Compile the stub library, its likeness of an old driver, and nvidia-smi."""

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.machine import needs
from tests.testbed.binaries import cache_folder

HERE = Path(__file__).parent
SOURCES = ("state.h", "stub.c", "smi.c")
SONAME = "libnvidia-ml.so.1"
STATE_VARIABLE = "NVML_STUB_FILE"
"""The environment variable by which the library finds its driving file."""


@dataclass(frozen=True, slots=True)
class Stub:
    """What was compiled; ``library`` and ``old_library`` lie in a folder each.

    For a process of its own: ``LD_LIBRARY_PATH=library.parent``.
    """

    library: Path
    old_library: Path
    smi: Path


def build(folder: Path) -> Stub:
    """Compile everything into a folder."""
    stub = _places(folder)
    for path in (stub.library, stub.old_library, stub.smi):
        path.parent.mkdir(parents=True, exist_ok=True)
    shared = ["-shared", "-fPIC", "-pthread", f"-Wl,-soname,{SONAME}"]
    _compile("stub.c", stub.library, *shared)
    _compile("stub.c", stub.old_library, *shared, "-DOLD_DRIVER")
    _compile("smi.c", stub.smi, "-static")
    return stub


@functools.cache
def the_stub() -> Stub:
    """Give the stub, compiled once for these sources and kept in the test bed's cache.

    Skips the test where there is no compiler.
    """
    needs(shutil.which("gcc") is not None, "gcc", "apt-get install gcc libc6-dev")
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


def _places(folder: Path) -> Stub:
    return Stub(
        folder / "lib" / SONAME, folder / "old" / SONAME, folder / "bin" / "nvidia-smi"
    )


def _compile(source: str, target: Path, *flags: str) -> None:
    command = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", *flags, "-o", str(target)]
    subprocess.run([*command, str(HERE / source)], check=True)
