"""Takes the node's startup taint away once pods can be given its cards.

A node is Ready before the device plugin has registered. For that moment it has no
cards, and an autoscaler would start a second node for the pods that wait. A startup
taint says that the node is not finished yet.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

from deviceplugin.cards.advertised import Publisher
from deviceplugin.kubelet.registration import Service
from gpushare.kube import names
from gpushare.kube.errors import ClusterError, Conflict
from gpushare.logs import LogOnce

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_AGAIN_AFTER_S = 15.0


@dataclass
class StartupTaint:
    """Watches one node for its startup taint, also for one that comes later.

    It comes again with a node that is created anew under the same name.
    """

    publisher: Publisher
    services: Sequence[Service]
    _log_once: LogOnce = field(default_factory=lambda: LogOnce(logger))

    def run(self, stop: Event) -> None:
        """Take the taint away whenever it may go, until ``stop`` is set."""
        about = names.STARTUP_TAINT
        while not stop.is_set():
            try:
                self.step()
                self._log_once.recovered(about)
            except Conflict:
                # Another write came first; the watch brings the node as it is now.
                pass
            except ClusterError as error:
                why, message = str(error), "startup taint not removed"
                self._log_once.problem(about, why, message, because=why)
                stop.wait(_AGAIN_AFTER_S)
            self.publisher.node.wait(_LOOK_S)

    def step(self) -> None:
        """Take the taint away if it is there and may go. Raises ``ClusterError``."""
        node = self.publisher.node
        taints, version = node.taints()
        kept = [taint for taint in taints if taint.get("key") != names.STARTUP_TAINT]
        if kept == taints or not self._is_offered():
            return
        node.cluster.set_taints(node.name, kept, version)
        logger.info("startup taint removed", extra={"taint": names.STARTUP_TAINT})

    def _is_offered(self) -> bool:
        """Return whether scheduler and extender can place pods here now.

        kubelet listens, has counted the devices in the node's capacity, and the API
        server has the cards.
        """
        capacity = self.publisher.node.status().get("capacity") or {}
        return self.publisher.is_published() and all(
            service.streams.any() and capacity.get(service.resource, "0") != "0"
            for service in self.services
        )
