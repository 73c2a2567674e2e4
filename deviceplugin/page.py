"""One page of metrics while it is put together, and the labels that its series carry.

The rules of the house: a value that is unknown is no sample; a card's metric has one
series a card; a label of Prometheus' own targets (``pod``, ``namespace``,
``container``) is never used, since it would come back as ``exported_pod``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from deviceplugin.cards import Found, FoundCard
from deviceplugin.fields import Field
from deviceplugin.kubeletsays import KubeletRound
from deviceplugin.ownfields import OwnField
from deviceplugin.snapshot import Snapshot
from deviceplugin.tenancy import Tenancy
from deviceplugin.usage import ContainerUse, Usage
from deviceplugin.watchdog import PatrolTally
from gpushare.domain.model import CardUUID

Labels = dict[str, str]

PODS_LATE_S = 90.0
"""A watch says something within its 30 s, the client's grace and a wait for the next
try; after that the API server is away, or takes our rights for too few."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where and what this exporter is.

    ``hostname_label`` is ``hostname``, as the newest dcgm-exporter has it, or
    ``Hostname``, as those before it.
    """

    node: str
    hostname: str
    hostname_label: str = "hostname"
    version: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """All that one page is made of; nothing of it changes any more.

    ``pods_age_s`` is how long the API server has said nothing of pods, in seconds.
    """

    site: Site
    snapshot: Snapshot
    usage: Usage
    tenancy: Tenancy | None = None
    has_pods: bool = False
    kubelet: KubeletRound | None = None
    patrolled: PatrolTally | None = None
    troubles: Mapping[str, str] = field(default_factory=dict)
    pods_age_s: float | None = None

    @property
    def pods_told(self) -> bool:
        """Whether the pods are known, and as they were a moment ago at most."""
        return self.tenancy is not None and (self.pods_age_s or 0.0) <= PODS_LATE_S

    @property
    def found(self) -> Found:
        """The cards that were found last; none where none ever was."""
        return self.snapshot.found or Found(())

    def on(self, group: str) -> bool:
        """Tell whether a group is switched on."""
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
        """Give all that has a sample."""
        yield from self._metrics.values()


def card_labels(scene: Scene) -> dict[CardUUID, Labels]:
    """Give each card's labels; as dcgm-exporter has them, and the node (seed 002)."""
    return {card.uuid: _of_card(scene, card) for card in scene.found.cards}


def container_labels(card: Labels, use: ContainerUse) -> Labels:
    """Give a container's labels: its card's, and its own.

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


def _of_card(scene: Scene, card: FoundCard) -> Labels:
    site = scene.site
    return {
        "gpu": str(card.index),
        "UUID": card.uuid,
        "pci_bus_id": card.bus or "",
        "device": "" if card.minor is None else f"nvidia{card.minor}",
        "modelName": card.model,
        site.hostname_label: site.hostname,
        "DCGM_FI_DRIVER_VERSION": scene.snapshot.driver_version,
        "NodeName": site.node,
    }


def _metric(what: Field | OwnField, name: str) -> Metric:
    if isinstance(what, OwnField) and what.kind == "counter":
        return Metric(name.removesuffix("_total"), what.help, "counter")
    # dcgm-exporter's counters do not end with _total. As a counter prometheus_client
    # would append it, and nobody's dashboard would find them.
    kind = "unknown" if what.kind == "counter" else "gauge"
    return Metric(name, what.help, kind)
