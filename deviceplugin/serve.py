"""One device plugin: its parts are put together here, started, and stopped together."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread

from prometheus_client import CollectorRegistry, make_wsgi_app

from deviceplugin.allocation.injection import InjectionChooser
from deviceplugin.allocation.isolation import (
    Checks,
    HardLimits,
    IsolationChooser,
    LimitsSource,
)
from deviceplugin.allocation.occupancy import Occupancy, Records
from deviceplugin.allocation.preferred import DeviceChooser
from deviceplugin.allocation.preload import NodeLibrary
from deviceplugin.allocation.prestart import PreStart, Reporter
from deviceplugin.allocation.response import LIBRARY
from deviceplugin.allocation.started import StartedLimits
from deviceplugin.cards.advertised import Offer, OwnNode, Publisher
from deviceplugin.cards.health import Health, HealthFile
from deviceplugin.cards.limits import DriverLimits
from deviceplugin.cards.source import CardSource, DriverLost
from deviceplugin.dra.driver import DraDriver, DraPlugin
from deviceplugin.dra.prepare import Preparer
from deviceplugin.dra.prepared import PreparedClaims
from deviceplugin.dra.slices import SlicePublisher
from deviceplugin.kubelet.plugin import CardCountFile, DevicePlugin, Parts, QuotaPlugin
from deviceplugin.kubelet.registration import Registrar, Service
from deviceplugin.metrics import PluginMetrics
from deviceplugin.node_pods import RESOURCES, EventRecorder, NodePods, PodResources
from deviceplugin.settings import DevicePluginSettings
from deviceplugin.threads import Loop, wait
from deviceplugin.threads import start as start_threads
from deviceplugin.watcher import CollidingCardsError, Watcher
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.reflector import Reflector
from gpushare.listener import Listener

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_REPORT_EVERY_S = 10.0
_SERVE = "serve"
_SYNC_WITHIN_S = 10.0


@contextmanager
def instance_lock(folder: Path, stop: Event) -> Iterator[bool]:
    """Wait for the lock on kubelet's folder, and hold it; False when stopped first.

    Of two plugins that register one resource, kubelet drops the later one for ever when
    the earlier one ends (contracts 2.7). The kernel releases the lock with the process.
    The folder itself is locked, because kubelet removes files in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _wait_for_lock(lock, stop)
    finally:
        os.close(lock)


def _wait_for_lock(lock: int, stop: Event) -> bool:
    logged = False
    while not stop.is_set():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not logged:
                logger.warning("another device plugin runs here; waiting for its end")
            logged = True
            stop.wait(_LOOK_S)
        else:
            return True
    return False


@dataclass(frozen=True, slots=True)
class PluginParts:
    """All parts of one device plugin, put together."""

    parts: Parts
    watcher: Watcher
    publisher: Publisher
    reporter: Reporter
    recorder: EventRecorder
    registrars: tuple[Registrar, ...]
    reflectors: tuple[tuple[str, Reflector], ...]
    driver: DraDriver | None


def run(
    settings: DevicePluginSettings, source: CardSource, cluster: Cluster, stop: Event
) -> int:
    """Run until ``stop`` is set; return the exit status."""
    registry = CollectorRegistry()
    # Before the lock, because a plugin that waits for it is alive to a probe, too.
    page = Listener({settings.listen: make_wsgi_app(registry)})
    with page, instance_lock(settings.kubelet_dir / "device-plugins", stop) as locked:
        if not locked:
            return 0
        made = assemble(settings, source, cluster, registry)
        try:
            threads = start(made, settings, stop)
        except (CollidingCardsError, DriverLost) as error:
            logger.error("cannot serve", extra={"because": str(error)})  # noqa: TRY400
            stop.set()
            return 1
        failed = wait(threads, stop)
        stop.set()
        for thread in threads:
            if thread.name.startswith(_SERVE):
                # Its sockets are gone, and kubelet knows, before another plugin begins.
                thread.join()
    source.close()
    return int(failed)


