"""Containerd's folder with images in it: unpacked once, then linked into each node.

Unpacking takes three to six seconds of processor time, for each of twenty nodes a run.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.testbed.binaries import only_builder

KEPT = 3
"""Stores that stay, so that checkouts of different sources can take turns."""


def fill(
    folder: Path,
    archives: Sequence[Path],
    cache: Path,
    unpack: Callable[[], None],
    kind: str,
) -> None:
    """Fill a node's folder of containerd, which does not run, with these images.

    The first time ``unpack`` does it, and the result is kept for the next ones of this
    ``kind``, which is all that matters beside the archives. So it does where files
    cannot be linked, as between two file systems.
    """
    with only_builder(cache):
        store = cache / f"store-{_fingerprint(archives, kind)}"
        if store.exists() and _link(store, folder):
            store.touch()
            return
        # Of links that failed. The folder itself stays: it is mounted.
        for unfinished in folder.iterdir():
            shutil.rmtree(unfinished)
        unpack()
        if store.exists():
            return
        with tempfile.TemporaryDirectory(dir=cache, prefix="unfinished-") as building:
            linked = Path(building) / "store"
            if _link(folder, linked):
                linked.rename(store)
        _drop_all_but_newest(cache)


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


def _fingerprint(archives: Sequence[Path], kind: str) -> str:
    stats = [(str(path), path.stat()) for path in archives]
    text = repr([kind, *((path, stat.st_size, stat.st_ino) for path, stat in stats)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _drop_all_but_newest(cache: Path) -> None:
    stores = sorted(cache.glob("store-*"), key=lambda path: path.stat().st_mtime)
    for old in stores[:-KEPT]:
        shutil.rmtree(old)
