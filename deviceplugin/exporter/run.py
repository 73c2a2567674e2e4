"""All parts of one exporter: wired here, started, and stopped together.

Keeps to the file of fields while it changes; a bad one leaves what was before.

The pods of this node as the API server tells of them, for the exporter.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Event, Lock, Thread

from deviceplugin.exporter.collector import Exposition, Site
from deviceplugin.exporter.http import ExporterPages, served_by
from deviceplugin.exporter.kubelet_check import KubeletCheck
from deviceplugin.exporter.overuse import Patrol
from deviceplugin.exporter.owners import Tenancy, Tenant, tenant
from deviceplugin.exporter.procfs import ProcFs
from deviceplugin.exporter.sampler import Sampler, XidTallies, groups_read
from deviceplugin.exporter.selection import (
    BadFieldFile,
    FieldFile,
    Flags,
    choose,
    parse,
)
from deviceplugin.exporter.settings import ExporterSettings
from deviceplugin.exporter.snapshot_store import Board, UsageBook
from deviceplugin.log_once import Remarks
from deviceplugin.pod_resources import PodResources
from deviceplugin.telemetry.base import Telemetry
from deviceplugin.telemetry.fields import KUBELET
from gpushare.domain.model import PodUID
from gpushare.kube.cluster import Cluster, Json, Kind, Page, WatchEvent
from gpushare.kube.json_reader import Malformed
from gpushare.kube.reflector import Reflector
from gpushare.listener import Listener

logger = logging.getLogger(__name__)

CONFIG = "config"
"""What the trouble is about in ``Snapshot.troubles`` while the file is bad."""
_MOST_BYTES = 1 << 20


class Configuring:
    """The flags of the command line, and the file of fields if there is one.

    The file is read at every look: it is short, and neither its time nor its inode
    tells all changes that a ConfigMap's links and an editor make.
    """

    def __init__(
        self, flags: Flags, path: Path | None, sampler: Sampler, board: Board
    ) -> None:
        self._flags = flags
        self._path = path
        self._sampler = sampler
        self._board = board
        self._seen: bytes | None = None
        self._looked = False
        self._remarks = Remarks()

    def run(self, stop: Event, every_s: float) -> None:
        """Look at the file every so often until ``stop`` is set."""
        while not stop.wait(every_s):
            self.look()

    def look(self) -> None:
        """Do what the file says now, if that is news. The first look always chooses."""
        first, self._looked = not self._looked, True
        try:
            raw = self._read()
            if raw == self._seen and not first and not self._is_bad():
                return
            self._seen = raw
            listed = None if raw is None else parse(raw.decode())
        except (BadFieldFile, UnicodeDecodeError, OSError) as error:
            if first:
                self._sampler.choose(choose(self._flags))
            why = _because(self._path, error)
            line = "the file of fields will not do"
            self._remarks.about(CONFIG, why, line, because=why)
            self._board.trouble(CONFIG, why)
            return
        self._take(listed)

    def _take(self, listed: FieldFile | None) -> None:
        if listed is None:
            self._sampler.choose(choose(self._flags))
        else:
            self._sampler.choose(choose(self._flags, listed.fields))
            facts = {"file": str(self._path), "fields": len(listed.fields)}
            logger.info("fields chosen", extra=facts)
            if listed.unknown:
                facts = {"file": str(self._path), "fields": ",".join(listed.unknown)}
                logger.warning("fields not known here", extra=facts)
        self._remarks.about(CONFIG, "", "the file of fields will do again")
        self._board.trouble(CONFIG, "")

    def _is_bad(self) -> bool:
        return CONFIG in self._board.read().troubles

    def _read(self) -> bytes | None:
        """Give the file; None where there is none. ``OSError``, ``BadFieldFile``."""
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as opened:
                raw = opened.read(_MOST_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(raw) > _MOST_BYTES:
            raise BadFieldFile(f"it is longer than {_MOST_BYTES} bytes")
        return raw


def _because(path: Path | None, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        words = "it is no UTF-8 text"
    elif isinstance(error, OSError):
        words = f"it cannot be read ({error.strerror})"
    else:
        words = str(error)
    return f"{path}: {words}; what was chosen before stays"


class Tenants:
    """Sink for the pods of this node; what they come to may be asked by any thread.

    A pod leaves with its object, or once its phase is terminal. While the API server
    is away, what it told last goes on being true.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pods: dict[PodUID, Tenant] = {}
        self._listed = False
        self._current: Tenancy | None = None

    def replace(self, pages: Iterator[Page]) -> None:
        """Take over all pods of the node."""
        found = dict[PodUID, Tenant]()
        for page in pages:
            for pod in page.items:
                if (one := _read(pod)) is not None:
                    found[one.uid] = one
        with self._lock:
            self._pods = found
            self._listed = True
            self._current = None

    def apply(self, event: WatchEvent) -> None:
        """Take over one change."""
        uid = PodUID(event.object["metadata"]["uid"])
        one = None if event.type == "DELETED" else _read(event.object)
        with self._lock:
            if one is None:
                self._pods.pop(uid, None)
            else:
                self._pods[uid] = one
            self._current = None

    def current(self) -> Tenancy | None:
        """Give the pods as they are: the same object until one of them changes.

        None before the first whole list.
        """
        with self._lock:
            if self._current is None and self._listed:
                self._current = Tenancy.of(self._pods.values())
            return self._current


