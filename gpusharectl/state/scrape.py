"""What the exporters report: each node's page, fetched through the API server.

Only the metrics that ``top`` and ``ui`` show are read; docs/monitoring.md names them.
What a page does not contain is None here, never 0.
"""

import math
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpushare.kube import facts, names
from gpushare.kube.annotations import decode_isolation
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Forbidden
from gpushare.kube.objects import Objects
from gpusharectl.output import HIDDEN
from gpusharectl.state.read import ClusterState, Trouble

PROCESSES, MEMORY = "processes", "memory"
"""The groups of metrics that are needed most."""
_MIB = 2**20
_INFO = "vcuda_exporter_info"
_TROUBLE = "vcuda_exporter_trouble"
_CONFIG = "vcuda_exporter_config_ok"
_SUCCESS = "vcuda_collector_success"
_WHEN = "vcuda_collect_timestamp_seconds"
_SOURCE = "vcuda_sm_util_source"
_ALLOCATED = "allocated"
_NAMES = ("NamespaceName", "PodName", "ContainerName")
_OF_CARD = {
    "DCGM_FI_DEV_FB_USED": "used_mib",
    "DCGM_FI_DEV_GPU_UTIL": "busy_percent",
    "DCGM_FI_DEV_GPU_TEMP": "celsius",
    "DCGM_FI_DEV_POWER_USAGE": "watts",
    "vcuda_card_unattributed_memory_bytes": "unattributed_mib",
}
_OF_CONTAINER = {
    "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED": _ALLOCATED,
    "DCGM_CUSTOM_PROCESS_MEM_USED": "used_mib",
    "DCGM_CUSTOM_PROCESS_SM_UTIL": "sm_percent",
    "vcuda_container_last_busy_timestamp_seconds": "last_busy",
    "vcuda_container_over_share": "over",
    "vcuda_container_held": "held",
}
_OF_NODE = frozenset({_INFO, _TROUBLE, _CONFIG, _SUCCESS, _WHEN})
_READ = frozenset({*_OF_CARD, *_OF_CONTAINER, *_OF_NODE, _SOURCE})


class UnreadableError(ValueError):
    """It is not a page of gpushare-exporter."""


@dataclass(frozen=True, slots=True)
class CardSeen:
    """A card's metrics; ``sm_source`` is the source of SM use.

    ``outside_mib`` is used by processes outside Kubernetes. ``index`` is the card's, of
    a MIG instance too.
    """

    index: str = field(default="", metadata=HIDDEN)
    used_mib: float | None = None
    busy_percent: float | None = None
    celsius: float | None = None
    watts: float | None = None
    outside_mib: float | None = None
    unattributed_mib: float | None = None
    sm_source: str = ""


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """A container on one card; without names: all processes outside Kubernetes.

    ``sm_percent`` is of the whole card, ``last_busy`` in seconds since 1970 by that
    node's clock, ``over`` the exporter's decision that it exceeds its share; None if
    the exporter does not report the container. ``held`` is 0 if its tier does not hold
    it, None if that is not known.
    """

    card: str = field(metadata=HIDDEN)
    namespace: str = field(metadata=HIDDEN)
    pod: str = field(metadata=HIDDEN)
    name: str = field(metadata=HIDDEN)
    used_mib: float | None = None
    sm_percent: float | None = None
    last_busy: float | None = None
    over: bool | None = None
    held: float | None = field(default=None, metadata=HIDDEN)

    @property
    def is_busy(self) -> bool:
        """Whether it has memory of the card, or works on it."""
        return bool(self.used_mib or self.sm_percent)


