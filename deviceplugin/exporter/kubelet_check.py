"""Asks kubelet, pod by pod, which devices it gave, and compares.

Never by its list: a List beside an Allocate under way makes kubelet forget devices
(contracts 2.7).

Whether what kubelet recorded agrees with where pods are believed to be. Pure.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event

from deviceplugin.cards.source import DeviceId, card_key
from deviceplugin.exporter.owners import Tenancy, Tenant
from deviceplugin.log_once import Remarks
from deviceplugin.pod_resources import (
    KubeletSilentError,
    NoGetError,
    PodResources,
    UnknownPodError,
)
from deviceplugin.pods import Held, PodName


@dataclass(frozen=True, slots=True)
class KubeletRound:
    """One pass over the pods that have a placement.

    ``asked`` is how many of them kubelet answered about, were it that it knows no such
    pod. ``misplaced`` are those whose devices lie on other cards than their placement.
    ``failure`` says why nothing is known.
    """

    at: float
    took_s: float
    asked: int = 0
    misplaced: tuple[PodName, ...] = ()
    failure: str = ""


def disagrees(tenant: Tenant, held: Mapping[str, Held]) -> bool:
    """Tell whether a pod's devices are others than its placement says.

    Only cards count: which of a pod's containers has which of its whole cards, and
    what an init container had, devices do not tell (contracts 2.3, 2.6).
    """
    shares = tenant.shares()
    if not shares:
        return False
    planned = {card_key(share.card) for share in shares}
    ids = (one for its in held.values() for of in its.values() for one in of)
    given = {found.key for found in map(DeviceId.parse, ids) if found}
    if not given:
        return _should_hold(tenant)
    if tenant.pod.passing:
        return not given <= planned
    return given != planned


def _should_hold(tenant: Tenant) -> bool:
    """Tell whether a container runs that asks for devices, so that it must have some.

    One that starts only now may not have been given any.
    """
    return any(
        asking.name in tenant.running and asking.name not in tenant.pod.passing
        for asking in tenant.pod.asking
    )


_GET_WITHIN_S = 1.0
_BETWEEN_S = 0.02
"""kubelet answers 100 questions a second to all its clients together."""
_GIVE_UP_AFTER = 3
_SILENT = "kubelet does not tell which devices a pod has: "
_LACKING = (
    "kubelet cannot be asked what one pod holds, so it is not compared with the "
    "placements; from Kubernetes 1.34 on it can"
)

logger = logging.getLogger(__name__)


class KubeletCheck:
    """The group ``kubelet``; ``latest`` is None until a whole round was made.

    Of a kubelet that has no such question there is never one: that it is older than
    1.34 is no trouble, and nobody can do anything about it. The log says it once.
    """

    def __init__(
        self,
        resources: PodResources,
        tenants: Callable[[], Tenancy | None],
        *,
        enabled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._resources = resources
        self._tenants = tenants
        self._enabled = enabled
        self._remarks = Remarks()
        self._latest: KubeletRound | None = None
        self._lacking = False

    def latest(self) -> KubeletRound | None:
        """Give the last round; None while there is none, or the group is off."""
        return self._latest if self._enabled() else None

    def run(self, stop: Event, every_s: float) -> None:
        """Make a round every so often until ``stop`` is set."""
        while not stop.is_set():
            pods = self._tenants() if self._enabled() else None
            if pods is None:
                self._latest = None
            else:
                self._take(self.check(pods, stop))
            stop.wait(every_s if pods is not None else min(every_s, 1.0))

    def check(self, pods: Tenancy, stop: Event) -> KubeletRound | None:
        """Ask of each pod that has a placement, unhurriedly.

        None where kubelet cannot be asked so.
        """
        try:
            return self._round(pods, stop)
        except NoGetError:
            return None

    def _round(self, pods: Tenancy, stop: Event) -> KubeletRound:
        began, asked, silent, why = time.monotonic(), 0, 0, ""
        misplaced: list[tuple[str, str]] = []
        for tenant in pods.tenants:
            if not tenant.shares() or tenant.terminating or stop.is_set():
                continue
            try:
                held = self._resources.told(tenant.name, _GET_WITHIN_S)
            except UnknownPodError:
                asked += 1
            except KubeletSilentError as error:
                silent, why = silent + 1, str(error)
                if not asked and silent >= _GIVE_UP_AFTER:
                    break
            else:
                asked += 1
                misplaced += [tenant.name] if disagrees(tenant, held) else []
            stop.wait(_BETWEEN_S)
        failure = f"{_SILENT}{why}" if silent and not asked else ""
        took_s = time.monotonic() - began
        return KubeletRound(time.time(), took_s, asked, tuple(misplaced), failure)

    def _take(self, one: KubeletRound | None) -> None:
        if one is None and not self._lacking:
            logger.info(_LACKING)
        # Nothing asked is no answer, so it does not tell that kubelet is another.
        lacking = one is None or (self._lacking and not one.asked and not one.failure)
        self._lacking = lacking
        self._latest = None if lacking else one
        if one is None or lacking:
            return
        line = "kubelet cannot be asked" if one.failure else "kubelet tells again"
        facts = {"because": one.failure} if one.failure else {}
        self._remarks.about("kubelet", one.failure, line, **facts)
        pods = ", ".join("/".join(name) for name in one.misplaced)
        line = "kubelet's record and the placements " + ("differ" if pods else "agree")
        self._remarks.about("misplaced", pods, line, **({"pods": pods} if pods else {}))
