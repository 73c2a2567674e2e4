"""``inspect``, ``why``, ``cordon-card``, ``uncordon-card`` and ``clear-card``.

Exit codes:

====  ==================================================================
0     fine: it was told, and for ``why``: the pod holds its card, asks for
      none, or has ended
1     it could not be told or done; a sentence says why
2     the command line is not understood
3     ``why`` alone: the pod waits, is invalid, or nobody knows its card
====  ==================================================================

What this host's own files say, where it is a control-plane node of the cluster.

A pod that does not exist, and the ones that may be meant. Pure.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches

import click
from rich.console import Console

from gpushare.kube import words
from gpushare.kube.cluster import Json, Kind
from gpushare.kube.errors import NotFound
from gpushare.kube.facts import full_name, name_of
from gpusharectl.access import Access, access_options, reached
from gpusharectl.completion import card_names, node_names, pod_names
from gpusharectl.cordon import No, Order, carry_out, pods_on, told
from gpusharectl.inspect.render import draw, source
from gpusharectl.inspect.serialize import survey_data
from gpusharectl.install.cluster_facts import Flavour, flavour, node_view, this_node
from gpusharectl.kube_scheduler.files import SchedulerFiles, asked_of
from gpusharectl.kube_scheduler.flavours import K3sFile, KubeadmFile
from gpusharectl.kube_scheduler.host_files import HostFiles
from gpusharectl.output import fit_to_show, give
from gpusharectl.state.overview import survey
from gpusharectl.state.read import Trouble, everything, look, with_quotas, with_webhook
from gpusharectl.why.explain import why as explain
from gpusharectl.why.render import draw_answer
from gpusharectl.why.serialize import absent_data, answer_data


def host_troubles(
    nodes: Sequence[Json], kubernetes: str, files: HostFiles, hostname: str = ""
) -> tuple[Trouble, ...]:
    """Say when somebody has undone what the installer did to this host's scheduler.

    Nothing on other hosts, on those of another cluster, and for users who may not read
    these files: pods tell nearly the same. ``kubernetes`` is the API server's version.
    """
    try:
        kind = flavour(files)
        if kind is Flavour.MANAGED:
            return ()
        node = this_node(files, kind, [node_view(one) for one in nodes], hostname)
        starter = K3sFile() if kind is Flavour.K3S else KubeadmFile()
        words = SchedulerFiles(files, starter, asked_of(kubernetes)).missing()
    except OSError:
        return ()
    if not node or not words:
        return ()
    return (Trouble(node, words, "gpusharectl install, on this host"),)


_MOST = 3


def nearest(namespace: str, name: str, pods: Iterable[tuple[str, str]]) -> list[str]:
    """Name the pods most like the one asked for, as ``namespace/name``.

    Those of the very name elsewhere first, then like ones in the namespace.

    >>> nearest("default", "big", [("edge", "big"), ("default", "bigg")])
    ['edge/big', 'default/bigg']
    """
    found = list(pods)
    same = [f"{space}/{name}" for space, one in found if one == name]
    here = [one for space, one in found if space == namespace]
    like = get_close_matches(name, here, n=_MOST)
    like += [one for one in here if one.startswith(name) and one not in like]
    return [*same, *(f"{namespace}/{one}" for one in like)][:_MOST]


_NOT_TOLD = 1
_MOST_NODES = 10
_CODES = (
    "Exit codes: 0 it was told, 1 it could not be told, "
    "2 the command line is not understood."
)
_WHY_CODES = (
    "Exit codes: 0 the pod holds its card, asks for none, or has ended; 3 it waits, "
    "can never run, or nobody knows its card; 1 it could not be told, or there is no "
    "such pod; 2 the command line is not understood."
)
_ORDER_CODES = (
    "Exit codes: 0 it is so now, 1 it could not be done, "
    "2 the command line is not understood."
)


@click.command(epilog=_CODES)
@click.option(
    "--node", metavar="NAME", help="Only this node.", shell_complete=node_names
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["wide", "json", "yaml"]),
    help="All there is, or the same as data.",
)
@access_options
def inspect(
    node: str | None, output: str | None, kubeconfig: str | None, context: str | None
) -> None:
    """Show nodes, their cards, and who has what of them.

    Units are 256 MiB of a card's memory, cores hundredths of its compute. A bar has a
    fill for each pod, and dots for what is free. Of each namespace: what its pods hold,
    and how much of its quotas is used.
    """
    with reached(kubeconfig, context) as access:
        picture = look(access, datetime.now(UTC))
        version = access.objects.version()
        here = host_troubles(picture.nodes, version, HostFiles())
        picture = replace(picture, troubles=here)
        picture = with_quotas(picture, access.objects)
        picture = with_webhook(picture, access.objects)
    if node is not None and picture.node(node) is None:
        known = words.listed(sorted(map(name_of, picture.nodes)), _MOST_NODES)
        raise click.ClickException(f'there is no node "{node}"; there are: {known}')
    seen = survey(picture, node or "")
    if output in ("json", "yaml"):
        give(survey_data(seen), output)
    else:
        draw(_console(), seen, wide=output == "wide", only=node or "")


@click.command(epilog=_WHY_CODES)
@click.option("-n", "--namespace", metavar="NAME", help="The pod's; else: default.")
@click.option(
    "-o", "--output", type=click.Choice(["json", "yaml"]), help="The same as data."
)
@access_options
@click.argument("pod", shell_complete=pod_names)
def why(
    pod: str,
    namespace: str | None,
    output: str | None,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Explain why POD waits, or why it is on its card.

    POD is a name, or NAMESPACE/NAME. For a pod that waits: what each card lacks, what
    would fit now, and who would have to go.
    """
    place, name = _which_pod(pod, namespace)
    with reached(kubeconfig, context) as access:
        try:
            found = access.cluster.get(Kind.PODS, place, name)
        except NotFound:
            sys.exit(_absent(access, place, name, output))
        picture = look(access, datetime.now(UTC))
    answer = explain(picture, found)
    if output:
        give(answer_data(answer, picture.books), output)
    else:
        books = source(picture.books)
        draw_answer(_console(), answer, picture.now, books)
    sys.exit(answer.code)


