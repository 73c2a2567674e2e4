"""``gpusharectl inspect``: nodes, their cards, and the pods on them."""

from datetime import UTC, datetime

import click
from rich.console import Console

from gpusharectl.access import access_options, reached
from gpusharectl.completion import node_names
from gpusharectl.kube_scheduler.drift import host_troubles
from gpusharectl.kube_scheduler.host_files import HostFiles
from gpusharectl.output import give
from gpusharectl.state.read import no_such_node, read_state
from gpusharectl.state.render import draw
from gpusharectl.state.serialize import overview_data
from gpusharectl.state.view import overview

_CODES = (
    "Exit codes: 0 it was shown; 1 the cluster could not be read; 2 wrong command line."
)


@click.command(epilog=_CODES)
@click.option(
    "--node", metavar="NAME", help="Only this node.", shell_complete=node_names
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["wide", "json", "yaml"]),
    help="wide shows everything; json and yaml print the same as data.",
)
@access_options
def inspect(
    node: str | None, output: str | None, kubeconfig: str | None, context: str | None
) -> None:
    """Show nodes, their cards, and which pods have shares of them.

    A unit is 256 MiB of a card's memory, a core is one hundredth of its compute. In a
    bar each pod has its own fill, and dots are free. For each namespace: what its pods
    hold, and how much of its quotas is used.
    """
    with reached(kubeconfig, context) as access:
        state = read_state(access, datetime.now(UTC), whole=True)
        version = access.objects.version()
    if node is not None and (error := no_such_node(state, node)):
        raise click.ClickException(error)
    of_host = host_troubles(state.nodes, version, HostFiles())
    seen = overview(state, node or "", of_host)
    if output in ("json", "yaml"):
        give(overview_data(seen), output)
    else:
        draw(Console(highlight=False), seen, wide=output == "wide")
