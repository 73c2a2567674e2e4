"""What was allocated to whom, one folder an allocation, over restarts.

``<folder>/<key>/`` is mounted read-only into the container; ``<folder>/<key>.json``
says whose it is, for init containers, of which kubelet's list tells nothing. The key
is a hash of the resource and its device ids.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from deviceplugin.nodepod import PodName
from gpushare.domain.model import PodUID

ALLOCATION = "allocation.json"


@dataclass(frozen=True, slots=True)
class Record:
    """Whose allocation it is; ``uid`` is empty where only kubelet knows the pod."""

    namespace: str
    name: str
    uid: PodUID
    container: str
    resource: str
    ids: tuple[str, ...]

    @property
    def pod(self) -> PodName:
        """The pod's namespace and name."""
        return (self.namespace, self.name)


class Records:
    """The folder of allocations; made where it is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)

    def folder(self, ids: Iterable[str]) -> Path:
        """Make the folder that these ids' container has mounted."""
        folder = self._folder / key(ids)
        folder.mkdir(exist_ok=True, mode=0o755)
        return folder

    def write(self, record: Record) -> None:
        """Write down whose these ids are now."""
        text = json.dumps(asdict(record))
        _replace(self._folder / f"{key(record.ids)}.json", text)

    def read(self, ids: Iterable[str]) -> Record | None:
        """Give whose these ids were when they were allocated; None where unknown."""
        return _record(self._folder / f"{key(ids)}.json")

    def all(self) -> list[Record]:
        """Give all records."""
        found = map(_record, sorted(self._folder.glob("*.json")))
        return [record for record in found if record is not None]

    def fill(self, ids: Iterable[str], text: str) -> None:
        """Write the file that the container sees."""
        _replace(self.folder(ids) / ALLOCATION, text)

    def sweep(self, living: Collection[PodName], older_than_s: float) -> int:
        """Remove what belongs to pods that are not living; how many there were.

        What is younger may be of a pod that nobody could have listed yet.
        """
        before = time.time() - older_than_s
        gone = [
            record
            for record in self.all()
            if record.pod not in living and self._written_at(record) < before
        ]
        for record in gone:
            name = key(record.ids)
            (self._folder / f"{name}.json").unlink(missing_ok=True)
            shutil.rmtree(self._folder / name, ignore_errors=True)
        return len(gone)

    def _written_at(self, record: Record) -> float:
        try:
            return (self._folder / f"{key(record.ids)}.json").stat().st_mtime
        except OSError:
            return 0.0


def key(ids: Iterable[str]) -> str:
    """Give the short name of a set of ids."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16]


def _record(path: Path) -> Record | None:
    try:
        body = json.loads(path.read_text())
        return Record(**{**body, "ids": tuple(body["ids"])})
    except (OSError, ValueError, TypeError, KeyError):
        # Gone meanwhile, or cut short by a crash: as if never written.
        return None


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.chmod(0o644)
    os.replace(part, path)  # noqa: PTH105
