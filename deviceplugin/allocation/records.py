"""What was allocated to whom, one folder an allocation, over restarts.

``<folder>/<name>/`` is mounted read-only into the container; ``<folder>/<name>.json``
says whose it is, for init containers, of which kubelet's list tells nothing. The name
is a hash of the device ids and one of the pod's UID and the container: kubelet may hand
an init container's devices on to another container of its pod, just these (contracts
2.3), and without its checkpoint to another pod.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

from deviceplugin.pods import PodName
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
    """The folder of allocations; made where it is missing.

    All are in memory too, so that a full disk loses none while the process lives.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        self._lock = Lock()
        self._names: dict[str, dict[Record, str]] = {}
        """By the key of their ids, oldest first, each with the name of its files."""
        for path in sorted(folder.glob(f"*{_SUFFIX}"), key=_written_at):
            record = _record(path)
            if record is not None:
                self._keep(record, path.name.removesuffix(_SUFFIX))

    def folder(self, record: Record) -> Path:
        """Say which folder of the node the container has mounted."""
        return self._folder / self._name_of(record)

    def write(self, record: Record) -> None:
        """Note whose these ids are now; nothing of it has started yet.

        ``OSError`` where it cannot be written down, and then it is in memory alone.
        What the same container was allocated before goes; another pod's record stays
        until it is swept, for it may run without kubelet's knowledge.
        """
        for old in self.all():
            if old.uid and _whose(old) == _whose(record) and old.ids != record.ids:
                self._remove(self._name_of(old))
        name = self._name_of(record)
        self._keep(record, name)
        (self._folder / name / ALLOCATION).unlink(missing_ok=True)
        self._make(name)
        _replace(self._folder / f"{name}{_SUFFIX}", json.dumps(asdict(record)))

    def of(self, ids: Iterable[str]) -> list[Record]:
        """Give the containers that were allocated just these ids, of the last pod."""
        with self._lock:
            found = list(self._names.get(key(ids), ()))
        return [one for one in found if _owner(one) == _owner(found[-1])]

    def all(self) -> list[Record]:
        """Give all records."""
        with self._lock:
            return [record for its in self._names.values() for record in its]

    def fill(self, record: Record, known: Record, text: str) -> None:
        """Write the file that the container sees; ``OSError`` where that fails.

        ``known`` is the record with what was learnt since the allocation. Its folder
        stays the same, for the container has that mounted.
        """
        name = self._name_of(record)
        with self._lock:
            self._names.get(key(record.ids), {}).pop(record, None)
        self._keep(known, name)
        _replace(self._folder / f"{name}{_SUFFIX}", json.dumps(asdict(known)))
        _replace(self._make(name) / ALLOCATION, text)

    def may_start(self, record: Record) -> bool:
        """Tell whether the file was written that the container sees."""
        return (self.folder(record) / ALLOCATION).exists()

    def sweep(self, keep: Callable[[Record], bool], older_than_s: float) -> int:
        """Remove what nobody has any use for, the unreadable too; how many there were.

        What is younger may be of a pod that nobody could have listed yet.
        """
        known = {self._name_of(one): one for one in self.all()}
        before = time.time() - older_than_s
        names = {
            path.name.removesuffix(_SUFFIX)
            for path in self._folder.iterdir()
            if _written_at(path) < before
        }
        names |= {one for one in known if not (self._folder / one).exists()}
        gone = {one for one in names if one not in known or not keep(known[one])}
        for name in gone:
            self._remove(name)
        return len(gone)

    def _make(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        # Whatever our umask: the container's user, who may be anybody, reads it.
        folder.chmod(0o755)
        return folder

    def _keep(self, record: Record, name: str) -> None:
        with self._lock:
            its = self._names.setdefault(key(record.ids), {})
            its.pop(record, None)
            its[record] = name

    def _name_of(self, record: Record) -> str:
        with self._lock:
            known = self._names.get(key(record.ids), {}).get(record)
        return known or _name(record)

    def _remove(self, name: str) -> None:
        with self._lock:
            for its in self._names.values():
                for record in [
                    one for one, its_name in its.items() if its_name == name
                ]:
                    del its[record]
            self._names = {ids: its for ids, its in self._names.items() if its}
        if name.endswith(_UNFINISHED):
            (self._folder / name).unlink(missing_ok=True)
        (self._folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)
        shutil.rmtree(self._folder / name, ignore_errors=True)


def key(ids: Iterable[str]) -> str:
    """Give the short name of a set of ids."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:16]


def _name(record: Record) -> str:
    whose = f"{record.uid}/{record.container}"
    return f"{key(record.ids)}.{hashlib.sha256(whose.encode()).hexdigest()[:8]}"


def _owner(record: Record) -> tuple[PodUID, PodName]:
    return record.uid, record.pod


def _whose(record: Record) -> tuple[PodUID, str, str]:
    return record.uid, record.container, record.resource


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
    try:
        part.write_text(text)
        part.chmod(0o644)
        os.replace(part, path)  # noqa: PTH105
    except OSError:
        part.unlink(missing_ok=True)
        raise