def _read(pod: Json) -> Tenant | None:
    """Read a pod; None for one that has ended, or that cannot be understood."""
    try:
        found = tenant(pod)
    except Malformed as error:
        facts = {"pod": pod["metadata"].get("uid"), "because": str(error)}
        logger.warning("pod not understood", extra=facts)
        return None
    return None if found.pod.record.terminal else found


_LOOK_S = 1.0
_PATROL_EVERY_S = 2.0
_KUBELET_EVERY_S = 60.0

Loop = Callable[[Event], None]
"""What a thread does until the event is set."""


@dataclass(frozen=True, slots=True)
class Exporting:
    """All parts of one exporter, wired; ``loops`` by the names of their threads."""

    board: Board
    sampler: Sampler
    configuring: Configuring
    exposition: Exposition
    pages: ExporterPages
    loops: tuple[tuple[str, Loop], ...]


def run(
    settings: ExporterSettings,
    telemetry: Telemetry,
    cluster: Cluster | None,
    stop: Event,
) -> int:
    """Run until ``stop`` is set; the exit status.

    Without a cluster nothing is known of pods, and cards alone are shown.
    """
    made = assemble(settings, telemetry, cluster)
    served = {settings.listen: served_by(made.pages.every)}
    if settings.collect_listen is not None:
        served[settings.collect_listen] = served_by(made.pages.collect_alone)
    # Before anything is read: a probe or an agent may ask at once.
    with Listener(served):
        threads = start(made, stop)
        failed = _wait(threads, stop)
        stop.set()
        made.sampler.ring()
    telemetry.close()
    return int(failed)


def start(made: Exporting, stop: Event) -> list[Thread]:
    """Choose what is on, then start all threads."""
    made.configuring.look()
    threads = [
        Thread(target=loop, args=(stop,), name=name, daemon=True)
        for name, loop in made.loops
    ]
    for thread in threads:
        thread.start()
    return threads


def assemble(
    settings: ExporterSettings, telemetry: Telemetry, cluster: Cluster | None
) -> Exporting:
    """Put the parts together; nothing runs yet."""
    board = Board()
    sampler = Sampler(
        telemetry,
        board,
        ProcFs(settings.host_root),
        look_every_s=settings.look_every_s,
    )
    configuring = Configuring(settings.flags, settings.fields_file, sampler, board)
    loops: list[tuple[str, Loop]] = [
        ("look", sampler.look),
        *((f"read {one.name}", partial(sampler.sample, one)) for one in groups_read()),
        ("hear faults", XidTallies(telemetry, board).hear),
        ("configure", partial(configuring.run, every_s=settings.look_every_s)),
    ]
    # The node's name for the host's, as dcgm-exporter: a pod's own says nothing.
    site = Site(
        settings.node, settings.node, settings.hostname_label, version("gpushare")
    )
    if cluster is None:
        exposition = Exposition(site, board.read, UsageBook(board.read, None))
    else:
        exposition, more = _following_pods(settings, cluster, board, site)
        loops += more
    pages = ExporterPages(
        settings.node,
        settings.collect_unit,
        board.read,
        exposition,
        exposition.troubles,
    )
    return Exporting(board, sampler, configuring, exposition, pages, tuple(loops))


def _following_pods(
    settings: ExporterSettings, cluster: Cluster, board: Board, site: Site
) -> tuple[Exposition, list[tuple[str, Loop]]]:
    """Put together what knows of containers, and the loops of it."""
    tenants = Tenants()
    here = f"spec.nodeName={settings.node}"
    reflector = Reflector(cluster, Kind.PODS, tenants, field_selector=here)
    book = UsageBook(
        board.read, tenants.current, context_mib=settings.watchdog_context_mib
    )
    check = KubeletCheck(
        PodResources(settings.kubelet_dir / "pod-resources" / "kubelet.sock"),
        tenants.current,
        enabled=lambda: KUBELET in board.read().groups,
    )
    patrol = Patrol(
        book,
        board.read,
        cluster,
        settings.watchdog,
        settings.watchdog_after_s,
        node=settings.node,
    )
    exposition = Exposition(
        site,
        board.read,
        book,
        patrolled=patrol.tally,
        kubelet=check.latest,
        heard=reflector.age_s,
    )
    return exposition, [
        ("follow pods", reflector.run),
        ("ask kubelet", partial(check.run, every_s=_KUBELET_EVERY_S)),
        ("patrol", partial(patrol.run, every_s=_PATROL_EVERY_S)),
    ]


def _wait(threads: Sequence[Thread], stop: Event) -> bool:
    """Wait for ``stop``, or for a thread that ended before it; then True.

    Half an exporter would look alive to everybody; a new one is whole.
    """
    while not stop.wait(_LOOK_S):
        dead = [thread.name for thread in threads if not thread.is_alive()]
        if dead and not stop.is_set():
            logger.error("a thread ended", extra={"threads": ", ".join(dead)})
            return True
    return False
