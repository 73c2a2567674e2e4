"""Which nodes, and whether to go on all the same: what a person decides."""

from collections.abc import Sequence

from gpusharectl.install.choice import Choice, chosen, likely, split
from gpusharectl.install.nodeview import NodeView
from gpusharectl.install.preflight import Facts, Finding, Weight, refusals
from gpusharectl.install.progress import NoAnswerError, Screen
from gpusharectl.install.steps import Exit, Trouble


def weigh(
    found: Sequence[Finding], screen: Screen, *, sure: bool = False
) -> Trouble | None:
    """Say what was found; a refusal ends it, a doubt is asked about unless ``sure``."""
    for one in found:
        screen.say(f"{one.text}   {one.weight}")
    bad = refusals(found)
    if bad:
        why = "; ".join(one.text for one in bad)
        cure = "; ".join(one.cure for one in bad if one.cure)
        return Trouble(f"{why}; nothing was changed", cure, Exit.REFUSED)
    doubts = [one for one in found if one.weight is Weight.DOUBT]
    if not doubts or sure:
        return None
    try:
        if screen.confirm("Share these cards all the same?"):
            return None
    except NoAnswerError:
        return nobody("--yes")
    return Trouble(
        "you said no; nothing was changed", "the same command without these nodes"
    )


def which_nodes(
    facts: Facts, choice: Choice, screen: Screen
) -> tuple[str, ...] | Trouble:
    """Take the nodes from the options, else from what is labelled, else ask."""
    signs = likely(facts.nodes, facts.here if facts.driver_here else "")
    if choice.nodes:
        return choice.nodes
    if choice.all_gpu_nodes:
        return signs or _no_gpu(facts.nodes)
    labelled = tuple(node.name for node in facts.nodes if node.labelled)
    if choice.yes or choice.dry_run:
        return labelled or nobody("--nodes NODE,NODE or --all-gpu-nodes")
    return _asked(facts, labelled or signs, screen)


def nobody(option: str) -> Trouble:
    """Say that a question cannot be asked, and which option answers it."""
    why = "there is nobody to ask here; nothing was changed"
    return Trouble(why, f"the same command with {option}", Exit.USAGE)


def _asked(
    facts: Facts, default: Sequence[str], screen: Screen
) -> tuple[str, ...] | Trouble:
    """Show the nodes, and let a person name those with cards until all exist."""
    screen.begin("Nodes")
    for node in facts.nodes:
        screen.say(f"{node.name}: {_signs(node, facts)}")
    while True:
        try:
            said = screen.ask("Which nodes share their cards?", ", ".join(default))
        except NoAnswerError:
            return nobody("--nodes NODE,NODE or --all-gpu-nodes")
        wanted = split(said)
        wrong = chosen(wanted, facts.nodes)
        if wrong is None:
            return wanted
        screen.say(str(wrong))


def _signs(node: NodeView, facts: Facts) -> str:
    loaded = facts.driver_here and node.name == facts.here
    own = ("the driver is loaded",) if loaded else ()
    return ", ".join((*node.signs, *own)) or "no sign of a GPU"


def _no_gpu(nodes: Sequence[NodeView]) -> Trouble:
    them = ", ".join(node.name for node in nodes) or "none"
    why = f"no node shows a sign of an NVIDIA GPU (nodes: {them}); nothing was changed"
    cure = "if you know better, name them: gpusharectl install --nodes NODE,NODE"
    return Trouble(why, cure, Exit.REFUSED)
