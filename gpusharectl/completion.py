"""Shell completion of nodes, pods and cards; the group of commands with both its names.

If the cluster does not answer, nothing is offered. The names are ``gpusharectl`` and
``kubectl vcuda``.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Never

import click
from click.shell_completion import CompletionItem, ShellComplete

from gpushare.cache.pods import UNFINISHED
from gpushare.kube import codec, facts, names
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import ClusterError
from gpushare.kube.json_reader import Malformed
from gpusharectl.access import reach
from gpusharectl.state.read import everything

_LAST_WORD = ":4"
"""cobra's ShellCompDirective for: these are all, do not offer files."""


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


def for_kubectl(command: click.Command, arguments: Sequence[str]) -> str:
    """Answer as ``kubectl_complete-vcuda``, which kubectl calls for plugins.

    The last argument is the word to complete; the answer has a line for each offer.
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


_AS_PLUGIN = "kubectl-vcuda"
_PLUGINS_COMPLETION = "kubectl_complete-vcuda"


def program(path: str) -> str:
    """Return the name by which users call the program, from its path.

    >>> program("/usr/bin/kubectl-vcuda"), program("/x/gpusharectl/__main__.py")
    ('kubectl vcuda', 'gpusharectl')
    """
    return "kubectl vcuda" if Path(path).name == _AS_PLUGIN else "gpusharectl"


class TwoNames(click.Group):
    """A group whose usage line shows the name by which it was called.

    It is also ``kubectl_complete-vcuda``, which kubectl calls to complete its words.
    """

    def run(self) -> Never:
        """Run the command line; the entry point of the programs."""
        path = sys.argv[0]
        if Path(path).name == _PLUGINS_COMPLETION:
            click.echo(for_kubectl(self, sys.argv[1:]))
            sys.exit(0)
        name = program(path)
        variable = f"_{name.replace(' ', '_').upper()}_COMPLETE"
        try:
            self.main(prog_name=name, complete_var=variable)
        except OSError as error:
            if error.filename is not None or _takes_more():
                raise
            _end_unwritten(error)


def _takes_more() -> bool:
    """Return whether standard output can be written."""
    try:
        click.echo()
    except OSError:
        return False
    return True


def _end_unwritten(error: OSError) -> Never:
    # Otherwise Python tries to write the rest of the buffer and fails again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    click.echo(f"Error: standard output cannot be written: {error.strerror}", err=True)
    sys.exit(1)
