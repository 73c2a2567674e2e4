"""Acts on overuse: an event for the pod and, if configured, its eviction."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Event

from exporter.owners.owner_pods import OwnerPod
from exporter.snapshot import TelemetrySnapshot
from exporter.usage import (
    Mode,
    Overuse,
    Overuses,
    OveruseTally,
    UsageBook,
    UseKey,
    detect_overuse,
    due_overuses,
    overuse_text,
)
from gpushare.kube.cluster import Cluster
from gpushare.kube.errors import ClusterError, Conflict, NotFound

logger = logging.getLogger(__name__)

COMPONENT = "vcuda-exporter"
REASON = "VcudaOverShare"
_AGAIN_AFTER_S = 30.0
"""How long to wait after a refusal; a PodDisruptionBudget may refuse for hours."""


class OveruseMonitor:
    """Checks each round for overuse, and acts once for each case.

    It also keeps the usage book up to date between scrapes, in every mode. A case ends
    when the container's use falls below its share; the next one counts from zero.
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
        self._overuses: Overuses = {}
        self._round: tuple[float | None, float] = (None, 0.0)
        self._tally = OveruseTally()
        self._refused: dict[tuple[UseKey, str], tuple[float, str]] = {}

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
        before = self._overuses
        if usage.at != self._round[0]:
            self._round = (usage.at, self._clock())
        self._overuses = detect_overuse(before, usage, self._round[1])
        for key in before.keys() - self._overuses.keys():
            self._refused.pop((key, "report"), None)
            self._refused.pop((key, "evict"), None)
        owner_pods = self._book.owner_pods()
        for overuse in list(due_overuses(self._overuses, self._after_s)):
            owner_pod = owner_pods.find(overuse.use.uid) if owner_pods else None
            if owner_pod is not None:
                # Read again, because evicting a pod for one container ends them all.
                self._act(self._overuses[overuse.use.key], owner_pod)

    def _act(self, overuse: Overuse, owner_pod: OwnerPod) -> None:
        if not overuse.reported:
            self._report(overuse, owner_pod)
        allotted = overuse.use.allotted
        if self._overuses[overuse.use.key].evicted or not (allotted and allotted.units):
            # Pods without a request are mostly daemons of the node. One of cores alone
            # was told of no limit.
            return
        if self._mode != "evict" or owner_pod.terminating or owner_pod.static:
            # The first is ending already; kubelet would start a static pod again.
            return
        evict = partial(self._cluster.evict, owner_pod.target)
        if self._try(overuse, "evict", owner_pod, evict):
            self._tally = replace(self._tally, evictions=self._tally.evictions + 1)
            logger.warning("pod evicted", extra={"pod": "/".join(owner_pod.name)})
            for key, other in self._overuses.items():
                if key[1] == owner_pod.uid:
                    self._note(replace(other, evicted=True))

    def _report(self, overuse: Overuse, owner_pod: OwnerPod) -> None:
        uuid = overuse.use.card
        cards = (card for card in self._snapshot().cards if card.uuid == uuid)
        index = next((f"{card.index} " for card in cards), "")
        text = overuse_text(overuse, f"card {index}({uuid})")
        tell = partial(
            self._cluster.event,
            owner_pod.target,
            kind="Warning",
            reason=REASON,
            message=text,
            component=COMPONENT,
            host=self._node,
        )
        if self._try(overuse, "report", owner_pod, tell):
            facts = {"pod": "/".join(owner_pod.name), "because": text}
            logger.warning("a container is over its share", extra=facts)
            self._note(replace(overuse, reported=True))
            self._tally = replace(self._tally, reports=self._tally.reports + 1)

    def _try(
        self, overuse: Overuse, what: str, owner_pod: OwnerPod, call: Callable[[], None]
    ) -> bool:
        """Ask the API server; False if it refused, and then not again at once."""
        name = (overuse.use.key, what)
        refused_at, was = self._refused.get(name, (float("-inf"), ""))
        if self._clock() - refused_at < _AGAIN_AFTER_S:
            return False
        try:
            call()
        except (NotFound, Conflict):
            # The pod has gone, and another may have its name: there is nothing to do.
            self._note(replace(overuse, reported=True, evicted=True))
            return False
        except ClusterError as error:
            because = f"{type(error).__name__}: {error}"
            if because != was:
                message = "the API server refused to act on overuse, trying again"
                pod = "/".join(owner_pod.name)
                facts = {"pod": pod, "what": what, "because": because}
                logger.warning(message, extra=facts)
            self._refused[name] = (self._clock(), because)
            return False
        self._refused.pop(name, None)
        return True

    def _note(self, overuse: Overuse) -> None:
        self._overuses = {**self._overuses, overuse.use.key: overuse}
