"""The page of metrics, from what is known; a scrape waits for nothing.

Rules: an unknown value is no sample. A card's metric has one series for each card, and
a container's one for each container on a card, summed over its processes: 0 while it is
idle, none once its pod has gone. The labels of Prometheus' own targets (``pod``,
``namespace``, ``container``) are never used, because Prometheus would rename them to
``exported_pod``.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from deviceplugin.cards.source import Found, FoundCard
from deviceplugin.exporter import catalog as own
from deviceplugin.exporter.catalog import OwnField
from deviceplugin.exporter.kubelet_check import KubeletRound
from deviceplugin.exporter.owners import Tenancy
from deviceplugin.exporter.snapshot import ProcessRound, Round, Snapshot
from deviceplugin.exporter.snapshot_store import UsageBook
from deviceplugin.exporter.usage import (
    CardUse,
    ContainerUse,
    OveruseTally,
    Usage,
    is_over,
)
from deviceplugin.pods import PodName
from deviceplugin.telemetry.fields import (
    ALLOTMENT,
    GROUPS,
    KUBELET,
    PROCESSES,
    XID_ERRORS,
    Field,
)
from gpushare.domain.model import CORES_PER_CARD, UNIT_MIB, CardUUID

Labels = dict[str, str]

PODS_LATE_S = 90.0
"""A watch sends something within 30 s, plus the client's grace and a retry; after that
the API server is away, or denies access."""


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


@dataclass(frozen=True, slots=True)
class PageData:
    """All data of one page; immutable.

    ``pods_age_s`` is for how many seconds the API server has sent nothing about pods.
    """

    site: Site
    snapshot: Snapshot
    usage: Usage
    tenancy: Tenancy | None = None
    has_pods: bool = False
    kubelet: KubeletRound | None = None
    overuse: OveruseTally | None = None
    troubles: Mapping[str, str] = field(default_factory=dict)
    pods_age_s: float | None = None

    @property
    def pods_told(self) -> bool:
        """Whether the pods are known and up to date."""
        return self.tenancy is not None and (self.pods_age_s or 0.0) <= PODS_LATE_S

    @property
    def found(self) -> Found:
        """The cards that were found last."""
        return self.snapshot.found or Found(())

    def on(self, group: str) -> bool:
        """Return whether a group is switched on."""
        return group in self.snapshot.groups


class Page:
    """Metrics by name, in the order in which the first sample of each came."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def put(self, what: Field | OwnField, labels: Labels, value: float | None) -> None:
        """Add a sample, unless its value is unknown."""
        if value is None:
            return
        name = (what.shown if isinstance(what, Field) else "") or what.name
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = _metric(what, name)
        metric.samples.append(Sample(name, labels, value))

    def metrics(self) -> Iterator[Metric]:
        """Return all metrics that have a sample."""
        yield from self._metrics.values()


def card_labels(data: PageData) -> dict[CardUUID, Labels]:
    """Return each card's labels: those of dcgm-exporter, and the node."""
    return {card.uuid: _of_card(data, card) for card in data.found.cards}


def container_labels(card: Labels, use: ContainerUse) -> Labels:
    """Return a container's labels: its card's, and its own.

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


def _of_card(data: PageData, card: FoundCard) -> Labels:
    site = data.site
    return {
        "gpu": str(card.index),
        "UUID": card.uuid,
        "pci_bus_id": card.bus or "",
        "device": "" if card.minor is None else f"nvidia{card.minor}",
        "modelName": card.model,
        site.hostname_label: site.hostname,
        "DCGM_FI_DRIVER_VERSION": data.snapshot.driver_version,
        "NodeName": site.node,
    }


def _metric(what: Field | OwnField, name: str) -> Metric:
    if isinstance(what, OwnField) and what.kind == "counter":
        return Metric(name.removesuffix("_total"), what.help, "counter")
    # dcgm-exporter's counters do not end with _total. prometheus_client would append it
    # to a counter, and no dashboard would find them.
    kind = "unknown" if what.kind == "counter" else "gauge"
    return Metric(name, what.help, kind)


MIB = 1 << 20
KNOWN_XIDS = (13, 31, 43, 45, 68, 109, 48, 63, 64, 74, 79, 94, 95, 119, 120)
"""Those that alerts use. They are shown as 0 before they happen, because Prometheus
sees no increase in a series that begins with 1."""
_LATE_S = 15.0
"""How long a round may take beyond its interval: more than the driver's deadline."""
_EVERY_S = {group.name: group.every_s for group in GROUPS}


