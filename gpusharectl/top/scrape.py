"""Whom top asks, and what becomes of those that do not answer.

What an exporter's page tells of one node, as far as top looks at it. Pure.

The names are of docs/monitoring.md. What the page does not have is None here, never 0.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpushare.kube import facts
from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Forbidden
from gpusharectl.state.read import Picture

PROCESSES, MEMORY = "processes", "memory"
"""The groups of metrics without which top has little to say."""
_MIB = 2**20
_INFO = "vcuda_exporter_info"
_TROUBLE = "vcuda_exporter_trouble"
_CONFIG = "vcuda_exporter_config_ok"
_SUCCESS = "vcuda_collector_success"
_WHEN = "vcuda_collect_timestamp_seconds"
_SOURCE = "vcuda_sm_util_source"
_OF_CARD = {
    "DCGM_FI_DEV_FB_USED": "used_mib",
    "DCGM_FI_DEV_GPU_UTIL": "busy",
    "DCGM_FI_DEV_GPU_TEMP": "celsius",
    "DCGM_FI_DEV_POWER_USAGE": "watts",
    "vcuda_card_unattributed_memory_bytes": "unattributed_mib",
}
_OF_CONTAINER = {
    "DCGM_CUSTOM_CONTAINER_MEM_ALLOCATED": "",
    "DCGM_CUSTOM_PROCESS_MEM_USED": "used_mib",
    "DCGM_CUSTOM_PROCESS_SM_UTIL": "sm",
    "vcuda_container_last_busy_timestamp_seconds": "last_busy",
    "vcuda_container_over_share": "over",
}
_OF_NODE = frozenset({_INFO, _TROUBLE, _CONFIG, _SUCCESS, _WHEN})
_READ = frozenset({*_OF_CARD, *_OF_CONTAINER, *_OF_NODE, _SOURCE})


class UnreadableError(ValueError):
    """It is no page of an exporter of ours."""


@dataclass(frozen=True, slots=True)
class CardSeen:
    """A card at work; ``busy`` in percent, ``sm_source`` how processes' SM is known."""

    uuid: str
    index: str = ""
    used_mib: float | None = None
    busy: float | None = None
    celsius: float | None = None
    watts: float | None = None
    unattributed_mib: float | None = None
    sm_source: str = ""


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """A container on one card; without a name: all that is outside Kubernetes.

    ``sm`` in percent of the whole card, ``last_busy`` in seconds since 1970 by that
    node's clock, ``over`` whether its exporter finds it over its share.
    """

    card: str
    namespace: str
    pod: str
    name: str
    used_mib: float | None = None
    sm: float | None = None
    last_busy: float | None = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class PageSeen:
    """One node as its exporter sees it.

    ``times`` are the ends of each group's last round, by that node's clock; ``failed``
    the groups whose last round did not reach every card; ``troubles`` what the
    exporter misses, in its own short words.
    """

    cards: Mapping[str, CardSeen] = field(default_factory=dict)
    containers: tuple[ContainerSeen, ...] = ()
    times: Mapping[str, float] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()

    def of_pod(self, namespace: str, name: str, card: str = "") -> list[ContainerSeen]:
        """Give a pod's containers, on one card or on all."""
        return [
            one
            for one in self.containers
            if (one.namespace, one.pod) == (namespace, name) and card in ("", one.card)
        ]

    def outside_mib(self, card: str) -> float | None:
        """Give the memory of a card's processes outside Kubernetes."""
        found = (one for one in self.containers if one.card == card and not one.pod)
        return next((one.used_mib for one in found), None)


def read_page(body: bytes) -> PageSeen:
    """Read a page; ``UnreadableError`` says what is wrong with it."""
    cards: dict[str, dict[str, Any]] = {}
    containers: dict[tuple[str, ...], dict[str, Any]] = {}
    node: dict[str, dict[str, float]] = {name: {} for name in _OF_NODE}
    for sample in _samples(body):
        labels = sample.labels
        if not math.isfinite(sample.value):
            continue
        if sample.name in _OF_NODE:
            what = labels.get("group") or labels.get("about") or ""
            node[sample.name][what] = sample.value
            continue
        uuid = labels.get("UUID", "")
        seen = cards.setdefault(uuid, {"index": labels.get("gpu", "")})
        if sample.name == _SOURCE:
            seen["sm_source"] = labels.get("source", "")
        elif sample.name in _OF_CARD:
            seen[_OF_CARD[sample.name]] = _in_mib(sample)
        else:
            key = (uuid, *(labels.get(one, "") for one in _WHOSE))
            containers.setdefault(key, {})[_OF_CONTAINER[sample.name]] = sample.value
    if not node[_INFO]:
        raise UnreadableError(f"it has no {_INFO}: is it an exporter of ours?")
    return PageSeen(
        {uuid: CardSeen(uuid, **seen) for uuid, seen in cards.items()},
        tuple(_container(key, seen) for key, seen in sorted(containers.items())),
        node[_WHEN],
        tuple(sorted(group for group, well in node[_SUCCESS].items() if not well)),
        tuple(_troubles(node)),
    )


_WHOSE = ("NamespaceName", "PodName", "ContainerName")


