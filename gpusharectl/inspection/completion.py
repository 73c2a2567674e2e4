"""What the shell offers for a node, a pod or a card; nothing where nobody answers."""

from collections.abc import Iterator, Sequence

import click
from click.shell_completion import CompletionItem, ShellComplete

from gpushare.kube import codec, names
from gpushare.kube.bookkeeper import UNFINISHED
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import ClusterError
from gpushare.kube.fields import Malformed
from gpusharectl.access import reach
from gpusharectl.inspection import facts
from gpusharectl.inspection.sources import everything

_LAST_WORD = ":4"
"""kubectl's word for: these are all, and no files (cobra's ShellCompDirective)."""


def node_names(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer the nodes that share cards."""
    return [
        CompletionItem(facts.name_of(node))
        for node in _all(context, Kind.NODES)
        if facts.annotation(node, names.CARDS) and facts.name_of(node).startswith(begun)
    ]


def card_names(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer the cards of the node that was named before, by index and by UUID."""
    found: list[CompletionItem] = []
    for node in _all(context, Kind.NODES):
        if facts.name_of(node) != context.params.get("node"):
            continue
        try:
            cards = codec.cards(node)
        except Malformed:
            continue
        for card in cards:
            found.append(CompletionItem(str(card.index), help=card.model))
            found.append(CompletionItem(card.uuid, help=card.model))
    return [item for item in found if item.value.startswith(begun)]


def pod_names(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer the pods that name our resources: bare after ``-n``, else in full."""
    namespace = context.params.get("namespace")
    found = []
    for pod in _all(context, Kind.PODS, UNFINISHED):
        if not codec.is_ours(pod):
            continue
        if namespace is None:
            found.append(facts.full_name(pod))
        elif pod["metadata"]["namespace"] == namespace:
            found.append(facts.name_of(pod))
    return [CompletionItem(name) for name in found if name.startswith(begun)]


def namespace_names(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer the namespaces of pods that name our resources."""
    pods = _all(context, Kind.PODS, UNFINISHED)
    found = {pod["metadata"]["namespace"] for pod in pods if codec.is_ours(pod)}
    return [CompletionItem(name) for name in sorted(found) if name.startswith(begun)]


def for_kubectl(command: click.Command, arguments: Sequence[str]) -> str:
    """Answer as ``kubectl_complete-vcuda``, which kubectl asks for plugins' words.

    The last argument is what has been begun; a line for each offer, and a last word.
    """
    *before, begun = arguments or [""]
    shell = ShellComplete(command, {}, "kubectl vcuda", "")
    found = shell.get_completions(list(before), begun)
    lines = [f"{one.value}\t{one.help}" if one.help else one.value for one in found]
    return "\n".join([*lines, _LAST_WORD])


def _all(context: click.Context, kind: Kind, selector: str = "") -> Iterator[Json]:
    given = context.params
    try:
        access = reach(given.get("kubeconfig"), given.get("context"), needs=())
    except click.ClickException:
        return
    try:
        yield from everything(access.cluster, kind, selector)
    except ClusterError:
        return
    finally:
        access.close()
