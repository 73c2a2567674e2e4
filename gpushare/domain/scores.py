"""What each node is liked, kept between requests.

A policy's score of a node hangs on that node alone, and between two requests few nodes
change: as with ``fitting``, those are scored again and the rest is looked up.
"""

from collections.abc import Mapping
from threading import Lock

from gpushare.domain.ledger import Ledger
from gpushare.domain.model import NodeName
from gpushare.domain.policies import Policy
from gpushare.domain.scheduling import score


class Scores:
    """The scores of all nodes of one ledger, by policy."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: dict[str, tuple[int, dict[NodeName, int]]] = {}
        self._lock = Lock()

    def of(self, policy: Policy) -> Mapping[NodeName, int]:
        """Give every node's score as it is now, 0 to 10.

        A live view, to be read at once; a node that is not in it is not known.
        """
        with self._lock:
            position, scores = self._kept.get(policy.name, (-1, {}))
            position, names = self._ledger.changed_since(position)
            if names is None:
                scores, names = {}, [node.name for node in self._ledger.nodes()]
            for name in dict.fromkeys(names):
                node = self._ledger.node(name)
                if node is None:
                    scores.pop(name, None)
                else:
                    scores[name] = score(node, policy)
            self._kept[policy.name] = position, scores
        return scores