def _samples(body: bytes) -> Iterator[Sample]:
    """Give the samples of the names that are read; the others cost too much time."""
    try:
        text = body.decode()
        lines = [line for line in text.split("\n") if _name(line) in _READ]
        for family in text_string_to_metric_families("\n".join(lines)):
            yield from family.samples
    except (ValueError, IndexError) as error:
        raise UnreadableError(f"it cannot be parsed: {error}") from error


def _name(line: str) -> str:
    return line.partition("{")[0].partition(" ")[0]


def _in_mib(sample: Sample) -> float:
    return sample.value / _MIB if sample.name.endswith("_bytes") else sample.value


def _container(key: tuple[str, ...], seen: Mapping[str, float]) -> ContainerSeen:
    card, namespace, pod, name = key
    return ContainerSeen(
        card,
        namespace,
        pod,
        name,
        used_mib=seen.get("used_mib"),
        sm=seen.get("sm"),
        last_busy=seen.get("last_busy"),
        over=bool(seen.get("over")),
    )


def _troubles(node: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    yield from sorted(about for about, is_so in node[_TROUBLE].items() if is_so)
    if 0 in node[_CONFIG].values() and "config" not in node[_TROUBLE]:
        yield "config"


EXPORTER = "gpushare-exporter"
PORT, PATH = 9400, "/metrics"
AT_ONCE = 32
DEADLINE_S = 20.0
"""For all of them together; one port-forward has ten seconds of its own."""
_INSTALL = "gpusharectl install --with-monitoring"
_LOOK = f"kubectl -n {facts.SYSTEM} describe pods -l {facts.PART_NAME}={EXPORTER}"
_RIGHT = (
    "have the rights granted to get and create pods/portforward in "
    f"{facts.SYSTEM}, or take the administrator's kubeconfig by --kubeconfig"
)


class Fetching(Protocol):
    """As much of ``Objects`` as is needed here."""

    def fetch(self, namespace: str, pod: str, port: int, path: str) -> bytes:
        """GET a page from a pod's loopback; ``ClusterError``s only."""
        ...


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing is known of a node: why, and what to do."""

    because: str
    do: str


@dataclass(frozen=True, slots=True)
class Heard:
    """What a node's exporter told, and in which pod it runs."""

    page: PageSeen
    pod: str

    @property
    def log(self) -> str:
        """The command that shows what the exporter says itself."""
        return log_of(self.pod)


Told = Heard | Silence


def ask(
    objects: Fetching,
    picture: Picture,
    nodes: Collection[str],
    *,
    deadline_s: float = DEADLINE_S,
) -> Mapping[str, Told]:
    """Ask these nodes' exporters, many at a time; there is a word for each node."""
    pods = _by_node(picture.parts)
    found: dict[str, Told] = {}
    asked: dict[str, Json] = {}
    for name in nodes:
        mine = pods.get(name, [])
        ready = [pod for pod in mine if facts.holds(pod, "Ready")]
        if ready:
            asked[name] = ready[0]
        elif mine:
            because = "its exporter is not ready"
            if waits := facts.waits_because(mine[0]):
                because += f": {waits}"
            found[name] = Silence(because, _LOOK)
        else:
            found[name] = Silence("no exporter runs there", _INSTALL)
    found |= _all(objects, asked, deadline_s)
    return {name: found[name] for name in nodes}


def _by_node(parts: Collection[Json]) -> dict[str, list[Json]]:
    """Give the exporters; in any other namespace the labels may be anybody's."""
    found: dict[str, list[Json]] = {}
    for pod in parts:
        ours = pod["metadata"].get("namespace") == facts.SYSTEM
        if ours and facts.is_part(pod, EXPORTER):
            found.setdefault(facts.node_of(pod), []).append(pod)
    return found


def _all(
    objects: Fetching, pods: Mapping[str, Json], deadline_s: float
) -> dict[str, Told]:
    """Ask in threads that end with the process, so that nobody waits for a hung one."""
    left: SimpleQueue[str] = SimpleQueue()
    answers: SimpleQueue[tuple[str, Told]] = SimpleQueue()
    for name in pods:
        left.put(name)

    def work() -> None:
        while True:
            try:
                name = left.get_nowait()
            except Empty:
                return
            answers.put((name, _one(objects, pods[name])))

    for _ in range(min(AT_ONCE, len(pods))):
        Thread(target=work, name="top-asks", daemon=True).start()
    end = time.monotonic() + deadline_s
    found: dict[str, Told] = {}
    while len(found) < len(pods):
        try:
            name, told = answers.get(timeout=max(0.0, end - time.monotonic()))
        except Empty:
            break
        found[name] = told
    late = f"its exporter gave no answer within {deadline_s:g} s"
    return {
        name: found.get(name, Silence(late, log_of(facts.name_of(pods[name]))))
        for name in pods
    }


def _one(objects: Fetching, pod: Json) -> Told:
    name = facts.name_of(pod)
    try:
        body = objects.fetch(facts.SYSTEM, name, PORT, PATH)
        return Heard(read_page(body), name)
    except Forbidden as error:
        return Silence(f"its exporter may not be asked: {error}", _RIGHT)
    except ClusterError as error:
        return Silence(f"its exporter does not answer: {error}", log_of(name))
    except UnreadableError as error:
        return Silence(f"its exporter's page cannot be read: {error}", log_of(name))


def log_of(pod: str) -> str:
    """Give the command that shows a pod's log."""
    return f"kubectl -n {facts.SYSTEM} logs {pod}"
