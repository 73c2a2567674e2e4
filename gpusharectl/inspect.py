"""``gpusharectl inspect``: nodes, their cards, and the pods on them.

With ``--watch`` it is drawn again and again, until Ctrl-C.
"""

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import click
from rich.console import Console, Group
from rich.live import Live

from gpushare.kube.errors import ClusterError
from gpusharectl.access import Access, access_options, reached
from gpusharectl.completion import namespace_names, node_names
from gpusharectl.installer.kube_scheduler.drift import host_troubles
from gpusharectl.installer.kube_scheduler.host_files import HostFiles
from gpusharectl.output import Words, give, screen
from gpusharectl.state.read import no_such_node, read_state
from gpusharectl.state.render import draw, parts
from gpusharectl.state.serialize import overview_data
from gpusharectl.state.view import Overview, of_namespace, overview

_EVERY_S = 5.0
_CODES = (
    "Exit codes: 0 it was shown; 1 the cluster could not be read; 2 wrong command line."
)


@click.command(epilog=_CODES)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Only pods of this namespace, and the cards that they hold.",
    shell_complete=namespace_names,
)
@click.option(
    "--node", metavar="NAME", help="Only this node.", shell_complete=node_names
)
@click.option(
    "-w", "--watch", is_flag=True, help="Show it again every 5 seconds, until Ctrl-C."
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Say where the placements are read from."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["wide", "json", "yaml"]),
    help="wide shows everything; json and yaml print the same as data.",
)
@access_options
def inspect(  # noqa: PLR0913
    *,
    namespace: str | None,
    node: str | None,
    watch: bool,
    verbose: bool,
    output: str | None,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Show nodes, their cards, and which pods have shares of them.

    A unit is 256 MiB of a card's memory, a core is one hundredth of its compute. In a
    bar each pod has its own fill, and dots are free. For each namespace: what its pods
    hold, and how much of its quotas is used.
    """
    as_data = output in ("json", "yaml")
    if watch and (as_data or not sys.stdout.isatty()):
        raise click.UsageError("--watch is for a terminal, and not for data")
    console = screen()

    wide = output == "wide"

    def frame(seen: Overview) -> Group:
        width = console.width
        return Group(*parts(seen, width, wide=wide, verbose=verbose, wrap=True))

    with reached(kubeconfig, context) as access:

        def read() -> Overview:
            return _seen(access, namespace or "", node or "")

        seen = _watch(console, read, frame) if watch else read()
    if as_data:
        give(overview_data(seen), str(output))
    else:
        draw(console, seen, wide=wide, verbose=verbose)


def _seen(access: Access, namespace: str, node: str) -> Overview:
    state = read_state(access, datetime.now(UTC), whole=True)
    if node and (error := no_such_node(state, node)):
        raise click.ClickException(error)
    version = access.objects.version()
    seen = overview(state, node, host_troubles(state.nodes, version, HostFiles()))
    return of_namespace(seen, namespace) if namespace else seen


def _watch(
    console: Console, read: Callable[[], Overview], frame: Callable[[Overview], Group]
) -> Overview:
    """Draw it again and again; return the last values when Ctrl-C is pressed.

    If the cluster cannot be read any more, the last values stay, with the reason.
    """
    # As Ctrl-C does; otherwise the terminal would stay on its alternate screen.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seen, lost = read(), ""
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            note = f"{seen.at:%H:%M:%S} UTC, every {_EVERY_S:g} s; Ctrl-C to quit"
            live.update(Group(Words(lost or note, "dim"), frame(seen)), refresh=True)
            time.sleep(_EVERY_S)
            try:
                seen, lost = read(), ""
            except ClusterError as error:
                lost = f"These values are from {seen.at:%H:%M:%S} UTC: {error}"
    return seen
