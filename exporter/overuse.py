"""Acts on overuse, and on containers that are not held to their share.

Either gets an event for its pod; overuse, if configured, the pod's eviction, too.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event

from exporter.owners.owner_pods import OwnerPod, OwnerPods
from exporter.snapshot import TelemetrySnapshot
from exporter.usage import (
    Case,
    Cases,
    ContainerUse,
    Mode,
    OveruseTally,
    UsageBook,
    UseKey,
    due_cases,
    follow_cases,
    is_not_held,
    is_over,
    not_held_text,
    overuse_text,
)
from gpushare.kube.cluster import Cluster
from gpushare.kube.errors import ClusterError, Conflict, NotFound
from gpushare.logs import LogOnce

logger = logging.getLogger(__name__)

COMPONENT = "vcuda-exporter"
REASON = "VcudaOverShare"
NOT_HELD = "VcudaNotHeld"
_AGAIN_AFTER_S = 30.0
"""How long to wait after a refusal; a PodDisruptionBudget may refuse for hours."""


@dataclass(slots=True)
class _CaseKind:
    """One kind of case: the event's reason and text, the log's, and the cases now."""

    reason: str
    message: str
    text: Callable[[Case, str], str]
    is_case: Callable[[ContainerUse], bool | None]
    cases: Cases = field(default_factory=dict)

    def note(self, case: Case) -> None:
        """Keep what was done about a case."""
        self.cases = {**self.cases, case.use.key: case}


class OveruseMonitor:
    """Checks each round for cases of both kinds, and acts once for each.

    It also keeps the usage book up to date between scrapes, in every mode. A case ends
    when a round says that it is none; the next one counts from zero.
    """

    def __init__(  # noqa: PLR0913
        self,
        book: UsageBook,
        snapshot: Callable[[], TelemetrySnapshot],
        cluster: Cluster,
        mode: Mode,
        after_s: float,
        *,
        node: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._node = node
        self._snapshot = snapshot
        self._cluster = cluster
        self._mode = mode
        self._after_s = after_s
        self._clock = clock
        self._overuse = _CaseKind(
            REASON, "a container is over its share", overuse_text, is_over
        )
        self._not_held = _CaseKind(
            NOT_HELD, "a container is not held", not_held_text, is_not_held
        )
        self._log_once = LogOnce(logger)
        self._round: tuple[float | None, float] = (None, 0.0)
        self._tally = OveruseTally()
        self._refused: dict[tuple[str, UseKey, str], tuple[float, str]] = {}

    def tally(self) -> OveruseTally:
        """Return what has been done so far."""
        return self._tally

    def run(self, stop: Event, every_s: float) -> None:
        """Check every so often until ``stop`` is set; an error does not end it."""
        while not stop.wait(every_s):
            try:
                self.step()
            except Exception:
                logger.exception("the check for overuse failed")

    def step(self) -> None:
        """Check once, and act on what is due."""
        usage = self._book.now()
        if self._mode == "off":
            return
        if usage.at != self._round[0]:
            self._round = (usage.at, self._clock())
        for kind in (self._overuse, self._not_held):
            before = kind.cases
            kind.cases = follow_cases(before, usage, self._round[1], kind.is_case)
            for key in before.keys() - kind.cases.keys():
                self._refused.pop((kind.reason, key, "report"), None)
                self._refused.pop((kind.reason, key, "evict"), None)
        owner_pods = self._book.owner_pods()
        if owner_pods is None:
            return
        self._note_blindness(owner_pods)
        for kind in (self._overuse, self._not_held):
            for case in list(due_cases(kind.cases, self._after_s)):
                if owner_pod := owner_pods.find(case.use.uid):
                    # Read again: evicting a pod for one container ends them all.
                    self._act(kind, kind.cases[case.use.key], owner_pod)

    def _note_blindness(self, owner_pods: OwnerPods) -> None:
        """Say once that nothing is known of containers that should be held."""
        processes = self._snapshot().processes
        if processes is None or not processes.owners:
            return
        held = [pod.name for pod in owner_pods.all if pod.pod.isolation]
        if held and not processes.limits.containers:
            because = (
                f"pod {'/'.join(held[0])} has an isolation tier, and no container has "
                "a limit below /var/lib/vcuda/containers; is it mounted?"
            )
            message = "it is not known whether containers are held"
            self._log_once.problem(NOT_HELD, because, message, because=because)
        else:
            self._log_once.recovered(NOT_HELD)

    def _act(self, kind: _CaseKind, case: Case, owner_pod: OwnerPod) -> None:
        if not case.reported:
            self._report(kind, case, owner_pod)
        allotted = case.use.allotted
        if kind is not self._overuse or self._mode != "evict":
            return
        if kind.cases[case.use.key].evicted or not (allotted and allotted.units):
            # Pods without a request are mostly daemons of the node. One of cores alone
            # was told of no limit.
            return
        if owner_pod.terminating or owner_pod.static:
            # The first is ending already; kubelet would start a static pod again.
            return
        evict = partial(self._cluster.evict, owner_pod.target)
        if self._try(kind, case, "evict", owner_pod, evict):
            self._tally = replace(self._tally, evictions=self._tally.evictions + 1)
            logger.warning("pod evicted", extra={"pod": "/".join(owner_pod.name)})
            for key, other in kind.cases.items():
                if key[1] == owner_pod.uid:
                    kind.note(replace(other, evicted=True))

    def _report(self, kind: _CaseKind, case: Case, owner_pod: OwnerPod) -> None:
        uuid = case.use.card
        cards = (card for card in self._snapshot().cards if card.uuid == uuid)
        index = next((f"{card.index} " for card in cards), "")
        text = kind.text(case, f"card {index}({uuid})")
        tell = partial(
            self._cluster.event,
            owner_pod.target,
            kind="Warning",
            reason=kind.reason,
            message=text,
            component=COMPONENT,
            host=self._node,
        )
        if self._try(kind, case, "report", owner_pod, tell):
            facts = {"pod": "/".join(owner_pod.name), "because": text}
            logger.warning(kind.message, extra=facts)
            kind.note(replace(case, reported=True))
            over = int(kind is self._overuse)
            self._tally = replace(self._tally, reports=self._tally.reports + over)

    def _try(
        self,
        kind: _CaseKind,
        case: Case,
        what: str,
        owner_pod: OwnerPod,
        call: Callable[[], None],
    ) -> bool:
        """Ask the API server; False if it refused, and then not again at once."""
        name = (kind.reason, case.use.key, what)
        refused_at, was = self._refused.get(name, (float("-inf"), ""))
        if self._clock() - refused_at < _AGAIN_AFTER_S:
            return False
        try:
            call()
        except (NotFound, Conflict):
            # The pod has gone, and another may have its name: there is nothing to do.
            kind.note(replace(case, reported=True, evicted=True))
            return False
        except ClusterError as error:
            because = f"{type(error).__name__}: {error}"
            if because != was:
                message = "the API server refused an event or an eviction, trying again"
                pod = "/".join(owner_pod.name)
                facts = {"pod": pod, "what": what, "because": because}
                logger.warning(message, extra=facts)
            self._refused[name] = (self._clock(), because)
            return False
        self._refused.pop(name, None)
        return True