def put_cards(page: Page, data: PageData) -> None:
    """Put all series of all cards."""
    labels = card_labels(data)
    for what in data.snapshot.fields:
        if data.on(what.group):
            _put_field(page, data, what, labels)
    for card in data.found.cards:
        its = labels[card.uuid]
        _put_health(page, data, card, its)
        _put_faults(page, data, card, its)
        use = data.usage.cards.get(card.uuid, CardUse())
        if data.on(ALLOTMENT):
            _put_allotment(page, card, use, its)
        if data.on(PROCESSES) and data.snapshot.processes is not None:
            page.put(own.SM_SOURCE, its | {"source": use.sm_source}, 1)
            unattributed = use.unattributed_mib
            known = None if unattributed is None else unattributed * MIB
            page.put(own.CARD_UNATTRIBUTED, its, known)


def is_healthy(snapshot: Snapshot, uuid: CardUUID) -> bool | None:
    """Return whether a card answered in all recent rounds; None if it was not asked.

    What is recent depends on each group's interval: a failure counts until the group is
    read again.
    """
    answers = _lately(snapshot, uuid)
    return not any(one.sick for one in answers) if answers else None


@dataclass(frozen=True, slots=True)
class _Answer:
    """A card's answer in one group; ``sick`` if it or its driver is gone."""

    at: float
    sick: bool


def _lately(snapshot: Snapshot, uuid: CardUUID) -> list[_Answer]:
    rounds: dict[str, Round | ProcessRound] = {**snapshot.rounds}
    if snapshot.processes is not None:
        rounds[PROCESSES] = snapshot.processes
    newest = max((one.at for one in rounds.values()), default=0.0)
    found: list[_Answer] = []
    for group, one in rounds.items():
        says = one.cards.get(uuid)
        if one.at < newest - _EVERY_S[group] - _LATE_S or not (says or one.failure):
            continue
        sick = bool(one.failure or (says and says.failure))
        found.append(_Answer(one.at, sick))
    return found


def _lost_at(snapshot: Snapshot, uuid: CardUUID) -> float:
    """Return when a card failed last in a recent round; -inf if it did not."""
    failed = (one.at for one in _lately(snapshot, uuid) if one.sick)
    return max(failed, default=float("-inf"))


def _put_field(
    page: Page, data: PageData, what: Field, labels: dict[CardUUID, Labels]
) -> None:
    snapshot = data.snapshot
    found = snapshot.rounds.get(what.group)
    for card in data.found.cards:
        if what.name == XID_ERRORS:
            if (tally := snapshot.xids.get(card.uuid)) is not None:
                code = {"err_code": str(tally.last)}
                page.put(what, labels[card.uuid] | code, tally.last)
            continue
        says = found.cards.get(card.uuid) if found else None
        # Else a slow group would show a lost card's values of a minute ago.
        old = found and found.at < _lost_at(snapshot, card.uuid) - _LATE_S
        if says is not None and not old:
            page.put(what, labels[card.uuid], says.values.get(what.name))


def _put_health(page: Page, data: PageData, card: FoundCard, labels: Labels) -> None:
    healthy = is_healthy(data.snapshot, card.uuid)
    word = "" if healthy is None else str(healthy).lower()
    page.put(own.CARD_INFO, labels | {"healthy": word}, 1)
    page.put(own.CARD_HEALTHY, labels, healthy)


def _put_faults(page: Page, data: PageData, card: FoundCard, labels: Labels) -> None:
    tally = data.snapshot.xids.get(card.uuid)
    if tally is None:
        # It does not report faults, or it is not known yet whether it does.
        return
    counts = dict.fromkeys(KNOWN_XIDS, 0) | dict(tally.counts)
    for xid, count in sorted(counts.items()):
        page.put(own.XIDS, labels | {"xid": str(xid)}, count)


