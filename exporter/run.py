"""One exporter: its parts are put together here, started, and stopped together.

Here are also the parts that follow a change: the file of fields, and the node's pods.
"""

import logging
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread

from werkzeug.wrappers import Request

from exporter.collector import Exposition, Site
from exporter.cores.pace_files import MEASURE_EVERY_S, PaceWriter
from exporter.http import ExporterPages
from exporter.kubelet_check import KubeletCheck
from exporter.overuse import OveruseMonitor
from exporter.owners.claims import PodsWithResourceClaims, ResourceClaimsFolder
from exporter.owners.limit_folders import LimitFolders
from exporter.owners.owner_pods import OwnerPod, OwnerPods, read_owner_pod
from exporter.owners.procfs import ProcFs
from exporter.sampler import Sampler, SnapshotStore, XidTallies, groups_read
from exporter.selection import BadFieldFile, Flags, choose, parse
from exporter.settings import ExporterSettings
from exporter.telemetry.base import Telemetry
from exporter.telemetry.fields import KUBELET, PROCESSES, FieldGroup
from exporter.usage import UsageBook
from gpushare import __version__
from gpushare.domain.model import PodUID
from gpushare.kube.cluster import Cluster, Json, Kind
from gpushare.kube.json_reader import Malformed
from gpushare.kube.reflector import Reflector, Sink
from gpushare.kubelet.node_pods import PodResources
from gpushare.logs import LogOnce
from gpushare.process import Loop, start_threads, wait_for_end
from gpushare.server.listener import Listener

logger = logging.getLogger(__name__)

CONFIG = "config"
"""The key in ``TelemetrySnapshot.troubles`` while the file is not valid."""
_MOST_BYTES = 1 << 20
_OVERUSE_EVERY_S = 2.0
_KUBELET_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class ExporterParts:
    """All parts of one exporter; ``loops`` by the names of their threads."""

    store: SnapshotStore
    sampler: Sampler
    file_watcher: "FieldFileWatcher"
    pages: ExporterPages
    loops: dict[str, Loop]


def run_exporter(
    settings: ExporterSettings,
    telemetry: Telemetry,
    cluster: Cluster | None,
    stop: Event,
) -> int:
    """Run until ``stop`` is set; return the exit status.

    Without a cluster, only cards are shown, because nothing is known about pods.
    """
    made = assemble_exporter(settings, telemetry, cluster)
    served = {settings.listen: Request.application(made.pages.every)}
    if settings.collect_listen is not None:
        alone = Request.application(made.pages.collect_alone)
        served[settings.collect_listen] = alone
    # Before anything is read, because a probe or an agent may ask at once.
    with Listener(served):
        failed = wait_for_end(start_exporter(made, stop), stop)
        stop.set()
        made.sampler.wake()
    telemetry.close()
    return int(failed)


def start_exporter(made: ExporterParts, stop: Event) -> list[Thread]:
    """Choose groups and fields, then start all threads."""
    made.file_watcher.read_fields()
    return start_threads(made.loops.items(), stop)


def assemble_exporter(
    settings: ExporterSettings, telemetry: Telemetry, cluster: Cluster | None
) -> ExporterParts:
    """Put the parts together; nothing runs yet."""
    store = SnapshotStore()
    procfs = ProcFs(settings.host_root)
    look_every_s = settings.look_every_s
    folders = None if cluster is None else LimitFolders(settings.state_dir)
    sampler = Sampler(
        telemetry, store, procfs, look_every_s=look_every_s, folders=folders
    )
    watcher = FieldFileWatcher(settings.flags, settings.fields_file, sampler, store)
    loops: dict[str, Loop] = {
        "look": sampler.look_for_cards,
        **{
            f"read {group.name}": partial(sampler.sample, _paced(group, settings))
            for group in groups_read()
        },
        "watch faults": XidTallies(telemetry, store).watch_faults,
        "configure": partial(watcher.run, every_s=look_every_s),
    }
    # The node's name, as dcgm-exporter has it: the name of a pod's host says nothing.
    node = settings.node
    site = Site(node, node, settings.hostname_label, __version__)
    if cluster is None:
        exposition = Exposition(site, store.read, UsageBook(store.read, None))
    else:
        exposition, more = _following_pods(settings, cluster, store, site)
        loops |= more
    unit, troubles = settings.collect_unit, exposition.troubles
    pages = ExporterPages(node, unit, store.read, exposition, troubles)
    return ExporterParts(store, sampler, watcher, pages, loops)


def _paced(group: FieldGroup, settings: ExporterSettings) -> FieldGroup:
    """Read processes more often where the delays of launches follow from them."""
    often = group.name == PROCESSES and settings.compute == "share"
    return replace(group, every_s=MEASURE_EVERY_S) if often else group


