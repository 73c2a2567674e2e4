"""The page of metrics: a collector that reads what is known and asks nobody."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from deviceplugin import ownfields as own
from deviceplugin.cardpages import put_cards
from deviceplugin.containerpages import put_containers
from deviceplugin.fields import ALLOTMENT, KUBELET, PROCESSES
from deviceplugin.kubeletsays import KubeletRound
from deviceplugin.nodepod import PodName
from deviceplugin.page import PODS_LATE_S, Page, Scene, Site
from deviceplugin.snapshot import Snapshot
from deviceplugin.usagebook import UsageBook
from deviceplugin.watchdog import PatrolTally

_NOT_LISTED = "the API server has not told of this node's pods yet"
_SILENT = (
    f"for over {PODS_LATE_S:.0f} s the API server has not told of this node's pods; "
    "they are shown as they were"
)


class Exposition(Collector):
    """Everything that the exporter tells Prometheus; any thread may collect.

    ``patrolled`` and ``kubelet`` are what the watchdog did and what kubelet said, where
    either is at work; ``heard`` is how many seconds ago the API server last said
    anything of pods, None for never.
    """

    def __init__(
        self,
        site: Site,
        snapshot: Callable[[], Snapshot],
        book: UsageBook,
        *,
        patrolled: Callable[[], PatrolTally] | None = None,
        kubelet: Callable[[], KubeletRound | None] | None = None,
        heard: Callable[[], float | None] | None = None,
    ) -> None:
        self._site = site
        self._snapshot = snapshot
        self._book = book
        self._patrolled = patrolled
        self._kubelet = kubelet
        self._heard = heard

    def describe(self) -> Iterable[Metric]:
        """Give nothing, so that registering does not collect."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Give the page as of now."""
        scene, page = self._scene(), Page()
        put_cards(page, scene)
        put_containers(page, scene)
        _put_placements(page, scene)
        _put_self(page, scene)
        _put_rounds(page, scene)
        return page.metrics()

    def troubles(self) -> Mapping[str, str]:
        """Say what is missing from the page, and why, by what it is about."""
        return self._scene().troubles

    def _scene(self) -> Scene:
        snapshot = self._snapshot()
        tenancy = self._book.tenancy()
        kubelet = self._kubelet() if self._kubelet else None
        scene = Scene(
            self._site,
            snapshot,
            self._book.now(),
            tenancy,
            self._book.has_pods,
            kubelet,
            self._patrolled() if self._patrolled else None,
            pods_age_s=self._heard() if self._heard else None,
        )
        return replace(scene, troubles=_troubles(scene))


def _troubles(scene: Scene) -> Mapping[str, str]:
    snapshot, kubelet = scene.snapshot, scene.kubelet
    troubles = dict(snapshot.troubles)
    if scene.has_pods and not scene.pods_told:
        silent = _NOT_LISTED if scene.tenancy is None else _SILENT
        troubles.setdefault("pods", silent)
    if kubelet is not None and kubelet.failure:
        troubles.setdefault("kubelet", kubelet.failure)
    if snapshot.no_cards:
        troubles.setdefault("cards", snapshot.no_cards)
    return troubles


def _put_placements(page: Page, scene: Scene) -> None:
    """Put how many pods lie elsewhere than planned; nothing where nobody can say."""
    kubelet = scene.kubelet
    if scene.tenancy is not None and scene.on(ALLOTMENT):
        moved = [one.name for one in scene.tenancy.tenants if one.moved]
        _put_disagreements(page, scene, "actual", moved)
    if kubelet is not None and not kubelet.failure and scene.on(KUBELET):
        _put_disagreements(page, scene, "kubelet", kubelet.misplaced)


def _put_disagreements(
    page: Page, scene: Scene, what: str, pods: Iterable[PodName]
) -> None:
    named = list(pods)
    base = {"NodeName": scene.site.node, "what": what}
    page.put(own.DISAGREEMENTS, base, len(named))
    for namespace, name in named:
        labels = base | {"NamespaceName": namespace, "PodName": name}
        page.put(own.MISPLACED, labels, 1)


def _put_self(page: Page, scene: Scene) -> None:
    node = {"NodeName": scene.site.node}
    snapshot = scene.snapshot
    versions = {"version": scene.site.version, "driver": snapshot.driver_version}
    page.put(own.INFO, node | versions, 1)
    page.put(own.CONFIG_OK, node, "config" not in scene.troubles)
    for about in sorted(scene.troubles):
        page.put(own.TROUBLE, node | {"about": about}, 1)
    shown = {what.name for what in snapshot.fields if scene.on(what.group)}
    for found in snapshot.rounds.values():
        for uuid, says in found.cards.items():
            for metric in sorted(says.unsupported & shown):
                labels = node | {"metric": metric, "UUID": uuid}
                page.put(own.UNSUPPORTED, labels, 1)
    if scene.patrolled is not None:
        page.put(own.REPORTS, node, scene.patrolled.reports)
        page.put(own.EVICTIONS, node, scene.patrolled.evictions)


def _put_rounds(page: Page, scene: Scene) -> None:
    """Put how the last round of each group went."""
    snapshot = scene.snapshot
    for name, found in sorted(snapshot.rounds.items()):
        _put_round(page, scene, name, (found.took_s, found.at, found.succeeded))
    if (processes := snapshot.processes) is not None:
        how = (processes.took_s, processes.at, processes.succeeded)
        _put_round(page, scene, PROCESSES, how)
    if (kubelet := scene.kubelet) is not None:
        how = (kubelet.took_s, kubelet.at, not kubelet.failure)
        _put_round(page, scene, KUBELET, how)
    if scene.has_pods and scene.on(ALLOTMENT):
        labels = {"NodeName": scene.site.node, "group": ALLOTMENT}
        page.put(own.SUCCESS, labels, scene.pods_told)
        if scene.tenancy is not None and scene.pods_age_s is not None:
            page.put(own.TIMESTAMP, labels, time.time() - scene.pods_age_s)


def _put_round(
    page: Page, scene: Scene, group: str, how: tuple[float, float, bool]
) -> None:
    if not scene.on(group):
        return
    labels = {"NodeName": scene.site.node, "group": group}
    took_s, at, succeeded = how
    page.put(own.DURATION, labels, took_s)
    page.put(own.TIMESTAMP, labels, at)
    page.put(own.SUCCESS, labels, succeeded)