def _put_allotment(page: Page, card: FoundCard, use: CardUse, labels: Labels) -> None:
    page.put(own.DEV_FB_TOTAL, labels, card.memory_mib)
    units = use.allotted_units
    if units is None:
        return
    share = units * UNIT_MIB / card.memory_mib if card.memory_mib else None
    page.put(own.FB_ALLOCATED, labels, share)
    mode = 1 if use.exclusive else 2
    page.put(own.ALLOCATE_MODE, labels, mode if units or use.exclusive else 0)
    page.put(own.CARD_ALLOCATED, labels, units * UNIT_MIB * MIB)


def put_containers(page: Page, data: PageData) -> None:
    """Put all series of all containers, and of what runs outside Kubernetes."""
    cards = card_labels(data)
    labelled = [
        (use, container_labels(cards[use.card], use))
        for use in data.usage.containers
        if use.card in cards
    ]
    if data.on(PROCESSES):
        for use, labels in labelled:
            _put_use(page, use, labels)
    if data.on(ALLOTMENT):
        for use, labels in labelled:
            _put_container_allotment(page, use, labels)
    if data.on(PROCESSES) and data.on(ALLOTMENT):
        for use, labels in labelled:
            _put_both(page, use, labels)


def _put_use(page: Page, use: ContainerUse, labels: Labels) -> None:
    page.put(own.SM_UTIL, labels, use.sm)
    page.put(own.MEM_COPY, labels, use.memory_copy)
    page.put(own.ENCODE, labels, use.encoder)
    page.put(own.DECODE, labels, use.decoder)
    page.put(own.MEM_USED, labels, use.memory_mib)
    if use.uid:
        page.put(own.LAST_BUSY, labels, use.last_busy)


def _put_container_allotment(page: Page, use: ContainerUse, labels: Labels) -> None:
    if use.allotted is None:
        return
    ratio = use.allotted.cores / CORES_PER_CARD
    # A request for cores only has no memory limit; 0 would make any use an overuse.
    page.put(own.MEM_ALLOCATED, labels, use.allotted.units * UNIT_MIB or None)
    page.put(own.CP_ALLOCATED, labels, ratio)
    page.put(own.CORE_LIMIT, labels, ratio or None)


def _put_both(page: Page, use: ContainerUse, labels: Labels) -> None:
    """Put the use relative to the allocation; 0 cores are no limit."""
    over = is_over(use)
    page.put(own.OVER_SHARE, labels, None if over is None else int(over))
    if use.allotted is not None and use.allotted.cores and use.sm is not None:
        # A percent of the card and a core are the same: a hundredth of the card.
        page.put(own.CORE_USE, labels, use.sm / use.allotted.cores)


_NOT_LISTED = "the API server has not listed this node's pods yet"
_SILENT = (
    f"the API server has sent nothing about this node's pods for over "
    f"{PODS_LATE_S:.0f} s; they are shown as they were"
)


class Exposition(Collector):
    """The exporter's collector for Prometheus; any thread may collect.

    ``overuse`` and ``kubelet`` return what was done about overuse, and the last
    comparison with kubelet; ``heard`` how many seconds ago the API server sent anything
    about pods, None for never.
    """

    def __init__(
        self,
        site: Site,
        snapshot: Callable[[], Snapshot],
        book: UsageBook,
        *,
        overuse: Callable[[], OveruseTally] | None = None,
        kubelet: Callable[[], KubeletRound | None] | None = None,
        heard: Callable[[], float | None] | None = None,
    ) -> None:
        self._site = site
        self._snapshot = snapshot
        self._book = book
        self._overuse = overuse
        self._kubelet = kubelet
        self._heard = heard

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not collect."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the present page."""
        data, page = self._data(), Page()
        put_cards(page, data)
        put_containers(page, data)
        _put_placements(page, data)
        _put_self(page, data)
        _put_rounds(page, data)
        return page.metrics()

    def troubles(self) -> Mapping[str, str]:
        """Return what is missing from the page and why, by topic."""
        return self._data().troubles

    def _data(self) -> PageData:
        snapshot = self._snapshot()
        tenancy = self._book.tenancy()
        kubelet = self._kubelet() if self._kubelet else None
        data = PageData(
            self._site,
            snapshot,
            self._book.now(),
            tenancy,
            self._book.has_pods,
            kubelet,
            self._overuse() if self._overuse else None,
            pods_age_s=self._heard() if self._heard else None,
        )
        return replace(data, troubles=_troubles(data))