@dataclass(frozen=True, slots=True)
class PageSeen:
    """One node as its exporter sees it.

    ``times`` are when each group was last read, by that node's clock; ``failed`` the
    groups that could not be read of every card; ``troubles`` the labels of
    vcuda_exporter_trouble.
    """

    cards: Mapping[str, CardSeen] = field(default_factory=dict)
    containers: tuple[ContainerSeen, ...] = ()
    times: Mapping[str, float] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()

    def of_pod(self, namespace: str, name: str, card: str = "") -> list[ContainerSeen]:
        """Return a pod's containers, on one card or on all."""
        return [
            c
            for c in self.containers
            if (c.namespace, c.pod) == (namespace, name) and card in ("", c.card)
        ]


def sum_known(values: Sequence[float | None]) -> float | None:
    """Add up; if a part is not known, neither is the sum."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def read_page(body: bytes) -> PageSeen:
    """Read a page; ``UnreadableError`` if it is not gpushare-exporter's."""
    cards: dict[str, dict[str, Any]] = {}
    containers: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    node: dict[str, dict[str, float]] = {name: {} for name in _OF_NODE}
    for sample in _samples(body):
        name, value, labels = sample.name, sample.value, sample.labels
        # Of a MIG instance ``UUID`` and ``gpu`` are its card's.
        uuid = labels.get("GPU_I_UUID") or labels.get("UUID", "")
        if name in _OF_NODE:
            node[name][labels.get("group") or labels.get("about") or ""] = value
        elif name in _OF_CONTAINER:
            namespace, pod, container = (labels.get(label, "") for label in _NAMES)
            key = (uuid, namespace, pod, container)
            cards.setdefault(uuid, {"index": labels.get("gpu", "")})
            containers.setdefault(key, {})[_OF_CONTAINER[name]] = value
        else:
            seen = cards.setdefault(uuid, {"index": labels.get("gpu", "")})
            if name == _SOURCE:
                seen["sm_source"] = labels.get("source", "")
            else:
                mib = name.endswith("_bytes")
                seen[_OF_CARD[name]] = value / _MIB if mib else value
    if not node[_INFO]:
        raise UnreadableError(f"it lacks {_INFO}, so it is not from gpushare-exporter")
    troubles = {about for about, is_so in node[_TROUBLE].items() if is_so}
    if 0 in node[_CONFIG].values():
        troubles.add("config")
    for (uuid, _, pod, _), seen in containers.items():
        if not pod:
            cards[uuid]["outside_mib"] = seen.get("used_mib")
        seen.pop(_ALLOCATED, None)
        seen["over"] = bool(seen.get("over"))
    return PageSeen(
        {uuid: CardSeen(**seen) for uuid, seen in cards.items()},
        tuple(ContainerSeen(*key, **containers[key]) for key in sorted(containers)),
        node[_WHEN],
        tuple(sorted(group for group, well in node[_SUCCESS].items() if not well)),
        tuple(sorted(troubles)),
    )


def _samples(body: bytes) -> Iterator[Sample]:
    """Return the samples that are read; parsing the others takes too long."""
    try:
        lines = [
            line
            for line in body.decode().split("\n")
            if line.partition("{")[0].partition(" ")[0] in _READ
        ]
        for family in text_string_to_metric_families("\n".join(lines)):
            yield from (
                sample for sample in family.samples if math.isfinite(sample.value)
            )
    except (ValueError, IndexError) as error:
        raise UnreadableError(f"it cannot be parsed: {error}") from error


PORT, PATH = 9400, "/metrics"
AT_ONCE = 32
DEADLINE_S = 20.0
"""For all of them together; a single port-forward has ten seconds."""
_LOOK = f"kubectl -n {facts.SYSTEM} describe pods -l {facts.PART_NAME}={facts.EXPORTER}"
_RIGHT = (
    "get the rights to get and create pods/portforward in "
    f"{facts.SYSTEM}, or name the administrator's kubeconfig with --kubeconfig"
)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why nothing is known of a node, and what to do."""

    because: str
    do: str


@dataclass(frozen=True, slots=True)
class ExporterAnswer:
    """What a node's exporter reports; ``log`` is the command that shows its log."""

    page: PageSeen
    log: str


Result = ExporterAnswer | NoAnswer


