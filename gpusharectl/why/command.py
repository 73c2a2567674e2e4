"""``gpusharectl why``: why a pod waits, or why it is on its card."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches

import click

from gpushare.kube import codec
from gpushare.kube.cluster import Kind
from gpushare.kube.errors import NotFound
from gpushare.kube.facts import full_name
from gpusharectl.access import Access, access_options, reached
from gpusharectl.completion import DEFAULT_NAMESPACE, namespace_names, pod_names
from gpusharectl.output import give, screen
from gpusharectl.state.read import Trouble, everything, read_quotas, read_state
from gpusharectl.state.troubles import of_quotas
from gpusharectl.why.claims import by_claims
from gpusharectl.why.explain import why as explain
from gpusharectl.why.render import draw_answer
from gpusharectl.why.serialize import absent_data, answer_data

_CODES = (
    "Exit codes: 0 the pod holds its card, requests none, or has ended; 3 it waits, "
    "can never run, or its card is not known; 1 there is no such pod, or the cluster "
    "could not be read; 2 wrong command line."
)


@click.command(epilog=_CODES)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help=f'The namespace of POD; without it: the namespace "{DEFAULT_NAMESPACE}".',
    shell_complete=namespace_names,
)
@click.option(
    "-o", "--output", type=click.Choice(["json", "yaml"]), help="Print it as data."
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Show all cards, and where this is read."
)
@access_options
@click.argument("pod", shell_complete=pod_names)
def why(
    *,
    pod: str,
    namespace: str | None,
    output: str | None,
    verbose: bool,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Explain why POD waits, or why it is on its card.

    POD is a name, or NAMESPACE/NAME. For a pod that waits: what each card lacks, what
    would fit now, and which pods would have to be deleted.
    """
    place, name = _which_pod(pod, namespace)
    with reached(kubeconfig, context) as access:
        try:
            found = access.cluster.get(Kind.PODS, place, name)
        except NotFound:
            sys.exit(_absent(access, place, name, output))
        state = read_state(access, datetime.now(UTC))
        claims = by_claims(access.cluster, access.objects, state, found)
        answer = claims or explain(state, found)
        if codec.is_ours(found):
            troubles: list[Trouble] = []
            troubles += of_quotas(read_quotas(access.objects, troubles, place) or ())
            notes = [f"{trouble.about}: {trouble.what}" for trouble in troubles]
            answer = replace(answer, of_quotas=notes)
    if output:
        give(answer_data(answer, state.placements), output)
    else:
        draw_answer(screen(), answer, state, verbose=verbose)
    sys.exit(answer.code)


def _which_pod(pod: str, namespace: str | None) -> tuple[str, str]:
    place, slash, name = pod.rpartition("/")
    if slash and namespace not in (None, place):
        raise click.UsageError(f"{pod} is not in the namespace {namespace}")
    if not name or (slash and not place) or "/" in place:
        raise click.UsageError(
            f"{pod!r} is not a pod's name; give NAME or NAMESPACE/NAME"
        )
    return place or namespace or DEFAULT_NAMESPACE, name


def _absent(access: Access, namespace: str, name: str, output: str | None) -> int:
    pods = everything(access.cluster, Kind.PODS)
    found = suggestions(namespace, name, [full_name(pod) for pod in pods])
    pod = f"{namespace}/{name}"
    if output:
        give(absent_data(pod, found, code=1), output)
    else:
        hint = f" Did you mean {' or '.join(found)}?" if found else ""
        click.echo(f"Error: there is no pod {pod}.{hint}", err=True)
    return 1


def suggestions(namespace: str, name: str, pods: Iterable[str]) -> list[str]:
    """Return the pods with the most similar names, of ``namespace/name``s.

    First those of the same name in other namespaces, then similar ones in this one.

    >>> suggestions("default", "big", ["edge/big", "default/bigg", "default/web-x1"])
    ['edge/big', 'default/bigg']
    >>> suggestions("default", "web", ["edge/big", "default/bigg", "default/web-x1"])
    ['default/web-x1']
    """
    found = [pod.partition("/") for pod in pods]
    same = [f"{space}/{name}" for space, _, one in found if one == name]
    here = [one for space, _, one in found if space == namespace]
    like = get_close_matches(name, here, n=3)
    like += [one for one in here if one.startswith(name) and one not in like]
    return [*same, *(f"{namespace}/{one}" for one in like)][:3]
