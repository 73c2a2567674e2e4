"""prioritize: how much each node is liked, 0 to 10. Pure.

Not called when a single node is left (contracts 1.4), so nothing may rest on it.
"""

from collections.abc import Callable, Mapping, Sequence

from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.policies import HIGHEST_SCORE, Policy


def prioritize(
    names: Sequence[NodeName],
    scores: Callable[[Policy], Mapping[NodeName, int]],
    policy: Policy,
    request: PodRequest,
) -> list[tuple[NodeName, int]]:
    """Give each name its score; 0 for a node that the ledger does not know.

    A policy that wants one node above all gives it everything and the others nothing:
    of what it knows, 0 to 10 could tell kube-scheduler but a shadow.
    """
    if policy.chooser is not None:
        best = policy.chooser.best(request, names, policy)
        if best is not None:
            return [(n, HIGHEST_SCORE if n == best else 0) for n in names]
    known = scores(policy)
    return [(name, known.get(name, 0)) for name in names]