def _following_pods(
    settings: ExporterSettings, cluster: Cluster, store: SnapshotStore, site: Site
) -> tuple[Exposition, dict[str, Loop]]:
    watched_pods = WatchedPods()
    here = f"spec.nodeName={settings.node}"
    reflector = Reflector(cluster, Kind.PODS, watched_pods, field_selector=here)
    folder = ResourceClaimsFolder(settings.state_dir / "claims")
    joined = PodsWithResourceClaims(watched_pods.current, folder.read)
    book = UsageBook(
        store.read, joined.current, context_mib=settings.watchdog_context_mib
    )
    check = KubeletCheck(
        PodResources(settings.kubelet_dir / "pod-resources" / "kubelet.sock"),
        watched_pods.current,
        enabled=lambda: KUBELET in store.read().groups,
    )
    monitor = OveruseMonitor(
        book,
        store.read,
        cluster,
        settings.watchdog,
        settings.watchdog_after_s,
        node=settings.node,
    )
    writer = PaceWriter(store.read, book, settings.state_dir / "containers")
    paced: dict[str, Loop] = {}
    if settings.compute == "share":
        paced["pace launches"] = writer.run
    exposition = Exposition(
        site,
        store.read,
        book,
        overuse=monitor.tally,
        kubelet=check.latest,
        heard=reflector.age_s,
        delays=writer.delays,
    )
    return exposition, {
        **paced,
        "follow pods": reflector.run,
        "ask kubelet": partial(check.run, every_s=_KUBELET_EVERY_S),
        "watch overuse": partial(monitor.run, every_s=_OVERUSE_EVERY_S),
    }


class FieldFileWatcher:
    """Applies the flags of the command line, and the file of fields if there is one.

    A file that is not valid changes nothing. The file is read at every look, because it
    is short, and neither its time nor its inode shows all changes that a ConfigMap's
    links and an editor make.
    """

    def __init__(
        self, flags: Flags, path: Path | None, sampler: Sampler, store: SnapshotStore
    ) -> None:
        self._flags = flags
        self._path = path
        self._sampler = sampler
        self._store = store
        self._seen: bytes | None = None
        self._log_once = LogOnce(logger)
        sampler.choose(choose(flags))

    def run(self, stop: Event, every_s: float) -> None:
        """Look at the file every so often until ``stop`` is set."""
        while not stop.wait(every_s):
            self.read_fields()

    def read_fields(self) -> None:
        """Apply the file if it changed."""
        try:
            raw = self._read()
            if raw == self._seen and CONFIG not in self._store.read().troubles:
                return
            self._seen = raw
            listed = None if raw is None else parse(raw.decode())
        except (BadFieldFile, UnicodeDecodeError, OSError) as error:
            why = f"{self._path}: {_because(error)}; the fields chosen before stay"
            message = "the file of fields is not valid"
            self._log_once.problem(CONFIG, why, message, because=why)
            self._store.set_trouble(CONFIG, why)
            return
        if listed is not None:
            file = str(self._path)
            facts = {"file": file, "fields": len(listed.fields)}
            logger.info("fields chosen", extra=facts)
            if names := ",".join(listed.unknown):
                facts = {"file": file, "fields": names}
                logger.warning("fields not known here", extra=facts)
            if names := ",".join(listed.repeated):
                facts = {"file": file, "fields": names}
                logger.info("fields listed again", extra=facts)
        self._sampler.choose(choose(self._flags, listed.fields if listed else None))
        self._log_once.recovered(CONFIG, "the file of fields is valid again")
        self._store.set_trouble(CONFIG, "")

    def _read(self) -> bytes | None:
        """Return the file; None if there is none. ``OSError``, ``BadFieldFile``."""
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


def _because(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror})"
    return str(error)


class WatchedPods(Sink):
    """Sink for the pods of this node; any thread may ask for them.

    A pod leaves when it is deleted, or once its phase is terminal. While the API server
    is away, the pods stay as it told them last.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pods: dict[PodUID, OwnerPod] = {}
        self._was_listed = False
        self._current: OwnerPods | None = None

    def begin_list(self) -> AbstractSet[str]:
        """Return the UIDs of the pods."""
        with self._lock:
            return set(self._pods)

    def put(self, body: Json) -> None:
        """Take over a pod."""
        self._set(PodUID(body["metadata"]["uid"]), _read(body))

    def drop(self, key: str) -> None:
        """Forget a pod, by its UID."""
        self._set(PodUID(key), None)

    def end_list(self) -> None:
        """Answer from now on."""
        self._was_listed = True

    def _set(self, uid: PodUID, pod: OwnerPod | None) -> None:
        with self._lock:
            self._pods.pop(uid, None)
            if pod is not None:
                self._pods[uid] = pod
            self._current = None

    def current(self) -> OwnerPods | None:
        """Return the pods: the same object until one of them changes.

        None before the first complete list.
        """
        with self._lock:
            if self._current is None and self._was_listed:
                self._current = OwnerPods.of(self._pods.values())
            return self._current


def _read(pod: Json) -> OwnerPod | None:
    """Read a pod; None if it has ended, or is malformed."""
    try:
        owner_pod = read_owner_pod(pod)
    except Malformed as error:
        facts = {"pod": pod["metadata"].get("uid"), "because": str(error)}
        logger.warning("pod not understood", extra=facts)
        return None
    return None if owner_pod.pod.record.terminal else owner_pod
