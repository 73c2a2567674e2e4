"""Build ``/metrics`` from the latest snapshot; a scrape never reads a card.

Rules: an unknown value is no sample. A card's metric has one series for each card, and
a container's one for each container on a card, summed over its processes: 0 while it is
idle, none once its pod has gone. The labels of Prometheus' own targets (``pod``,
``namespace``, ``container``) are never used, because Prometheus would rename them to
``exported_pod``.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from exporter import catalog
from exporter.catalog import OwnField
from exporter.kubelet_check import KubeletRound
from exporter.owners.owner_pods import OwnerPods
from exporter.snapshot import TelemetrySnapshot
from exporter.telemetry.fields import (
    ALLOTMENT,
    GROUPS,
    KUBELET,
    PROCESSES,
    XID_ERRORS,
    Field,
)
from exporter.usage import (
    CardUse,
    ContainerUse,
    OveruseTally,
    Usage,
    UsageBook,
    UseKey,
    is_over,
)
from gpushare.cards.source import FoundCard
from gpushare.cards.xids import CARD_XIDS, PROGRAM_XIDS
from gpushare.domain.model import CORES_PER_CARD, UNIT_MIB, CardUUID
from gpushare.kubelet.pods import PodName

Labels = dict[str, str]

MIB = 1 << 20
PODS_LATE_S = 90.0
"""A watch sends something within 30 s, plus the client's grace and a retry; after that
the API server is away, or denies access."""
_LATE_S = 15.0
"""How long a round may take beyond its interval: more than the driver's deadline."""
_EVERY_S = {group.name: group.every_s for group in GROUPS}
_NOT_LISTED = "the API server has not listed this node's pods yet"
_SILENT = (
    f"the API server has sent nothing about this node's pods for over "
    f"{PODS_LATE_S:.0f} s; they are shown as they were"
)


@dataclass(frozen=True, slots=True)
class Site:
    """The node and the version of this exporter.

    ``hostname_label`` is ``hostname``, as the newest dcgm-exporter has it, or
    ``Hostname``, as those before it.
    """

    node: str
    hostname: str
    hostname_label: str = "hostname"
    version: str = ""


class Exposition(Collector):
    """The exporter's collector for Prometheus; any thread may collect.

    ``overuse`` and ``kubelet`` return what was done about overuse, and the last
    comparison with kubelet; ``heard`` how many seconds ago the API server sent anything
    about pods, None for never; ``delays`` how long launches wait (s).
    """

    def __init__(  # noqa: PLR0913
        self,
        site: Site,
        snapshot: Callable[[], TelemetrySnapshot],
        book: UsageBook,
        *,
        overuse: Callable[[], OveruseTally | None] = lambda: None,
        kubelet: Callable[[], KubeletRound | None] = lambda: None,
        heard: Callable[[], float | None] = lambda: None,
        delays: Callable[[], Mapping[UseKey, float]] = dict,
    ) -> None:
        self._site = site
        self._snapshot = snapshot
        self._book = book
        self._overuse = overuse
        self._kubelet = kubelet
        self._heard = heard
        self._delays = delays

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not collect."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the present page."""
        page = self._page()
        _put_cards(page)
        _put_containers(page)
        _put_placements(page)
        _put_self(page)
        _put_rounds(page)
        return page.metrics.values()

    def troubles(self) -> Mapping[str, str]:
        """Return what is missing from the page and why, by topic."""
        return self._page().troubles

    def _page(self) -> "_Page":
        return _Page(
            self._site,
            self._snapshot(),
            self._book.owner_pods(),
            self._book.now(),
            self._book.has_pods,
            self._kubelet(),
            self._overuse(),
            self._heard(),
            self._delays(),
        )


