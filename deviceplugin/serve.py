"""All parts of one device plugin: wired here, started, and stopped together.

One device plugin a node, whatever a rollout or an operator starts.
"""

import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread

from prometheus_client import CollectorRegistry, make_wsgi_app

from deviceplugin.allocation.injection import Injecting
from deviceplugin.allocation.occupancy import Occupancy
from deviceplugin.allocation.preferred import Admission
from deviceplugin.allocation.prestart import Reporter, Starter
from deviceplugin.allocation.records import Records
from deviceplugin.cards.advertised import Offer
from deviceplugin.cards.health import Health, HealthFile
from deviceplugin.cards.publisher import OwnNode, Publisher
from deviceplugin.cards.source import CardSource, DriverLost
from deviceplugin.events import Announcer
from deviceplugin.kubelet.plugin import DevicePlugin, MostCards, Parts, QuotaPlugin
from deviceplugin.kubelet.registration import Pace, Registrar, Service
from deviceplugin.metrics import PluginMetrics
from deviceplugin.pod_resources import RESOURCES, PodResources
from deviceplugin.pod_watch import NodePods
from deviceplugin.settings import DevicePluginSettings
from deviceplugin.watcher import CollidingCardsError, Watcher
from gpushare.domain.model import NodeName
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.reflector import Reflector
from gpushare.listener import Listener

logger = logging.getLogger(__name__)

_LOOK_S = 1.0