@click.command(epilog=_ORDER_CODES)
@access_options
@click.argument("node", shell_complete=node_names)
@click.argument("cards", nargs=-1, required=True, shell_complete=card_names)
def cordon_card(
    node: str, cards: tuple[str, ...], kubeconfig: str | None, context: str | None
) -> None:
    """Let NODE's CARDS get nothing new; what runs there goes on.

    A card is named by its index, its UUID, or how the UUID begins.
    """
    _order(Order.CORDON, node, cards, kubeconfig, context)


@click.command(epilog=_ORDER_CODES)
@access_options
@click.argument("node", shell_complete=node_names)
@click.argument("cards", nargs=-1, required=True, shell_complete=card_names)
def uncordon_card(
    node: str, cards: tuple[str, ...], kubeconfig: str | None, context: str | None
) -> None:
    """Open NODE's CARDS to pods again.

    A card is named by its index, its UUID, or how the UUID begins; one that is not
    there any more may be taken off the list too.
    """
    _order(Order.UNCORDON, node, cards, kubeconfig, context)


@click.command(epilog=_ORDER_CODES)
@access_options
@click.argument("node", shell_complete=node_names)
@click.argument("cards", nargs=-1, required=True, shell_complete=card_names)
def clear_card(
    node: str, cards: tuple[str, ...], kubeconfig: str | None, context: str | None
) -> None:
    """Say that NODE's sick CARDS are well again, once you have seen to them.

    It makes the device plugin there forget faults that the driver reported; a card
    that does not answer stays sick. A card is named by its index, its UUID, or how the
    UUID begins.
    """
    _order(Order.CLEAR, node, cards, kubeconfig, context)


def _order(
    order: Order,
    node: str,
    cards: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
) -> None:
    with reached(kubeconfig, context) as access:
        done = carry_out(access, order, node, cards)
        if isinstance(done, No):
            raise click.ClickException(done.words)
        there = order is Order.CORDON
        pods = {uuid: pods_on(access, node, uuid) for uuid in done.cards if there}
    for line in told(order, done, pods):
        click.echo(fit_to_show(line))


def _which_pod(pod: str, namespace: str | None) -> tuple[str, str]:
    place, slash, name = pod.rpartition("/")
    if slash and namespace not in (None, place):
        raise click.UsageError(f"{pod} is not in the namespace {namespace}")
    if not name or (slash and not place) or "/" in place:
        raise click.UsageError(f"{pod!r} is no pod; give NAME or NAMESPACE/NAME")
    return place or namespace or "default", name


def _absent(access: Access, namespace: str, name: str, output: str | None) -> int:
    pods = everything(access.cluster, Kind.PODS)
    pairs = (full_name(pod).split("/") for pod in pods)
    near = nearest(namespace, name, ((space, one) for space, one in pairs))
    pod = f"{namespace}/{name}"
    if output:
        give(absent_data(pod, tuple(near), _NOT_TOLD), output)
        return _NOT_TOLD
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    click.echo(f"Error: there is no pod {pod}.{hint}", err=True)
    return _NOT_TOLD


def _console() -> Console:
    return Console(highlight=False)
