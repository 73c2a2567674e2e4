"""``gpusharectl why``: why a pod waits, or why it is on its card.

Exit codes:

====  ==================================================================
0     the pod holds its card, asks for none, or has ended
1     there is no such pod, or the cluster could not be read
2     wrong command line
3     the pod waits, is invalid, or its card is not known
====  ==================================================================
"""

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import get_close_matches

import click
from rich.console import Console

from gpushare.kube.cluster import Kind
from gpushare.kube.errors import NotFound
from gpushare.kube.facts import full_name
from gpusharectl.access import Access, access_options, reached
from gpusharectl.completion import pod_names
from gpusharectl.output import give
from gpusharectl.state.read import everything, look
from gpusharectl.state.render import source
from gpusharectl.why.explain import why as explain
from gpusharectl.why.render import draw_answer
from gpusharectl.why.serialize import absent_data, answer_data

_NOT_TOLD = 1
_CODES = (
    "Exit codes: 0 the pod holds its card, asks for none, or has ended; 3 it waits, "
    "can never run, or nobody knows its card; 1 it could not be told, or there is no "
    "such pod; 2 the command line is not understood."
)


@click.command(epilog=_CODES)
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
        draw_answer(Console(highlight=False), answer, picture.now, books)
    sys.exit(answer.code)


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
