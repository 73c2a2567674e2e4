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
from typing import Self

from prometheus_client import CollectorRegistry, make_wsgi_app

from deviceplugin.allocation.cdi import LimitSpecifications
from deviceplugin.allocation.device_chooser import DeviceChooser
from deviceplugin.allocation.injection import CardSetup, InjectionChooser
from deviceplugin.allocation.isolation import (
    LIBRARY,
    IsolationChooser,
    LimitsSource,
    NodeLibrary,
    TierChecks,
)
from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.allocation.prestart import PreStart
from deviceplugin.allocation.records import AllocationRecords
from deviceplugin.allocation.reporter import Reporter
from deviceplugin.cards.advertised import Offer, OwnNode, Publisher
from deviceplugin.cards.health import Health
from deviceplugin.dra.checks import ResourceClaimChecks
from deviceplugin.dra.driver import DraDriver, DraPlugin
from deviceplugin.dra.prepare import ResourceClaimPreparer
from deviceplugin.dra.prepared import PreparedResourceClaims
from deviceplugin.dra.slices import SlicePublisher
from deviceplugin.kubelet.plugin import (
    AllocationParts,
    CardCountFile,
    DevicePlugin,
    QuotaPlugin,
)
from deviceplugin.kubelet.registration import Registrar, Service
from deviceplugin.metrics import PluginMetrics
from deviceplugin.settings import DevicePluginSettings
from deviceplugin.startup_taint import StartupTaint
from deviceplugin.watcher import CollidingCardsError, Watcher
from gpushare.cards.nvml_cards import NvmlCards
from gpushare.cards.source import CardSource, DriverLost
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.reflector import Reflector
from gpushare.kubelet.node_pods import RESOURCES, EventRecorder, NodePods, PodResources
from gpushare.process import Loop, start_threads, wait_for_end
from gpushare.server.listener import Listener

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

    parts: AllocationParts
    watcher: Watcher
    publisher: Publisher
    reporter: Reporter
    recorder: EventRecorder
    registrars: tuple[Registrar, ...]
    reflectors: tuple[tuple[str, Reflector], ...]
    driver: DraDriver
    startup_taint: StartupTaint | None


def serve_kubelet(
    settings: DevicePluginSettings,
    source: CardSource,
    cluster: Cluster,
    stop: Event,
    limits: LimitsSource | None = None,
) -> int:
    """Run until ``stop`` is set; return the exit status.

    ``limits`` is that of ``assemble_plugin``.
    """
    registry = CollectorRegistry()
    # Before the lock, because a plugin that waits for it is alive to a probe, too.
    page = Listener({settings.listen: make_wsgi_app(registry)})
    with page, instance_lock(settings.kubelet_dir / "device-plugins", stop) as locked:
        if not locked:
            return 0
        made = assemble_plugin(settings, source, cluster, registry, limits)
        try:
            threads = start_plugin(made, settings, stop)
        except (CollidingCardsError, DriverLost) as error:
            logger.error("cannot serve", extra={"because": str(error)})  # noqa: TRY400
            stop.set()
            return 1
        failed = wait_for_end(threads, stop)
        stop.set()
        for thread in threads:
            if thread.name.startswith(_SERVE):
                # Its sockets are gone, and kubelet knows, before another plugin begins.
                thread.join()
    source.close()
    return int(failed)


