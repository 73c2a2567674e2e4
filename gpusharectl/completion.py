"""How nodes, pods and cards are named on the command line, and their completion.

The cluster has a limited time to answer; what it has not said by then is not offered.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from threading import Thread

import click
from click.shell_completion import CompletionItem

from gpushare.informers.pods import UNFINISHED
from gpushare.kube import codec, facts, names
from gpushare.kube.annotations import read_cards
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import ClusterError
from gpushare.kube.json_reader import Malformed
from gpusharectl.access import reach
from gpusharectl.state.read import list_all

DEFAULT_NAMESPACE = "default"
"""Of a pod that is named without one."""
_WITHIN_S = 3.0
"""Whoever presses TAB waits for it."""


def complete_nodes(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer the nodes that share cards."""
    nodes = _all(context, Kind.NODES)
    sharing = [
        facts.name_of(node) for node in nodes if facts.annotation(node, names.CARDS)
    ]
    return _offered(sharing, begun)


def complete_all_nodes(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer all nodes, for a command that is used before they share cards."""
    return _offered([facts.name_of(node) for node in _all(context, Kind.NODES)], begun)


def complete_cards(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer the cards of the node named before, by index and by UUID."""
    items: list[CompletionItem] = []
    for node in _all(context, Kind.NODES):
        if facts.name_of(node) != context.params.get("node"):
            continue
        try:
            cards = read_cards(node)
        except Malformed:
            continue
        for card in cards:
            both = (str(card.index), card.uuid)
            items += [CompletionItem(name, help=card.model) for name in both]
    return [item for item in items if item.value.startswith(begun)]


def complete_pods(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer pods that name gpushare's resources.

    A pod of ``-n``, or else of the namespace "default", needs its name only; without
    ``-n`` others have their namespace before it, and their name may be what was begun.
    """
    given = context.params.get("namespace")
    pods = []
    for pod in _our_pods(context):
        name, full = facts.name_of(pod), facts.full_name(pod)
        here = pod["metadata"]["namespace"] == (given or DEFAULT_NAMESPACE)
        if here and name.startswith(begun):
            pods.append(name)
        elif not given and (full.startswith(begun) or name.startswith(begun)):
            pods.append(full)
    return [CompletionItem(name) for name in pods]


def complete_namespaces(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Offer the namespaces of pods that name gpushare's resources."""
    namespaces = {pod["metadata"]["namespace"] for pod in _our_pods(context)}
    return _offered(sorted(namespaces), begun)


def _our_pods(context: click.Context) -> list[Json]:
    pods = _all(context, Kind.PODS, UNFINISHED)
    return [pod for pod in pods if codec.is_ours(pod)]


def _offered(names_known: Sequence[str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names_known if name.startswith(begun)]


def _all(context: click.Context, kind: Kind, selector: str = "") -> list[Json]:
    """Return what the cluster says within the time; an error ends it silently."""
    given, bodies = context.params, list[Json]()

    def read() -> None:
        try:
            access = reach(given.get("kubeconfig"), given.get("context"), needs=())
        except click.ClickException:
            return
        try:
            for body in list_all(access.cluster, kind, selector):
                bodies.append(body)
        except ClusterError:
            return
        finally:
            access.close()

    # A daemon: it does not keep the process when it is late.
    thread = Thread(target=read, name="completion", daemon=True)
    thread.start()
    thread.join(_WITHIN_S)
    return bodies.copy()


pod_namespace_option = click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help=f'The namespace of POD; without it: the namespace "{DEFAULT_NAMESPACE}".',
    shell_complete=complete_namespaces,
)


def parse_pod_name(pod: str, namespace: str | None) -> tuple[str, str]:
    """Return the namespace and the name of a POD, given as NAME or NAMESPACE/NAME."""
    space, slash, name = pod.rpartition("/")
    if slash and namespace not in (None, space):
        raise click.UsageError(f"{pod} is not in the namespace {namespace}")
    if not name or (slash and not space) or "/" in space:
        usage = "give NAME or NAMESPACE/NAME"
        raise click.UsageError(f"{pod!r} is not a pod's name; {usage}")
    return space or namespace or DEFAULT_NAMESPACE, name


def suggest_pods(namespace: str, name: str, pods: Iterable[str]) -> list[str]:
    """Return the pods with the most similar names, of ``namespace/name``s.

    First those of the same name in other namespaces, then similar ones in this one.

    >>> suggest_pods("default", "big", ["edge/big", "default/bigg", "default/web-x1"])
    ['edge/big', 'default/bigg']
    >>> suggest_pods("default", "web", ["edge/big", "default/bigg", "default/web-x1"])
    ['default/web-x1']
    """
    pods_by_space = [pod.partition("/") for pod in pods]
    same = [f"{space}/{name}" for space, _, other in pods_by_space if other == name]
    here = [other for space, _, other in pods_by_space if space == namespace]
    like = get_close_matches(name, here, n=3)
    like += [other for other in here if other.startswith(name) and other not in like]
    return [*same, *(f"{namespace}/{other}" for other in like)][:3]
