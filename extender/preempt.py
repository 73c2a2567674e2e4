"""preempt: keep, replace or drop the victims that kube-scheduler proposes. Pure."""

from collections.abc import Callable, Mapping

from gpushare.domain.model import NodeName, PodRequest
from gpushare.domain.node import Node
from gpushare.domain.policies import Policy
from gpushare.domain.preemption import Facts, Victims, choose_victims


def preempt(
    request: PodRequest,
    proposals: Mapping[NodeName, Victims],
    node: Callable[[NodeName], Node | None],
    policy: Policy,
    facts: Facts,
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
        victims = choose_victims(request, page, proposal, policy, facts)
        if victims is not None and victims.uids:
            chosen[name] = victims
    return chosen
