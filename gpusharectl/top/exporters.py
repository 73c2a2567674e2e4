"""Whom top asks, and what becomes of those that do not answer."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

from gpushare.kube.cluster import Json
from gpushare.kube.errors import ClusterError, Forbidden
from gpusharectl.inspection import facts
from gpusharectl.inspection.picture import Picture
from gpusharectl.top.page import PageSeen, UnreadableError, read_page

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
