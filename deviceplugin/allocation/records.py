"""The allocations of this node, on disk over restarts.

``<folder>/<name>/`` is mounted read-only into the container; ``<folder>/<name>.json``
says to which container it belongs, because kubelet does not list init containers that
end. The name is a hash of the device ids and one of the pod's UID and the container:
kubelet may pass an init container's devices on to another container of its pod
(contracts 2.3), and without its checkpoint to another pod.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock

from deviceplugin.allocation.cdi import BUNDLE, LimitSpecifications
from gpushare.domain.model import PodUID
from gpushare.files import PART, replace_file
from gpushare.kubelet.limit_files import HARD_LIMIT, LIMITS, REGION, parse_hard_limit
from gpushare.kubelet.pods import HardLimit, PodName

logger = logging.getLogger(__name__)

ALLOCATION = "allocation.json"
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class AllocationRecord:
    """One allocation, ids sorted; ``uid`` is empty if only kubelet knows the pod."""

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

    @property
    def step(self) -> tuple[PodUID, str, str]:
        """What was allocated devices: the pod, its container and the resource."""
        return self.uid, self.container, self.resource


class AllocationRecords:
    """The folder of allocations; created if it is missing.

    ``specifications`` has those of limits by NVIDIA's driver, by the same names. All
    records are in memory too, so that none is lost to a full disk while the process
    lives.
    """

    def __init__(self, folder: Path, specifications: LimitSpecifications) -> None:
        self._folder = folder
        self._specifications = specifications
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        self._lock = Lock()
        self._names: dict[tuple[str, ...], dict[AllocationRecord, str]] = {}
        """By their ids, oldest first, each with the name of its files."""
        self._limits: dict[str, HardLimit] = {}
        """By the name of the files."""
        self._unkept_since: dict[str, float] = {}
        """By the name of the files, since which sweep they are not kept."""
        for path in sorted(folder.glob(f"*{_SUFFIX}"), key=_written_at):
            record = _record(path)
            if record is not None:
                name = path.name.removesuffix(_SUFFIX)
                self._keep(record, name)
                if (limit := _limit(folder / name / HARD_LIMIT)) is not None:
                    self._limits[name] = limit
        for name in self._limits:
            try:
                self._specify(name)
            except OSError as error:
                facts = {"file": name, "because": str(error)}
                logger.warning("CDI specification not written", extra=facts)

    def folder(self, record: AllocationRecord) -> Path:
        """Return the folder of the node that the container has mounted."""
        return self._folder / self._name_of(record)

    def write(self, record: AllocationRecord, limit: HardLimit | None = None) -> None:
        """Write a new allocation, of which no container has started yet.

        ``limit`` is the hard limit that its container has, if this answer brings it.

        Raises ``OSError`` if it cannot be written; it is then in memory alone. An older
        record of the same container is removed. Another pod's record stays until it is
        swept, because that pod may run without kubelet's knowledge.
        """
        for old in self.all():
            if old.uid and old.step == record.step and old.ids != record.ids:
                self._remove(self._name_of(old))
        name = self._name_of(record)
        self._keep(record, name)
        self._set_limit(name, limit)
        (self._folder / name / ALLOCATION).unlink(missing_ok=True)
        self._make(name)
        self._write_limit(name)
        replace_file(self._folder / f"{name}{_SUFFIX}", json.dumps(asdict(record)))

    def limit(self, record: AllocationRecord) -> HardLimit | None:
        """Return the hard limit that was allocated with the record."""
        name = self._name_of(record)
        with self._lock:
            return self._limits.get(name)

    def of(self, ids: Iterable[str]) -> list[AllocationRecord]:
        """Return the records of exactly these ids, of the pod that came last."""
        wanted = tuple(sorted(ids))
        with self._lock:
            records = list(self._names.get(wanted, ()))
        return [
            record
            for record in records
            if (record.uid, record.pod) == (records[-1].uid, records[-1].pod)
        ]

    def all(self) -> list[AllocationRecord]:
        """Return all records."""
        with self._lock:
            return [
                record for by_record in self._names.values() for record in by_record
            ]

    def fill(
        self,
        record: AllocationRecord,
        known: AllocationRecord,
        text: str,
        limits: str = "",
    ) -> None:
        """Write the files that the container sees; raises ``OSError`` if that fails.

        ``known`` is the record with what was learned since the allocation. Its folder
        stays the same, because the container has it mounted. ``limits`` is what its
        library reads, empty for a container without it.
        """
        name = self._name_of(record)
        with self._lock:
            self._names.get(record.ids, {}).pop(record, None)
        self._keep(known, name)
        replace_file(self._folder / f"{name}{_SUFFIX}", json.dumps(asdict(known)))
        folder = self._make(name)
        self._write_limit(name)
        if limits:
            replace_file(folder / LIMITS, limits)
        else:
            (folder / LIMITS).unlink(missing_ok=True)
        if self._has_region(name):
            make_region(folder / REGION)
        # The last one, because with it the container may start.
        replace_file(folder / ALLOCATION, text)

    def tell(self, record: AllocationRecord, text: str, limits: str) -> None:
        """Write the files into another folder of the same container.

        That the container may start is for the other resource's own call to say.
        """
        folder = self._make(self._name_of(record))
        if limits:
            replace_file(folder / LIMITS, limits)
        if self.may_start(record):
            replace_file(folder / ALLOCATION, text)

    def may_start(self, record: AllocationRecord) -> bool:
        """Return whether the file that the container sees was written."""
        return (self.folder(record) / ALLOCATION).exists()

    def sweep(self, keep: Callable[[AllocationRecord], bool], after_s: float) -> None:
        """Remove records that were not kept for so long, and unreadable ones.

        Until then their pod may not have been listed yet, or its containers may still
        end although the API server has forgotten it.
        """
        known = {self._name_of(record): record for record in self.all()}
        names = known.keys() | {
            path.name.removesuffix(_SUFFIX) for path in self._folder.iterdir()
        }
        unkept = [name for name in names if name not in known or not keep(known[name])]
        now = time.monotonic()
        with self._lock:
            before = self._unkept_since
            since = {name: before.get(name, now) for name in unkept}
            over = [name for name in unkept if now - since[name] >= after_s]
            self._unkept_since = {n: at for n, at in since.items() if n not in over}
        for name in over:
            self._remove(name)

    def _make(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        # Whatever the umask is: any user of the container must be able to read it.
        folder.chmod(0o755)
        return folder

    def _keep(self, record: AllocationRecord, name: str) -> None:
        with self._lock:
            names = self._names.setdefault(record.ids, {})
            names.pop(record, None)
            names[record] = name
            self._unkept_since.pop(name, None)

    def _set_limit(self, name: str, limit: HardLimit | None) -> None:
        with self._lock:
            self._limits.pop(name, None)
            if limit is not None:
                self._limits[name] = limit

    def _write_limit(self, name: str) -> None:
        path, limit = self._folder / name / HARD_LIMIT, self._limits.get(name)
        if limit is None:
            path.unlink(missing_ok=True)
        else:
            replace_file(path, json.dumps(asdict(limit)))
        self._specify(name)

    def _specify(self, name: str) -> None:
        """Write the CDI specification of a limit by NVIDIA's driver."""
        limit = self._limits.get(name)
        ids = next((r.ids for r in self.all() if self._name_of(r) == name), None)
        if ids and limit is not None and limit.tier == "driver":
            key, bundle = ids[0].partition("-")[0], self._make(name) / BUNDLE
            self._specifications.put(name, limit.mib, key, bundle)

    def _has_region(self, name: str) -> bool:
        limit = self._limits.get(name)
        return limit is not None and limit.tier == "preload"

    def _name_of(self, record: AllocationRecord) -> str:
        with self._lock:
            return self._names.get(record.ids, {}).get(record) or _name(record)

    def _remove(self, name: str) -> None:
        with self._lock:
            self._limits.pop(name, None)
            self._names = {
                ids: others
                for ids, by_record in self._names.items()
                if (
                    others := {
                        record: by_record[record]
                        for record in by_record
                        if by_record[record] != name
                    }
                )
            }
        if name.endswith(PART):
            (self._folder / name).unlink(missing_ok=True)
        (self._folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)
        shutil.rmtree(self._folder / name, ignore_errors=True)
        self._specifications.remove(name)