def assemble_plugin(
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
    on_node = NodeLibrary(settings.state_dir / "preload", library)
    shared = _SharedParts.of(settings, cluster, registry)
    setup = _card_setup(shared, limits or NvmlCards(), on_node)
    parts = AllocationParts(
        shared.offer,
        DeviceChooser(shared.occupancy, shared.recorder),
        _prestart(shared, setup),
        shared.records,
        setup,
        shared.metrics,
    )
    publisher = Publisher(shared.node, shared.offer)
    registrars = _registrars(settings, parts)
    services = tuple(registrar.plugin for registrar in registrars)
    taint = StartupTaint(publisher, services) if settings.startup_taint else None
    return PluginParts(
        parts,
        _watcher(shared, source, setup),
        publisher,
        parts.prestart.reporter,
        shared.recorder,
        registrars,
        reflectors=(("node", shared.follow_node), ("pods", shared.follow_pods)),
        driver=_driver(shared, parts),
        startup_taint=taint,
    )


@dataclass(frozen=True, slots=True)
class _SharedParts:
    """Parts that other parts are made with: what is known of the node, and who asks."""

    settings: DevicePluginSettings
    metrics: PluginMetrics
    offer: Offer
    node: OwnNode
    follow_node: Reflector
    follow_pods: Reflector
    records: AllocationRecords
    claims: PreparedResourceClaims
    drivers_limits: LimitSpecifications
    occupancy: Occupancy
    recorder: EventRecorder

    @classmethod
    def of(
        cls,
        settings: DevicePluginSettings,
        cluster: Cluster,
        registry: CollectorRegistry,
    ) -> Self:
        """Read what earlier processes left on disk, and follow the API server."""
        name, state = settings.node, settings.state_dir
        node, pods = OwnNode(cluster, name), NodePods(cluster, name)
        this_node, here = f"metadata.name={name}", f"spec.nodeName={name}"
        resources = PodResources(settings.kubelet_dir / "pod-resources/kubelet.sock")
        limits = LimitSpecifications(settings.cdi_dirs[-1], settings.cdi_dirs)
        records = AllocationRecords(state / "containers", limits)
        # Read also while DRA is off: a claim that was prepared holds its card until
        # kubelet unprepares it.
        claims = PreparedResourceClaims(state / "claims", settings.cdi_dirs[-1], name)
        return cls(
            settings,
            PluginMetrics(registry),
            Offer(settings.reserve_mib),
            node,
            Reflector(cluster, Kind.NODES, node, field_selector=this_node),
            Reflector(cluster, Kind.PODS, pods, field_selector=here),
            records,
            claims,
            limits,
            Occupancy(name, pods, resources, records.all(), claims.placements),
            EventRecorder(cluster, name),
        )


def _card_setup(
    shared: _SharedParts, limits: LimitsSource, library: NodeLibrary
) -> CardSetup:
    settings, state = shared.settings, shared.settings.state_dir
    root, folders = settings.host_root, settings.cdi_dirs
    injection = InjectionChooser(
        settings.inject, folders, shared.node.status, state / "inject", root=root
    )
    checks = TierChecks(limits, root, folders, lambda: injection.chosen, library)
    isolation = IsolationChooser(
        settings.isolation, settings.isolation_context_mib, checks, state / "isolation"
    )
    return CardSetup(injection, isolation, library)


def _prestart(shared: _SharedParts, setup: CardSetup) -> PreStart:
    occupancy, offer, records = shared.occupancy, shared.offer, shared.records
    synced, claims = shared.follow_pods.synced, shared.claims
    return PreStart(
        occupancy,
        records,
        Reporter(shared.node.cluster, occupancy, offer, records, synced, claims.tiers),
        shared.recorder,
        shared.follow_pods.in_touch,
        setup,
    )


def _watcher(shared: _SharedParts, source: CardSource, setup: CardSetup) -> Watcher:
    """Make what watches the cards, with the faults of before."""
    settings = shared.settings
    return Watcher(
        source,
        shared.offer,
        Health(settings.harmless_xids, settings.state_dir / "health.json"),
        shared.node,
        setup,
        shared.metrics,
        shared.occupancy.holders,
    )


def _driver(shared: _SharedParts, parts: AllocationParts) -> DraDriver:
    settings, offer, setup = shared.settings, shared.offer, parts.setup
    occupancy, node = shared.occupancy, shared.node
    preparer = ResourceClaimPreparer(
        node.cluster,
        occupancy,
        offer,
        setup,
        shared.claims,
        shared.drivers_limits,
        ResourceClaimChecks(occupancy, offer, setup),
    )
    return DraDriver(
        DraPlugin(settings.node, offer, preparer, shared.metrics),
        SlicePublisher(node, offer, occupancy, settings.dra_order),
        settings.kubelet_dir,
        shared.follow_pods.synced,
        wanted=settings.dra,
    )


def _registrars(
    settings: DevicePluginSettings, parts: AllocationParts
) -> tuple[Registrar, ...]:
    services: list[Service] = [DevicePlugin(resource, parts) for resource in RESOURCES]
    if settings.bitfusion_quota:
        count = CardCountFile(settings.state_dir / "quota-cards")
        services.append(QuotaPlugin(parts.offer, count, parts.metrics))
    folder = settings.kubelet_dir / "device-plugins"
    return tuple(Registrar(service, folder, parts.metrics) for service in services)


def start_plugin(
    made: PluginParts, settings: DevicePluginSettings, stop: Event
) -> list[Thread]:
    """Follow the API server, wait for cards, then serve; return the threads.

    Raises ``CollidingCardsError`` if two cards would have the same device ids, and
    ``DriverLost`` if only a new process can have the driver's cards.
    """
    followed = [(f"follow {n}", reflector.run) for n, reflector in made.reflectors]
    threads = start_threads(followed, stop)
    for kind, reflector in made.reflectors:
        # Without the API server, kubelet's own list is used.
        if not stop.is_set() and not reflector.synced.wait(_SYNC_WITHIN_S):
            logger.warning("going on without the API server", extra={"kind": kind})
    # Before there are cards: kubelet ends no pod whose claim nobody takes back.
    threads += start_threads([(f"{_SERVE} dra", made.driver.run)], stop)
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
        *(
            (f"{_SERVE} {n}", registrar.run)
            for n, registrar in enumerate(made.registrars)
        ),
    ]
    if made.startup_taint is not None:
        loops.append(("startup taint", made.startup_taint.run))
    made.driver.cards_read.set()
    return threads + start_threads(loops, stop)
