"""What was allocated to whom, one folder an allocation, over restarts.

``<folder>/<name>/`` is mounted read-only into the container; ``<folder>/<name>.json``
says whose it is, for init containers, of which kubelet's list tells nothing. The name
is a hash of the device ids and one of the container: kubelet may hand an init
container's devices on to another container of its pod, just these (contracts 2.3).
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from deviceplugin.nodepod import PodName
from gpushare.domain.model import PodUID

ALLOCATION = "allocation.json"
_SUFFIX = ".json"
_UNFINISHED = ".part"


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
        # By what their names begin with; we alone write here.
        self._names: dict[str, set[str]] = {}
        for path in folder.glob(f"*{_SUFFIX}"):
            self._note(path.name.removesuffix(_SUFFIX))

    def folder(self, ids: Iterable[str], container: str) -> Path:
        """Make the folder that this container has mounted for these ids."""
        folder = self._folder / _name(ids, container)
        folder.mkdir(exist_ok=True)
        # Whatever our umask: the container's user, who may be anybody, reads it.
        folder.chmod(0o755)
        return folder

    def write(self, record: Record) -> None:
        """Write down whose these ids are now; another pod's record of them goes."""
        text = json.dumps(asdict(record))
        name = _name(record.ids, record.container)
        _replace(self._folder / f"{name}{_SUFFIX}", text)
        self._note(name)
        for old in self.of(record.ids):
            if (old.uid, old.pod) != (record.uid, record.pod):
                self._remove(_name(old.ids, old.container))

    def of(self, ids: Iterable[str]) -> list[Record]:
        """Give the containers of one pod that were allocated just these ids."""
        names = sorted(self._names.get(key(ids), ()))
        found = (_record(self._folder / f"{name}{_SUFFIX}") for name in names)
        return [record for record in found if record is not None]

    def all(self) -> list[Record]:
        """Give all records."""
        found = map(_record, sorted(self._folder.glob(f"*{_SUFFIX}")))
        return [record for record in found if record is not None]

    def fill(self, ids: Iterable[str], container: str, text: str) -> None:
        """Write the file that the container sees."""
        _replace(self.folder(ids, container) / ALLOCATION, text)

    def sweep(self, keep: Callable[[Record], bool], older_than_s: float) -> int:
        """Remove what nobody has any use for, the unreadable too; how many there were.

        What is younger may be of a pod that nobody could have listed yet.
        """
        kept = {_name(r.ids, r.container) for r in self.all() if keep(r)}
        before = time.time() - older_than_s
        names = {
            path.name.removesuffix(_SUFFIX)
            for path in self._folder.iterdir()
            if _written_at(path) < before
        }
        for name in names - kept:
            self._remove(name)
        return len(names - kept)

    def _note(self, name: str) -> None:
        self._names.setdefault(name.partition(".")[0], set()).add(name)

    def _remove(self, name: str) -> None:
        begin = name.partition(".")[0]
        if name in self._names.get(begin, ()):
            self._names[begin].remove(name)
            if not self._names[begin]:
                del self._names[begin]
        if name.endswith(_UNFINISHED):
            (self._folder / name).unlink(missing_ok=True)
        (self._folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)
        shutil.rmtree(self._folder / name, ignore_errors=True)


def key(ids: Iterable[str]) -> str:
    """Give the short name of a set of ids."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16]


def _name(ids: Iterable[str], container: str) -> str:
    return f"{key(ids)}.{hashlib.sha256(container.encode()).hexdigest()[:8]}"


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        # Gone meanwhile, with its pod's successor.
        return float("inf")


def _record(path: Path) -> Record | None:
    try:
        body = json.loads(path.read_text())
        ids = tuple(body.pop("ids"))
        record = Record(**body, ids=ids)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        # Gone meanwhile, or cut short by a crash: as if never written.
        return None
    words = (*asdict(record).values(),)[:-1]
    return record if all(isinstance(one, str) for one in (*words, *ids)) else None


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}{_UNFINISHED}")
    part.write_text(text)
    part.chmod(0o644)
    os.replace(part, path)  # noqa: PTH105
