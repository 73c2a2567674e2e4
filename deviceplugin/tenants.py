"""The pods of this node as the API server tells of them, for the exporter."""

import logging
from collections.abc import Iterator
from threading import Lock

from deviceplugin.tenancy import Tenancy, Tenant, tenant
from gpushare.domain.model import PodUID
from gpushare.kube.cluster import Json, Page, WatchEvent
from gpushare.kube.fields import Malformed

logger = logging.getLogger(__name__)


class Tenants:
    """Sink for the pods of this node; what they come to may be asked by any thread.

    A pod leaves with its object, or once its phase is terminal. While the API server
    is away, what it told last goes on being true.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pods: dict[PodUID, Tenant] = {}
        self._listed = False
        self._current: Tenancy | None = None

    def replace(self, pages: Iterator[Page]) -> None:
        """Take over all pods of the node."""
        found = dict[PodUID, Tenant]()
        for page in pages:
            for pod in page.items:
                if (one := _read(pod)) is not None:
                    found[one.uid] = one
        with self._lock:
            self._pods = found
            self._listed = True
            self._current = None

    def apply(self, event: WatchEvent) -> None:
        """Take over one change."""
        uid = PodUID(event.object["metadata"]["uid"])
        one = None if event.type == "DELETED" else _read(event.object)
        with self._lock:
            if one is None:
                self._pods.pop(uid, None)
            else:
                self._pods[uid] = one
            self._current = None

    def current(self) -> Tenancy | None:
        """Give the pods as they are: the same object until one of them changes.

        None before the first whole list.
        """
        with self._lock:
            if self._current is None and self._listed:
                self._current = Tenancy.of(self._pods.values())
            return self._current


def _read(pod: Json) -> Tenant | None:
    """Read a pod; None for one that has ended, or that cannot be understood."""
    try:
        found = tenant(pod)
    except Malformed as error:
        facts = {"pod": pod["metadata"].get("uid"), "because": str(error)}
        logger.warning("pod not understood", extra=facts)
        return None
    return None if found.pod.record.terminal else found
