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
        """Give every node's score as it is now, 0 to 10; a value that stays as it is.

        A node that is not in it is not known. Copied where a score changes, which is
        seldom: there are eleven.
        """
        with self._lock:
            position, scores = self._kept.get(policy.name, (-1, {}))
            position, names = self._ledger.changed_since(position)
            if names is None:
                scores, names = {}, [node.name for node in self._ledger.nodes()]
            pages = {name: self._ledger.node(name) for name in names}
            now = {name: score(page, policy) for name, page in pages.items() if page}
            gone = [name for name in pages if name in scores and name not in now]
            if gone or any(scores.get(name) != now[name] for name in now):
                scores = scores | now
                for name in gone:
                    del scores[name]
            self._kept[policy.name] = position, scores
        return scores