@dataclass
class _Page:
    """All that is known at one moment, and the metrics that are made from it.

    ``pods_age_s`` is for how many seconds the API server has sent nothing about pods.
    ``metrics`` are in the order in which the first sample of each came.
    """

    site: Site
    snapshot: TelemetrySnapshot
    owner_pods: OwnerPods | None
    usage: Usage
    has_pods: bool
    kubelet: KubeletRound | None
    overuse: OveruseTally | None
    pods_age_s: float | None
    delays: Mapping[UseKey, float]
    metrics: dict[str, Metric] = field(default_factory=dict)

    @property
    def pods_told(self) -> bool:
        """Whether the pods are known and up to date."""
        return self.owner_pods is not None and (self.pods_age_s or 0.0) <= PODS_LATE_S

    @cached_property
    def troubles(self) -> Mapping[str, str]:
        """What is missing and why, by topic."""
        troubles = dict(self.snapshot.troubles)
        if self.has_pods and not self.pods_told:
            silent = _NOT_LISTED if self.owner_pods is None else _SILENT
            troubles.setdefault("pods", silent)
        if self.kubelet is not None and self.kubelet.failure:
            troubles.setdefault("kubelet", self.kubelet.failure)
        if self.snapshot.no_cards:
            troubles.setdefault("cards", self.snapshot.no_cards)
        return troubles

    @cached_property
    def card_labels(self) -> dict[CardUUID, Labels]:
        """Each card's labels: those of dcgm-exporter, and the node."""
        return {
            card.uuid: {
                "gpu": str(card.index),
                "UUID": card.uuid,
                "pci_bus_id": card.bus or "",
                "device": "" if card.minor is None else f"nvidia{card.minor}",
                "modelName": card.model,
                self.site.hostname_label: self.site.hostname,
                "DCGM_FI_DRIVER_VERSION": self.snapshot.driver_version,
                "NodeName": self.site.node,
                **_instance_labels(card),
            }
            for card in self.snapshot.cards
        }

    def node_labels(self, **more: str) -> Labels:
        """Return the labels of what is of no card."""
        return {"NodeName": self.site.node, **more}

    def on(self, group: str) -> bool:
        """Return whether a group is switched on."""
        return group in self.snapshot.groups

    def put(self, what: Field | OwnField, labels: Labels, value: float | None) -> None:
        """Add a sample, unless its value is unknown."""
        if value is None:
            return
        name = (what.shown if isinstance(what, Field) else "") or what.name
        metric = self.metrics.get(name)
        if metric is None:
            metric = self.metrics[name] = _metric(what, name)
        metric.samples.append(Sample(name, labels, value))


def _instance_labels(card: FoundCard) -> Labels:
    """Return how the labels of a MIG instance differ; nothing for a full card.

    They are dcgm-exporter's: the card's own, and what part of it the instance is.
    ``GPU_I_UUID`` is ours, because gpushare knows the instance by its UUID.
    """
    if (of := card.instance) is None:
        return {}
    return {
        "gpu": str(of.parent_index),
        "UUID": of.parent,
        "modelName": of.parent_model,
        "GPU_I_ID": str(of.gpu_instance),
        "GPU_I_PROFILE": of.profile,
        "GPU_I_UUID": card.uuid,
    }


def _metric(what: Field | OwnField, name: str) -> Metric:
    if isinstance(what, OwnField) and what.kind == "counter":
        return Metric(name.removesuffix("_total"), what.help, "counter")
    # dcgm-exporter's counters do not end with _total. prometheus_client would append it
    # to a counter, and no dashboard would find them.
    kind = "unknown" if what.kind == "counter" else "gauge"
    return Metric(name, what.help, kind)


def _put_cards(page: _Page) -> None:
    for what in page.snapshot.fields:
        if page.on(what.group):
            _put_field(page, what)
    for card in page.snapshot.cards:
        labels = page.card_labels[card.uuid]
        _put_health(page, card.uuid, labels)
        use = page.usage.cards.get(card.uuid, CardUse())
        if page.on(ALLOTMENT) and not card.integrated:
            _put_allotment(page, card, use, labels)
        if page.on(PROCESSES) and page.snapshot.processes is not None:
            page.put(catalog.SM_SOURCE, labels | {"source": use.sm_source}, 1)
            unattributed = use.unattributed_mib
            known = None if unattributed is None else unattributed * MIB
            page.put(catalog.CARD_UNATTRIBUTED, labels, known)


