"""What the API server says of nodes, kept as far as the webhook's rules need it."""

import logging
from collections.abc import Iterator
from threading import Lock

from extender.pool import UNKNOWN, NodeFacts, Pool, node_facts
from gpushare.kube.cluster import Json, Page, WatchEvent
from gpushare.kube.fields import Malformed

logger = logging.getLogger(__name__)


class PoolBook:
    """Sink for nodes: what each adds to the pool, and the pool that they make.

    Nodes say something every few minutes, their cards next to never: the pool is summed
    up only when what it is made of has changed.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeFacts] = {}
        self._pool = UNKNOWN
        self._lock = Lock()

    def pool(self) -> Pool:
        """Give the cluster's cards as last heard; ``UNKNOWN`` before the first list."""
        return self._pool

    def replace(self, pages: Iterator[Page]) -> None:
        """Take over all nodes."""
        found = dict(_read(node) for page in pages for node in page.items)
        with self._lock:
            self._nodes = found
            self._pool = Pool.of(found.values())

    def apply(self, event: WatchEvent) -> None:
        """Take over one change."""
        name, facts = _read(event.object)
        with self._lock:
            if event.type == "DELETED":
                changed = self._nodes.pop(name, None) is not None
            else:
                changed = self._nodes.get(name) != facts
                self._nodes[name] = facts
            if changed:
                self._pool = Pool.of(self._nodes.values())


def _read(node: Json) -> tuple[str, NodeFacts]:
    name = str(node["metadata"]["name"])
    try:
        return name, node_facts(node)
    except Malformed as error:
        # The extender, which shares out the cards, makes a noise of it.
        logger.info("node not understood", extra={"node": name, "because": str(error)})
        return name, NodeFacts()
