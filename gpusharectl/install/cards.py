"""What the device plugins have found on their nodes, or why nothing."""

import json
from collections.abc import Mapping, Sequence

from gpushare.kube.errors import ClusterError
from gpushare.kube.objects import Objects
from gpusharectl.install.labels import PLUGIN, SYSTEM
from gpusharectl.install.nodeview import NodeView, named
from gpusharectl.install.podwaits import last_lines
from gpusharectl.install.progress import Screen, Waiting
from gpusharectl.install.steps import Trouble
from gpusharectl.install.survey import read_nodes
from gpusharectl.install.watching import Patience

FOUND_WITHIN_S = 60.0
"""The driver's first answer may take as long, where no persistence daemon runs."""
_LOG_LINES = 50
_LOUD = ("WARNING", "ERROR", "CRITICAL")


def await_cards(
    objects: Objects, chosen: Sequence[str], screen: Screen, patience: Patience
) -> Trouble | None:
    """Wait a while for cards on the chosen nodes; trouble where none has any.

    A node without is told, and is no trouble while another has cards: its device
    plugin goes on looking.
    """
    nodes = read_nodes(objects)
    ready = [name for name in chosen if _is_ready(nodes, name)]
    left = patience.until(
        lambda: _without(read_nodes(objects), ready), screen, FOUND_WITHIN_S
    )
    nodes = read_nodes(objects)
    without = {one.who: one.what for one in left}
    for name in chosen:
        screen.say(f"{name}: {_found(objects, nodes, name, without, ready)}")
    if len(without) < len(ready):
        return None
    if not ready:
        return Trouble(f"no card is shared yet: {', '.join(chosen)} not Ready")
    return Trouble(
        "no card is offered; " + "; ".join(f"{k}: {v}" for k, v in without.items()),
        "load the driver there (nvidia-smi must answer); the device plugin looks on "
        "and finds the cards by itself. See: gpusharectl inspect",
    )


def _found(
    objects: Objects,
    nodes: Sequence[NodeView],
    name: str,
    without: Mapping[str, str],
    ready: Sequence[str],
) -> str:
    node = named(nodes, name)
    if name not in ready or node is None:
        return "it is not Ready; its cards are found when it is"
    if name in without:
        return f"{without[name]}. {_plugins_words(objects, name)}"
    return amount(node)


def amount(node: NodeView) -> str:
    """Say what a node shares.

    ``2 cards, 58 units``; n/a where it has not said so yet.
    """
    if node.cards is None:
        return "n/a"
    cards = f"{node.cards} card{'' if node.cards == 1 else 's'}"
    return f"{cards}, {node.units} units"


def _is_ready(nodes: Sequence[NodeView], name: str) -> bool:
    node = named(nodes, name)
    return node is not None and node.ready


def _without(nodes: Sequence[NodeView], chosen: Sequence[str]) -> list[Waiting]:
    found = []
    for name in chosen:
        node = named(nodes, name)
        if node is None or not node.cards:
            found.append(Waiting(name, "no NVIDIA driver answered"))
        elif not node.offered:
            what = f"kubelet offers none of its {amount(node)} yet"
            found.append(Waiting(name, what))
    return found


def _plugins_words(objects: Objects, node: str) -> str:
    """Read what the node's device plugin complained of last."""
    selector = f"app.kubernetes.io/name={PLUGIN}"
    where = f"spec.nodeName={node}"
    try:
        pods = objects.list(
            "v1",
            "Pod",
            namespace=SYSTEM,
            label_selector=selector,
            field_selector=where,
        )
        if not pods:
            return "Its device plugin has no pod there."
        name = pods[0]["metadata"]["name"]
        text = objects.log(SYSTEM, name, lines=_LOG_LINES)
    except ClusterError as error:
        return f"What its device plugin says cannot be read: {error}"
    said = complaint(text)
    return f"Its device plugin says: {said}" if said else "It goes on looking."


def complaint(log: str) -> str:
    """Give the last warning of a log of JSON lines; of another log the last lines.

    >>> complaint('{"level": "WARNING", "event": "no driver", "because": "not found"}')
    'no driver: not found'
    """
    loud, understood = "", False
    for line in log.splitlines():
        try:
            entry = json.loads(line)
            level, event = entry["level"], entry["event"]
        except (ValueError, KeyError, TypeError):
            continue
        understood = True
        if level in _LOUD:
            because = entry.get("because", "")
            loud = f"{event}: {because}" if because else str(event)
    return loud if understood else last_lines(log)