def _put_field(page: _Page, what: Field) -> None:
    round_ = page.snapshot.rounds.get(what.group)
    for uuid, labels in page.card_labels.items():
        if what.name == XID_ERRORS:
            if (tally := page.snapshot.xids.get(uuid)) is not None:
                page.put(what, labels | {"err_code": str(tally.last)}, tally.last)
            continue
        says = round_.cards.get(uuid) if round_ else None
        # Else a slow group would show a lost card's values of a minute ago.
        old = round_ and round_.at < _lost_at(page.snapshot, uuid) - _LATE_S
        if says is not None and not old:
            page.put(what, labels, says.values.get(what.name))


def _put_health(page: _Page, uuid: CardUUID, labels: Labels) -> None:
    answers = _lately(page.snapshot, uuid)
    healthy = not any(sick for _, sick in answers) if answers else None
    word = "" if healthy is None else str(healthy).lower()
    page.put(catalog.CARD_INFO, labels | {"healthy": word}, 1)
    page.put(catalog.CARD_HEALTHY, labels, healthy)
    # None if it does not report faults, or it is not known yet whether it does.
    if (tally := page.snapshot.xids.get(uuid)) is not None:
        # Those that alerts use begin with 0: Prometheus sees no increase in a series
        # that begins with 1.
        counts = dict.fromkeys((*PROGRAM_XIDS, *CARD_XIDS), 0) | dict(tally.counts)
        for xid, count in sorted(counts.items()):
            page.put(catalog.XIDS, labels | {"xid": str(xid)}, count)


def _lately(snapshot: TelemetrySnapshot, uuid: CardUUID) -> list[tuple[float, bool]]:
    """Return when a card was asked in recent rounds, and whether it was sick or gone.

    What is recent depends on each group's interval: a failure counts until the group is
    read again.
    """
    rounds = snapshot.all_rounds()
    newest = max((round_.at for _, round_ in rounds), default=0.0)
    answers: list[tuple[float, bool]] = []
    for group, round_ in rounds:
        says = round_.cards.get(uuid)
        if round_.at >= newest - _EVERY_S[group] - _LATE_S and (says or round_.failure):
            answers.append((round_.at, bool(round_.failure or (says and says.failure))))
    return answers


def _lost_at(snapshot: TelemetrySnapshot, uuid: CardUUID) -> float:
    """Return when a card failed last in a recent round; -inf if it did not."""
    failed = (at for at, sick in _lately(snapshot, uuid) if sick)
    return max(failed, default=float("-inf"))


def _put_allotment(page: _Page, card: FoundCard, use: CardUse, labels: Labels) -> None:
    page.put(catalog.DEV_FB_TOTAL, labels, card.memory_mib)
    units = use.allotted_units
    if units is None:
        return
    share = units * UNIT_MIB / card.memory_mib if card.memory_mib else None
    page.put(catalog.FB_ALLOCATED, labels, share)
    mode = 1 if use.exclusive else 2
    page.put(catalog.ALLOCATE_MODE, labels, mode if units or use.exclusive else 0)
    page.put(catalog.CARD_ALLOCATED, labels, units * UNIT_MIB * MIB)


def _put_containers(page: _Page) -> None:
    """Put all series of all containers, and of what runs outside Kubernetes."""
    for use in page.usage.containers:
        if (card := page.card_labels.get(use.card)) is None:
            continue
        labels = _container_labels(card, use)
        if page.on(PROCESSES):
            page.put(catalog.SM_UTIL, labels, use.sm)
            page.put(catalog.MEM_COPY, labels, use.memory_copy)
            page.put(catalog.ENCODE, labels, use.encoder)
            page.put(catalog.DECODE, labels, use.decoder)
            page.put(catalog.MEM_USED, labels, use.memory_mib)
            page.put(catalog.LAST_BUSY, labels, use.last_busy if use.uid else None)
            page.put(catalog.LAUNCH_DELAY, labels, page.delays.get(use.key))
        if page.on(ALLOTMENT) and use.allotted is not None:
            ratio = use.allotted.cores / CORES_PER_CARD
            # Cores only: no memory limit, because 0 would make any use an overuse.
            limit_mib = use.allotted.units * UNIT_MIB or None
            page.put(catalog.MEM_ALLOCATED, labels, limit_mib)
            page.put(catalog.CP_ALLOCATED, labels, ratio)
            page.put(catalog.CORE_LIMIT, labels, ratio or None)
        if page.on(PROCESSES) and page.on(ALLOTMENT):
            page.put(catalog.OVER_SHARE, labels, is_over(use))
            page.put(catalog.HELD, labels, use.held.is_held if use.held else None)
            # 0 cores are no limit. A core is a percent of the card.
            if use.allotted is not None and use.allotted.cores and use.sm is not None:
                page.put(catalog.CORE_USE, labels, use.sm / use.allotted.cores)