def scrape_exporters(
    objects: Objects,
    parts: Iterable[Json],
    nodes: Collection[str],
    *,
    deadline_s: float = DEADLINE_S,
) -> Mapping[str, Result]:
    """Fetch the pages of these nodes' exporters, many at a time; a result for each.

    ``parts`` has the exporters' pods; others in it do not matter.
    """
    exporters: dict[str, list[Json]] = {}
    for pod in parts:
        if facts.is_part(pod, facts.EXPORTER):
            exporters.setdefault(facts.node_of(pod), []).append(pod)
    results: dict[str, Result] = {}
    pods: dict[str, Json] = {}
    for name in nodes:
        mine = exporters.get(name, [])
        ready = [pod for pod in mine if facts.is_ready(pod)]
        if ready:
            pods[name] = ready[0]
        elif mine:
            because = "its exporter is not ready"
            if waits := facts.waits_because(mine[0]):
                because += f": {waits}"
            results[name] = NoAnswer(because, _LOOK)
        else:
            do = "gpusharectl install --with-monitoring"
            results[name] = NoAnswer("no exporter runs on the node", do)
    results |= _all(objects, pods, deadline_s)
    return {name: results[name] for name in nodes}


def _all(
    objects: Objects, pods: Mapping[str, Json], deadline_s: float
) -> dict[str, Result]:
    """Fetch in daemon threads: one that hangs does not keep the process."""
    waiting, results = deque(pods), dict[str, Result]()

    def work() -> None:
        with suppress(IndexError):
            while name := waiting.popleft():
                results[name] = _one(objects, pods[name])

    number = min(AT_ONCE, len(pods))
    threads = [Thread(target=work, name="scrape", daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + deadline_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = f"its exporter did not answer within {deadline_s:g} s"
    silent = {name: NoAnswer(late, _log_of(pod)) for name, pod in pods.items()}
    return {**silent, **results.copy()}


def _one(objects: Objects, pod: Json) -> Result:
    name, log = facts.name_of(pod), _log_of(pod)
    try:
        return ExporterAnswer(
            read_page(objects.fetch(facts.SYSTEM, name, PORT, PATH)), log
        )
    except Forbidden as error:
        return NoAnswer(f"there is no right to reach its exporter: {error}", _RIGHT)
    except ClusterError as error:
        return NoAnswer(f"its exporter does not answer: {error}", log)
    except UnreadableError as error:
        return NoAnswer(f"its exporter's page cannot be read: {error}", log)


def _log_of(pod: Json) -> str:
    return f"kubectl -n {facts.SYSTEM} logs {facts.name_of(pod)}"


_NO_TIER = ("", "none")
_SOON_S = 5.0
"""For all nodes with a tier together: nobody waits longer for what is shown beside."""


def find_not_held(
    objects: Objects, state: ClusterState, node: str = ""
) -> Iterator[Trouble]:
    """Report containers that their node's isolation tier does not hold to their share.

    The nodes' exporters are asked, or that of one node. Where none answers in time,
    nothing is known and nothing reported.
    """
    tiers = {
        facts.name_of(body): decode_isolation(facts.annotation(body, names.CARDS))
        for body in state.nodes
        if node in ("", facts.name_of(body))
    }
    limited = {name for name, tier in tiers.items() if tier not in _NO_TIER}
    if not limited:
        return
    results = scrape_exporters(objects, state.parts, limited, deadline_s=_SOON_S)
    for name, result in sorted(results.items()):
        containers = (
            result.page.containers if isinstance(result, ExporterAnswer) else ()
        )
        for container in containers:
            if container.held == 0:
                pod = f"{container.namespace}/{container.pod}"
                what = f"isolation tier {tiers[name]} does not hold its container "
                what += f"{container.name} to its share: it can take others' memory"
                do = "see the event VcudaNotHeld: kubectl describe pod -n "
                yield Trouble(pod, what, f"{do}{container.namespace} {container.pod}")