def _name(record: AllocationRecord) -> str:
    def short(text: str, digits: int) -> str:
        return hashlib.sha256(text.encode()).hexdigest()[:digits]

    whose = f"{record.uid}/{record.container}"
    return f"{short(chr(10).join(record.ids), 16)}.{short(whose, 8)}"


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        # It was removed meanwhile.
        return float("inf")


def _record(path: Path) -> AllocationRecord | None:
    try:
        body = json.loads(path.read_text())
        ids = tuple(sorted(body.pop("ids")))
        record = AllocationRecord(**body, ids=ids)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        # Removed meanwhile, or cut short by a crash: as if it was never written.
        return None
    words = [value for name, value in asdict(record).items() if name != "ids"]
    return record if all(isinstance(word, str) for word in (*words, *ids)) else None


def _limit(path: Path) -> HardLimit | None:
    try:
        return parse_hard_limit(path.read_text())
    except (OSError, ValueError):
        return None


def make_region(path: Path) -> None:
    """Make the region anew: a FIFO for every user of the container, who lock it.

    Of all that a container without rights could write, only a FIFO never grows on the
    node's disk. It is another one than before: a container that runs keeps the old one
    mounted, and one that starts has nothing of what was counted before.
    """
    give_way(path)
    unfinished = path.with_name(f".{path.name}{PART}")
    unfinished.unlink(missing_ok=True)
    os.mkfifo(unfinished)
    unfinished.chmod(0o666)
    unfinished.replace(path)


def give_way(path: Path) -> None:
    """Remove the empty folder that a runtime makes where a file to mount is missing."""
    if path.is_dir():
        path.rmdir()
