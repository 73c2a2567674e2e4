"""``gpusharectl inspect``: nodes, their cards, and the pods that have shares of them.

Exit codes: 0 it was shown, 1 it could not be read, 2 wrong command line.
"""

from dataclasses import replace
from datetime import UTC, datetime

import click
from rich.console import Console

from gpushare.kube import words
from gpushare.kube.facts import name_of
from gpusharectl.access import access_options, reached
from gpusharectl.completion import node_names
from gpusharectl.kube_scheduler.drift import host_troubles
from gpusharectl.kube_scheduler.host_files import HostFiles
from gpusharectl.output import give
from gpusharectl.state.read import look, with_quotas, with_webhook
from gpusharectl.state.render import draw
from gpusharectl.state.serialize import survey_data
from gpusharectl.state.view import survey

_MOST_NODES = 10
_CODES = (
    "Exit codes: 0 it was told, 1 it could not be told, "
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
        draw(Console(highlight=False), seen, wide=output == "wide", only=node or "")
