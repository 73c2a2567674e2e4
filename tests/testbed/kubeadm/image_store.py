"""Containerd's folder with images in it: unpacked once, then linked into each node.

Unpacking takes three to six seconds of processor time, for each of twenty nodes a run.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.testbed.binaries import drop_all_but_newest, only_builder


def fill(
    folder: Path,
    archives: Sequence[Path],
    cache: Path,
    unpack: Callable[[], None],
    runtime: str,
) -> None:
    """Fill a node's folder of containerd, which does not run, with these images.

    The first time ``unpack`` does it, and the result is kept for the next nodes with
    the same archives and ``runtime``, which names containerd's build. Where files
    cannot be linked, as between two file systems, ``unpack`` does it each time.
    """
    with only_builder(cache):
        store = cache / f"store-{_fingerprint(archives, runtime)}"
        if store.exists() and _link(store, folder):
            store.touch()
            return
        # Linking may have failed half-way. The folder itself stays: it is mounted.
        for unfinished in folder.iterdir():
            shutil.rmtree(unfinished)
        unpack()
        if store.exists():
            return
        with tempfile.TemporaryDirectory(dir=cache, prefix="unfinished-") as building:
            linked = Path(building) / "store"
            if _link(folder, linked):
                linked.rename(store)
        drop_all_but_newest(cache.glob("store-*"))


def _link(source: Path, target: Path) -> bool:
    """Link all files but the databases, which are written in place: they are copied."""
    done = subprocess.run(
        ["cp", "-al", f"{source}/.", target], capture_output=True, check=False
    )
    if done.returncode != 0:
        return False
    for database in source.glob("*/*.db"):
        copy = target / database.relative_to(source)
        copy.unlink()
        shutil.copy2(database, copy)
    return True


def _fingerprint(archives: Sequence[Path], runtime: str) -> str:
    stats = [(str(path), path.stat()) for path in archives]
    text = repr([runtime, *((path, stat.st_size, stat.st_ino) for path, stat in stats)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