def _troubles(data: PageData) -> Mapping[str, str]:
    snapshot, kubelet = data.snapshot, data.kubelet
    troubles = dict(snapshot.troubles)
    if data.has_pods and not data.pods_told:
        silent = _NOT_LISTED if data.tenancy is None else _SILENT
        troubles.setdefault("pods", silent)
    if kubelet is not None and kubelet.failure:
        troubles.setdefault("kubelet", kubelet.failure)
    if snapshot.no_cards:
        troubles.setdefault("cards", snapshot.no_cards)
    return troubles


def _put_placements(page: Page, data: PageData) -> None:
    """Put how many pods are not on their planned cards; nothing if it is not known."""
    kubelet = data.kubelet
    if data.tenancy is not None and data.on(ALLOTMENT):
        moved = [one.name for one in data.tenancy.tenants if one.moved]
        _put_disagreements(page, data, "actual", moved)
    if kubelet is not None and not kubelet.failure and data.on(KUBELET):
        _put_disagreements(page, data, "kubelet", kubelet.misplaced)


def _put_disagreements(
    page: Page, data: PageData, what: str, pods: Iterable[PodName]
) -> None:
    named = list(pods)
    base = {"NodeName": data.site.node, "what": what}
    page.put(own.DISAGREEMENTS, base, len(named))
    for namespace, name in named:
        labels = base | {"NamespaceName": namespace, "PodName": name}
        page.put(own.MISPLACED, labels, 1)


def _put_self(page: Page, data: PageData) -> None:
    node = {"NodeName": data.site.node}
    snapshot = data.snapshot
    versions = {"version": data.site.version, "driver": snapshot.driver_version}
    page.put(own.INFO, node | versions, 1)
    page.put(own.CONFIG_OK, node, "config" not in data.troubles)
    for about in sorted(data.troubles):
        page.put(own.TROUBLE, node | {"about": about}, 1)
    shown = {what.name for what in snapshot.fields if data.on(what.group)}
    for found in snapshot.rounds.values():
        for uuid, says in found.cards.items():
            for metric in sorted(says.unsupported & shown):
                labels = node | {"metric": metric, "UUID": uuid}
                page.put(own.UNSUPPORTED, labels, 1)
    if data.overuse is not None:
        page.put(own.REPORTS, node, data.overuse.reports)
        page.put(own.EVICTIONS, node, data.overuse.evictions)


def _put_rounds(page: Page, data: PageData) -> None:
    """Put how the last round of each group went."""
    snapshot = data.snapshot
    for name, found in sorted(snapshot.rounds.items()):
        _put_round(page, data, name, (found.took_s, found.at, found.succeeded))
    if (processes := snapshot.processes) is not None:
        how = (processes.took_s, processes.at, processes.succeeded)
        _put_round(page, data, PROCESSES, how)
    if (kubelet := data.kubelet) is not None:
        how = (kubelet.took_s, kubelet.at, not kubelet.failure)
        _put_round(page, data, KUBELET, how)
    if data.has_pods and data.on(ALLOTMENT):
        labels = {"NodeName": data.site.node, "group": ALLOTMENT}
        page.put(own.SUCCESS, labels, data.pods_told)
        if data.tenancy is not None and data.pods_age_s is not None:
            page.put(own.TIMESTAMP, labels, time.time() - data.pods_age_s)


def _put_round(
    page: Page, data: PageData, group: str, how: tuple[float, float, bool]
) -> None:
    if not data.on(group):
        return
    labels = {"NodeName": data.site.node, "group": group}
    took_s, at, succeeded = how
    page.put(own.DURATION, labels, took_s)
    page.put(own.TIMESTAMP, labels, at)
    page.put(own.SUCCESS, labels, succeeded)