def assemble(
    settings: DevicePluginSettings,
    source: CardSource,
    cluster: Cluster,
    registry: CollectorRegistry,
    limits: LimitsSource | None = None,
    library: Path = Path(LIBRARY),
) -> PluginParts:
    """Put the parts together; nothing runs yet.

    ``limits`` tells of memory limits in place of NVIDIA's driver. ``library`` is that
    of tier ``preload``.
    """
    name, state = settings.node, settings.state_dir
    metrics = PluginMetrics(registry)
    offer, node, pods = Offer(settings.reserve_mib), OwnNode(), NodePods(cluster, name)
    own, here = f"metadata.name={name}", f"spec.nodeName={name}"
    follow_node = Reflector(cluster, Kind.NODES, node, field_selector=own)
    follow_pods = Reflector(cluster, Kind.PODS, pods, field_selector=here)
    resources = PodResources(settings.kubelet_dir / "pod-resources" / "kubelet.sock")
    records = Records(state / "containers")
    # Read also while DRA is off: a claim that was prepared holds its card until kubelet
    # unprepares it.
    claims = PreparedClaims(state / "claims", settings.cdi_dirs[-1], name)
    occupancy = Occupancy(name, pods, records.all(), claims.placements)
    recorder = EventRecorder(cluster, name)
    reporter = Reporter(
        cluster, pods, resources, occupancy, offer, records, follow_pods.synced
    )
    device_chooser = DeviceChooser(pods, resources, occupancy, recorder)
    on_node = NodeLibrary(state / "preload", library)
    limits_of = HardLimits(settings.isolation_overhead_mib, settings.isolation_pods)
    prestart = PreStart(
        pods,
        resources,
        occupancy,
        records,
        reporter,
        recorder,
        follow_pods.in_touch,
        StartedLimits(pods, records, offer, follow_pods.synced, claims.limits_mib),
        on_node,
        limits_of,
    )
    health, file = Health(settings.harmless_xids), HealthFile(state / "health.json")
    file.load(health)
    chooser = InjectionChooser(
        settings.inject, settings.cdi_dirs, node.status, state / "inject"
    )
    checks = Checks(
        limits or DriverLimits(),
        settings.host_root,
        settings.cdi_dirs,
        lambda: chooser.chosen,
        on_node,
    )

    def is_idle() -> bool:
        return occupancy.is_idle() and not records.of_pods_known_to_kubelet_alone()

    isolation = IsolationChooser(
        settings.isolation, limits_of, checks, is_idle, state / "isolation"
    )
    watcher = Watcher(
        source,
        offer,
        health,
        file,
        node,
        name,
        cluster,
        chooser,
        isolation,
        metrics,
        occupancy.as_allocated,
    )
    parts = Parts(
        offer,
        device_chooser,
        prestart,
        records,
        chooser,
        isolation,
        on_node,
        metrics,
    )
    preparer = Preparer(
        name,
        cluster,
        resources,
        occupancy,
        offer,
        chooser,
        isolation,
        on_node,
        prestart,
        claims,
        settings.cdi_dirs,
    )
    driver = DraDriver(
        DraPlugin(name, offer, preparer, metrics),
        SlicePublisher(cluster, name, node, offer, occupancy, settings.dra_order),
        settings.kubelet_dir,
    )
    return PluginParts(
        parts,
        watcher,
        Publisher(cluster, name, node, offer),
        reporter,
        recorder,
        registrars=_registrars(settings, parts),
        reflectors=(("node", follow_node), ("pods", follow_pods)),
        driver=driver if settings.dra else None,
    )


def _registrars(settings: DevicePluginSettings, parts: Parts) -> tuple[Registrar, ...]:
    """Make the service of each resource, and what registers it with kubelet."""
    services: list[Service] = [DevicePlugin(one, parts) for one in RESOURCES]
    if settings.bitfusion_quota:
        count = CardCountFile(settings.state_dir / "quota-cards")
        services.append(QuotaPlugin(parts.offer, count, parts.metrics))
    folder = settings.kubelet_dir / "device-plugins"
    return tuple(Registrar(one, folder, parts.metrics) for one in services)


def start(
    made: PluginParts, settings: DevicePluginSettings, stop: Event
) -> list[Thread]:
    """Follow the API server, wait for cards, then serve; return the threads.

    Raises ``CollidingCardsError`` if two cards would have the same device ids, and
    ``DriverLost`` if only a new process can have the driver's cards.
    """
    followed = [(f"follow {n}", one.run) for n, one in made.reflectors]
    threads = start_threads(followed, stop)
    for kind, one in made.reflectors:
        # Without the API server, kubelet's own list is used.
        if not stop.is_set() and not one.synced.wait(_SYNC_WITHIN_S):
            logger.warning("going on without the API server", extra={"kind": kind})
    every_s = settings.look_every_s
    if not made.watcher.wait_for_cards(stop, every_s):
        return threads
    made.watcher.read()
    made.watcher.apply_annotations()
    loops: list[tuple[str, Loop]] = [
        ("watch cards", partial(made.watcher.run, every_s=every_s)),
        ("watch faults", partial(made.watcher.watch_faults, every_s=every_s)),
        ("publish", made.publisher.run),
        ("write events", made.recorder.run),
        ("report", partial(made.reporter.run, every_s=_REPORT_EVERY_S)),
        *((f"{_SERVE} {n}", one.run) for n, one in enumerate(made.registrars)),
    ]
    if made.driver is not None:
        loops.append((f"{_SERVE} dra", made.driver.run))
    return threads + start_threads(loops, stop)