def _container_labels(card: Labels, use: ContainerUse) -> Labels:
    """Return a container's labels: its card's, and its catalog.

    They are empty for processes outside Kubernetes, and so is the mode for a container
    that has no part of the card; Prometheus drops empty labels.
    """
    mode = "exclusive" if use.exclusive else "share"
    return {
        **card,
        "NamespaceName": use.namespace,
        "PodName": use.pod,
        "ContainerName": use.container,
        "AllocateMode": mode if use.allotted is not None else "",
    }


def _put_placements(page: _Page) -> None:
    """Put how many pods are not on their planned cards; nothing if it is not known."""
    kubelet = page.kubelet
    if page.owner_pods is not None and page.on(ALLOTMENT):
        moved = [pod.name for pod in page.owner_pods.all if pod.moved]
        _put_disagreements(page, "actual", moved)
    if kubelet is not None and not kubelet.failure and page.on(KUBELET):
        _put_disagreements(page, "kubelet", kubelet.misplaced)


def _put_disagreements(page: _Page, what: str, pods: Sequence[PodName]) -> None:
    base = page.node_labels(what=what)
    page.put(catalog.DISAGREEMENTS, base, len(pods))
    for namespace, name in pods:
        page.put(
            catalog.MISPLACED, base | {"NamespaceName": namespace, "PodName": name}, 1
        )


def _put_self(page: _Page) -> None:
    node, snapshot = page.node_labels(), page.snapshot
    versions = {"version": page.site.version, "driver": snapshot.driver_version}
    page.put(catalog.INFO, node | versions, 1)
    page.put(catalog.CONFIG_OK, node, "config" not in page.troubles)
    for about in sorted(page.troubles):
        page.put(catalog.TROUBLE, node | {"about": about}, 1)
    shown = {what.name for what in snapshot.fields if page.on(what.group)}
    named = {
        uuid: {key: labels[key] for key in ("UUID", "GPU_I_UUID") if key in labels}
        for uuid, labels in page.card_labels.items()
    }
    for round_ in snapshot.rounds.values():
        for uuid, says in round_.cards.items():
            labels = node | named.get(uuid, {"UUID": uuid})
            for metric in sorted(says.unsupported & shown):
                page.put(catalog.UNSUPPORTED, labels | {"metric": metric}, 1)
    if page.overuse is not None:
        page.put(catalog.REPORTS, node, page.overuse.reports)
        page.put(catalog.EVICTIONS, node, page.overuse.evictions)


def _put_rounds(page: _Page) -> None:
    rounds = [
        (name, round_.took_s, round_.at, round_.succeeded)
        for name, round_ in page.snapshot.all_rounds()
    ]
    if (check := page.kubelet) is not None:
        rounds.append((KUBELET, check.took_s, check.at, not check.failure))
    for group, took_s, at, succeeded in rounds:
        if page.on(group):
            labels = page.node_labels(group=group)
            page.put(catalog.DURATION, labels, took_s)
            page.put(catalog.TIMESTAMP, labels, at)
            page.put(catalog.SUCCESS, labels, succeeded)
    if page.has_pods and page.on(ALLOTMENT):
        labels = page.node_labels(group=ALLOTMENT)
        page.put(catalog.SUCCESS, labels, page.pods_told)
        if page.owner_pods is not None and page.pods_age_s is not None:
            page.put(catalog.TIMESTAMP, labels, time.time() - page.pods_age_s)
