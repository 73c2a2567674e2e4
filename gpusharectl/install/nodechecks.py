"""What speaks for and against a node that was chosen. Pure."""

from collections.abc import Sequence

from gpushare.kube import names
from gpusharectl.install.nodeview import NodeView, minor, named, runtime
from gpusharectl.install.overlays import NVIDIA
from gpusharectl.install.preflight import OLDEST, Facts, Finding, Weight, dotted


def judge_nodes(
    facts: Facts, chosen: Sequence[str], *, second_scheduler: bool = False
) -> list[Finding]:
    """Judge the nodes that were chosen."""
    found = _homeless(facts, chosen) if second_scheduler else []
    for name in chosen:
        node = named(facts.nodes, name)
        if node is not None:
            found += _node(node, facts)
    return found


def _homeless(facts: Facts, chosen: Sequence[str]) -> list[Finding]:
    """Refuse a second kube-scheduler that no node would take: it stays off cards."""
    if any(
        node.takes_scheduler or not (node.labelled or node.name in chosen)
        for node in facts.nodes
    ):
        return []
    return [
        Finding(
            Weight.REFUSAL,
            "every node shares its cards, and a second kube-scheduler stays off those, "
            "since its token may do more than any that is there",
            "add a node without cards, or let it run beside them: kubectl label node "
            f"{chosen[0]} {names.SCHEDULER_NODE_LABEL}=true",
        )
    ]


def _node(node: NodeView, facts: Facts) -> list[Finding]:
    found = []
    kubelet = minor(node.kubelet)
    if kubelet is not None and kubelet < OLDEST:
        text = f"node {node.name}: kubelet {node.kubelet} is too old"
        cure = f"upgrade it to {dotted(OLDEST)} or newer, or leave the node out"
        found.append(Finding(Weight.REFUSAL, text, cure))
    if node.offered and not facts.plugin:
        them = ", ".join(node.offered)
        text = f"node {node.name}: another device plugin offers {them} there already"
        cure = "take that plugin away first, or leave the node out of --nodes"
        found.append(Finding(Weight.REFUSAL, text, cure))
    if node.others:
        found.append(_other_plugin(node))
    if not node.ready:
        text = f"node {node.name} is not Ready; its device plugin starts when it is"
        found.append(Finding(Weight.WARNING, text))
    found += _driver(node, facts)
    return found or [_well(node)]


def _other_plugin(node: NodeView) -> Finding:
    them = ", ".join(node.others)
    return Finding(
        Weight.DOUBT,
        f"node {node.name}: another device plugin hands out the same cards ({them}); "
        "pods of both would share them without either knowing. Move over by taking "
        "that plugin from the node",
    )


def _driver(node: NodeView, facts: Facts) -> list[Finding]:
    found = []
    if node.name == facts.here and not facts.driver_here and not node.cards:
        text = f"node {node.name}: no NVIDIA driver is loaded on this host"
        found.append(Finding(Weight.WARNING, text))
    elif not node.signs and node.name != facts.here:
        text = f"node {node.name}: nothing there speaks of a GPU; we shall see"
        found.append(Finding(Weight.WARNING, text))
    nvidia = any("nvidia" in one for one in node.handlers)
    if node.handlers and not nvidia:
        text = (
            f"node {node.name}: {runtime(node)} has no runtime called nvidia; is the "
            "NVIDIA container toolkit set up there?"
        )
        found.append(Finding(Weight.WARNING, text))
    elif nvidia and NVIDIA not in facts.runtime_classes:
        text = (
            f"node {node.name} has the nvidia runtime, but the cluster no RuntimeClass "
            "nvidia; pods reach it only where it is the default runtime"
        )
        found.append(Finding(Weight.WARNING, text))
    return found


def _well(node: NodeView) -> Finding:
    signs = ", ".join(node.signs) or "the driver is loaded"
    return Finding(Weight.OK, f"node {node.name}: {signs} · {runtime(node)}")
