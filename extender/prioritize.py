"""prioritize: how much each node is liked, 0 to 10. Pure.

Not called when a single node is left (contracts 1.4), so nothing may rest on it.
"""

from collections.abc import Callable, Iterable

from gpushare.domain.model import NodeName
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.scheduling import score


def prioritize(
    names: Iterable[NodeName],
    node: Callable[[NodeName], Node | None],
    policy: Policy,
) -> list[tuple[NodeName, int]]:
    """Give each name its score; 0 for a node that the ledger does not know."""
    scores = []
    for name in names:
        page = node(name)
        scores.append((name, 0 if page is None else score(page, policy)))
    return scores
