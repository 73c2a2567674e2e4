"""Wait until nodes share their cards, and say in words what they share."""

import json
from collections.abc import Sequence
from dataclasses import replace

from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import DEVICE_PLUGIN, PART_NAME, SYSTEM
from gpushare.kube.objects import Objects
from gpushare.kube.words import counted, last_lines
from gpusharectl.installer.context import Context
from gpusharectl.installer.nodes.facts import SurveyedNode, find_node, read_nodes
from gpusharectl.installer.options import NO_TIER, InstallOptions
from gpusharectl.installer.progress import InstallError, Waiting

FOUND_WITHIN_S = 60.0
"""The driver's first answer may take so long without a persistence daemon."""
SICK_FOR_S = 20.0
"""Cards that fail a tier's checks are checked again every 5 seconds."""
_LOG_LINES = 50
_LOUD = ("WARNING", "ERROR", "CRITICAL")


def wait_for_cards(
    context: Context, chosen: Sequence[str], options: InstallOptions
) -> None:
    """Wait until the device plugins have found cards; fail if no node has any.

    A node without cards is reported; its device plugin goes on searching.
    """
    objects = context.objects
    ready = [node.name for node in read_nodes(objects) if node.ready]
    searched = [name for name in chosen if name in ready]
    unknown = context.until(
        lambda: _unchecked(read_nodes(objects), searched, options.isolation),
        FOUND_WITHIN_S,
    )
    waits = context.until(
        lambda: _without_cards(read_nodes(objects), searched),
        0.0 if unknown else SICK_FOR_S,
    )
    without = {wait.who: wait.what for wait in waits}
    nodes, nodes_of = read_nodes(objects), dict[str, list[str]]()
    for name in chosen:
        node = find_node(nodes, name)
        if name not in searched or node is None:
            result = "not Ready; cards are found when it is"
        elif name in without:
            result = f"{without[name]}. {read_complaint(objects, name)}"
        else:
            result = shared_by(node)
        nodes_of.setdefault(result, []).append(name)
    for result, names in nodes_of.items():
        each = " on each" if len(names) > 1 and result[0].isdigit() else ""
        context.screen.say(f"{', '.join(names)}: {result}{each}")
    if not searched:
        raise InstallError(f"no card is shared yet: {', '.join(chosen)} not Ready")
    if len(without) == len(searched):
        why = f"no card is offered; {'; '.join(map(str, waits))}"
        raise InstallError(why, _remedy(chosen, options))


def _remedy(chosen: Sequence[str], options: InstallOptions) -> str:
    """Return what to do where no node offers cards."""
    if options.isolation in (None, NO_TIER):
        return (
            "load the driver there (nvidia-smi must answer); the device plugin "
            "then finds the cards by itself. To see them: gpusharectl inspect"
        )
    untiered = replace(options, isolation=NO_TIER, nodes=tuple(chosen))
    return (
        "repair what it says; the device plugin offers a card when all its checks "
        f"pass. Or share them without this isolation: {untiered.again()}"
    )


def _without_cards(
    nodes: Sequence[SurveyedNode], chosen: Sequence[str]
) -> list[Waiting]:
    waits = []
    for name in chosen:
        node = find_node(nodes, name)
        if node is None or not node.has_cards:
            waits.append(Waiting(name, "no NVIDIA driver answered"))
        elif not node.offered:
            what = f"kubelet does not offer its {shared_by(node)} yet"
            if node.sick:
                what = f"its {shared_by(node)} are sick: {node.sick}"
            waits.append(Waiting(name, what))
    return waits


def _unchecked(
    nodes: Sequence[SurveyedNode], chosen: Sequence[str], tier: str | None
) -> list[Waiting]:
    """Return who is without cards, except those whose cards all fail this tier."""
    failing = {
        node.name for node in nodes if node.sick and node.marks.isolation == tier
    }
    return [wait for wait in _without_cards(nodes, chosen) if wait.who not in failing]


def shared_together(nodes: Sequence[SurveyedNode]) -> str:
    """Return what nodes share together: ``2 nodes share 3 cards, 87 units``."""
    share = "node shares" if len(nodes) == 1 else "nodes share"
    cards = sum(node.cards.count for node in nodes if node.cards)
    units = sum(node.cards.units for node in nodes if node.cards)
    return f"{len(nodes)} {share} {counted(cards, 'card')}, {units} units"


def shared_by(node: SurveyedNode) -> str:
    """Return what a node shares: ``2 cards, 58 units``; n/a before it has reported."""
    if node.cards is None:
        return "n/a"
    return f"{counted(node.cards.count, 'card')}, {node.cards.units} units"


def read_complaint(objects: Objects, node: str) -> str:
    """Return the last complaint in the log of the node's device plugin."""
    try:
        pods = objects.list(
            "v1",
            "Pod",
            namespace=SYSTEM,
            label_selector=f"{PART_NAME}={DEVICE_PLUGIN}",
            field_selector=f"spec.nodeName={node}",
        )
        if not pods:
            return "Its device plugin has no pod there."
        name = pods[0]["metadata"]["name"]
        complaint = last_complaint(objects.log(SYSTEM, name, lines=_LOG_LINES))
    except ClusterError as error:
        return f"The log of its device plugin cannot be read: {error}"
    says = f"says: {complaint}" if complaint else "goes on searching."
    return f"Its device plugin {says}"


def last_complaint(log: str) -> str:
    """Return the last warning of a log of JSON lines; the last lines of another log."""
    complaint, understood = "", False
    for line in log.splitlines():
        try:
            entry = json.loads(line)
            level, event = entry["level"], entry["event"]
        except (ValueError, KeyError, TypeError):
            continue
        understood = True
        if level in _LOUD:
            because = entry.get("because", "")
            complaint = f"{event}: {because}" if because else str(event)
    return complaint if understood else last_lines(log)
