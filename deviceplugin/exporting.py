"""All parts of one exporter: wired here, started, and stopped together."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from threading import Event, Thread

from deviceplugin.board import Board
from deviceplugin.configuring import Configuring
from deviceplugin.exporter import ExporterPages, served_by
from deviceplugin.exportsettings import ExporterSettings
from deviceplugin.exposition import Exposition
from deviceplugin.faults import XidTallies
from deviceplugin.fields import KUBELET
from deviceplugin.kubeletcheck import KubeletCheck
from deviceplugin.page import Site
from deviceplugin.patrol import Patrol
from deviceplugin.podresources import PodResources
from deviceplugin.procfs import ProcFs
from deviceplugin.sampler import Sampler, groups_read
from deviceplugin.telemetry import Telemetry
from deviceplugin.tenants import Tenants
from deviceplugin.usagebook import UsageBook
from gpushare.kube.cluster import Cluster, Kind
from gpushare.kube.reflector import Reflector
from gpushare.listener import Listener

logger = logging.getLogger(__name__)

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