@contextmanager
def only_one(folder: Path, stop: Event) -> Iterator[bool]:
    """Wait for the lock on kubelet's folder, and hold it; False when stopped first.

    Of two that register one resource, kubelet would drop the later one for ever when
    the earlier ends (contracts 2.7). The kernel lets go of the lock with the process.
    The folder itself is locked: kubelet removes files in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _wait_for(lock, stop)
    finally:
        os.close(lock)


def _wait_for(lock: int, stop: Event) -> bool:
    said = False
    while not stop.is_set():
        if _taken(lock):
            return True
        if not said:
            logger.warning("another device plugin runs here; waiting for its end")
        said = True
        stop.wait(_LOOK_S)
    return False


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_REPORT_EVERY_S = 10.0
_SERVE = "serve"
_SYNC_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Serving:
    """All parts of one device plugin, wired."""

    watcher: Watcher
    publisher: Publisher
    reporter: Reporter
    announcer: Announcer
    registrars: tuple[Registrar, ...]
    reflectors: tuple[tuple[str, Reflector], ...]
    offer: Offer
    pods: NodePods
    occupancy: Occupancy
    admission: Admission
    starter: Starter


def run(
    settings: DevicePluginSettings, source: CardSource, cluster: Cluster, stop: Event
) -> int:
    """Run until ``stop`` is set; the exit status."""
    registry = CollectorRegistry()
    # Before the lock: who waits for it is alive too, and a probe should see that.
    page = Listener({settings.listen: make_wsgi_app(registry)})
    with page, only_one(settings.kubelet_dir / "device-plugins", stop) as only:
        if not only:
            return 0
        made = assemble(settings, source, cluster, registry)
        try:
            threads = start(made, settings, stop)
        except (CollidingCardsError, DriverLost) as error:
            logger.error("cannot serve", extra={"because": str(error)})  # noqa: TRY400
            stop.set()
            return 1
        failed = _wait(threads, stop)
        stop.set()
        for thread in threads:
            if thread.name.startswith(_SERVE):
                # Its sockets are gone, and kubelet knows, before another plugin begins.
                thread.join()
    source.close()
    return int(failed)


def start(made: Serving, settings: DevicePluginSettings, stop: Event) -> list[Thread]:
    """Follow the API server, wait for cards, then serve; the threads that do so.

    ``CollidingCardsError`` where two cards would have the same device ids,
    ``DriverLost`` where only a new process can have the driver's cards.
    """
    threads = [_start(f"follow {n}", r.run, stop) for n, r in made.reflectors]
    _wait_for_sync(made.reflectors, stop)
    if not made.watcher.wait_for_cards(stop, settings.look_every_s):
        return threads
    made.watcher.read()
    made.watcher.heed()
    return threads + _start_all(made, settings, stop)


def _wait(threads: Sequence[Thread], stop: Event) -> bool:
    """Wait for ``stop``, or for a thread that ended before it; then True.

    Half a plugin would look alive to everybody; a new one is whole.
    """
    while not stop.wait(_LOOK_S):
        dead = [thread.name for thread in threads if not thread.is_alive()]
        if dead:
            logger.error("a thread ended", extra={"threads": ", ".join(dead)})
            return True
    return False


def assemble(
    settings: DevicePluginSettings,
    source: CardSource,
    cluster: Cluster,
    registry: CollectorRegistry,
    pace: Pace | None = None,
) -> Serving:
    """Put the parts together; nothing runs yet."""
    pace = pace or Pace()
    metrics = PluginMetrics(registry)
    offer = Offer(settings.reserve_mib)
    node = OwnNode(settings.node)
    pods = NodePods(cluster, settings.node)
    resources = PodResources(settings.kubelet_dir / "pod-resources" / "kubelet.sock")
    occupancy = Occupancy(settings.node, pods, offer.cards)
    records = Records(settings.state_dir / "containers")
    for record in records.all():
        occupancy.remember(record)
    announcer = Announcer(cluster, settings.node, look_s=pace.events_s)
    following = _following(cluster, settings.node, node, pods)
    reporter = Reporter(
        cluster,
        pods,
        resources,
        occupancy,
        offer.cards,
        records,
        following["pods"].synced.is_set,
    )
    watcher = _watcher(settings, source, cluster, offer, node, metrics)
    admission = Admission(pods, resources, occupancy, offer.cards, announcer)
    starter = Starter(
        pods,
        resources,
        occupancy,
        offer.cards,
        records,
        reporter,
        announcer,
        following["pods"].in_touch,
    )
    chosen = watcher.injecting.chosen
    parts = Parts(offer, admission, starter, records, chosen, metrics, pace)
    folder = settings.kubelet_dir / "device-plugins"
    return Serving(
        offer=offer,
        pods=pods,
        occupancy=occupancy,
        admission=admission,
        starter=starter,
        watcher=watcher,
        publisher=Publisher(cluster, settings.node, node, offer, pace.publish_s),
        reporter=reporter,
        announcer=announcer,
        registrars=tuple(
            Registrar(one, folder, metrics) for one in _services(settings, parts)
        ),
        reflectors=tuple(following.items()),
    )


def _services(settings: DevicePluginSettings, parts: Parts) -> Iterator[Service]:
    """Give what is registered with kubelet, resource by resource."""
    for resource in RESOURCES:
        yield DevicePlugin(resource, parts)
    if settings.bitfusion_quota:
        file = MostCards(settings.state_dir / "quota-cards")
        yield QuotaPlugin(parts.offer, file, parts.metrics, parts.pace)


def _watcher(
    settings: DevicePluginSettings,
    source: CardSource,
    cluster: Cluster,
    offer: Offer,
    node: OwnNode,
    metrics: PluginMetrics,
) -> Watcher:
    """Put together what keeps the offer true, with the faults from before a restart."""
    injecting = Injecting(
        settings.inject, settings.cdi_dirs, node.status, settings.state_dir / "inject"
    )
    health = Health(settings.harmless_xids)
    file = HealthFile(settings.state_dir / "health.json")
    file.load(health)
    return Watcher(
        source,
        offer,
        health,
        file,
        node,
        settings.node,
        cluster,
        injecting,
        metrics,
    )


def _following(
    cluster: Cluster, name: NodeName, node: OwnNode, pods: NodePods
) -> dict[str, Reflector]:
    """Follow this node and its pods, and nothing else of the cluster."""
    own, here = f"metadata.name={name}", f"spec.nodeName={name}"
    return {
        "node": Reflector(cluster, Kind.NODES, node, field_selector=own),
        "pods": Reflector(cluster, Kind.PODS, pods, field_selector=here),
    }


def _start_all(
    made: Serving, settings: DevicePluginSettings, stop: Event
) -> list[Thread]:
    every_s = settings.look_every_s
    return [
        _start("watch cards", partial(made.watcher.run, every_s=every_s), stop),
        _start("hear faults", partial(made.watcher.hear, every_s=every_s), stop),
        _start("publish", made.publisher.run, stop),
        _start("announce", made.announcer.run, stop),
        _start("report", partial(made.reporter.run, every_s=_REPORT_EVERY_S), stop),
        *(
            _start(f"{_SERVE} {number}", registrar.run, stop)
            for number, registrar in enumerate(made.registrars)
        ),
    ]


def _start(name: str, target: Callable[[Event], None], stop: Event) -> Thread:
    thread = Thread(target=target, args=(stop,), name=name, daemon=True)
    thread.start()
    return thread


def _wait_for_sync(reflectors: Sequence[tuple[str, Reflector]], stop: Event) -> None:
    """Wait for the API server a while; without it, kubelet's own list must do."""
    for name, reflector in reflectors:
        if not stop.is_set() and not reflector.synced.wait(_SYNC_WITHIN_S):
            logger.warning("going on without the API server", extra={"kind": name})
