"""preempt: keep, replace or drop the victims that kube-scheduler proposes. Pure."""

from collections.abc import Callable, Collection, Mapping

from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.preemption import Budget, Victims, choose_victims


def preempt(
    request: PodRequest,
    proposals: Mapping[NodeName, Victims],
    node: Callable[[NodeName], Node | None],
    policy: Policy,
    budgets: Collection[Budget],
) -> dict[NodeName, Victims]:
    """Choose the victims on each node; a node where none would help is left out.

    A node without victims is left out too: kube-scheduler takes it for an error
    (contracts 1.3).
    """
    chosen = {}
    for name, proposal in proposals.items():
        page = node(name)
        if page is None:
            continue
        victims = choose_victims(request, page, proposal, policy, budgets)
        if victims is not None and victims.uids:
            chosen[name] = victims
    return chosen
