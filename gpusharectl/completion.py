"""Shell completion of nodes, pods and cards.

If the cluster does not answer, nothing is offered.
"""

from collections.abc import Iterator, Sequence

import click
from click.shell_completion import CompletionItem

from gpushare.cache.pods import UNFINISHED
from gpushare.kube import codec, facts, names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import ClusterError
from gpushare.kube.json_reader import Malformed
from gpusharectl.access import reach
from gpusharectl.state.read import everything


def node_names(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer the nodes that share cards."""
    nodes = _all(context, Kind.NODES)
    found = [
        facts.name_of(node) for node in nodes if facts.annotation(node, names.CARDS)
    ]
    return _offered(found, begun)


def card_names(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer the cards of the node named before, by index and by UUID."""
    found: list[CompletionItem] = []
    for node in _all(context, Kind.NODES):
        if facts.name_of(node) != context.params.get("node"):
            continue
        try:
            cards = codec.cards(node)
        except Malformed:
            continue
        for card in cards:
            both = (str(card.index), card.uuid)
            found += [CompletionItem(name, help=card.model) for name in both]
    return [item for item in found if item.value.startswith(begun)]


def pod_names(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer pods that name gpushare's resources, with namespace unless ``-n``."""
    namespace, pods = context.params.get("namespace"), _our_pods(context)
    if namespace is None:
        return _offered([facts.full_name(pod) for pod in pods], begun)
    here = [pod for pod in pods if pod["metadata"]["namespace"] == namespace]
    return _offered([facts.name_of(pod) for pod in here], begun)


def namespace_names(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer the namespaces of pods that name gpushare's resources."""
    found = {pod["metadata"]["namespace"] for pod in _our_pods(context)}
    return _offered(sorted(found), begun)


def _our_pods(context: click.Context) -> list[Json]:
    pods = _all(context, Kind.PODS, UNFINISHED)
    return [pod for pod in pods if codec.is_ours(pod)]


def _offered(found: Sequence[str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in found if name.startswith(begun)]


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
