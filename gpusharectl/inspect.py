"""``gpusharectl inspect``: nodes, their cards, and the pods on them.

With ``--watch`` it is drawn again and again, until Ctrl-C. As data it is this; an
amount has ``cores``, ``units`` and ``memory_mib``, and null is not known, or does not
apply::

    v             1
    at            when the cluster was read, RFC 3339
    namespace     the only one that is shown; null: all
    setup         "demo" | "absent" | "installed": whether gpushare is in this cluster
    books         {from: "extender" | "pods and nodes", because: str | null}
    policy        the cluster's default; card_order beside it
    totals        {nodes, cards, other_nodes, units, allotted_units, pending,
                  units_without_cores: free, on cards without a free core}
    largest_free  {node, card, index, cores, units, memory_mib} | null: the most units
                  that a pod with one core could have
    nodes         [{name, ready, schedulable, labelled, device_plugin, offered: {cores,
                  units}, isolation: the tier, links: [the score of each pair of
                  cards: 0-1, 0-2, …, 1-2, …; 0: not known] | null: none is known,
                  complaint, cards, gone}]
      cards       [{uuid, index, model, units, memory_mib, healthy, cordoned,
                  parent: uuid of the card of a MIG instance | null,
                  reason: why it is not healthy,
                  allotted: amount, free: amount | null, pods,
                  others: amount, of pods in namespaces that are not shown}]
      pods, gone  [{namespace, name, uid, priority, cores, units, memory_mib, whole,
                  stay: "placed" | "unplaced" | "nominated", planned: [uuid], leaving,
                  waits, isolation: the tier with which it started; null if it is
                  none or not known; card (of gone);
                  claim: "allocated" | "reserved", and
                  used_by: [{name, uid}] | null: the pods for which it is reserved;
                  both only of a ResourceClaim, which is no pod and has no priority}]
    pending       [{namespace, name, uid, priority, policy, claims: [amount], since,
                  because, room, kube_scheduler, nominated}]
    pending_claims  [namespace/name]: pods without a node that have ResourceClaims, of
                  whichever driver
    namespaces    [{name, allotted: amount, quotas: null |
                  [{name, resource, hard, used}]}]
    warnings      [{about, what, do}]
"""

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import click
from rich.console import Console, Group
from rich.live import Live

from gpushare.kube.errors import ClusterError
from gpusharectl.access import Access, access_options, reached
from gpusharectl.completion import complete_namespaces, complete_nodes
from gpusharectl.installer.kube_scheduler.host_files import HostFiles
from gpusharectl.installer.kube_scheduler.this_host import host_troubles
from gpusharectl.output import Words, encode, open_console, print_data
from gpusharectl.state.read import read_state, require_node
from gpusharectl.state.render import draw_overview, draw_parts
from gpusharectl.state.scrape import find_not_held
from gpusharectl.state.view import Overview, build_overview, filter_namespace

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
    shell_complete=complete_namespaces,
)
@click.option(
    "--node", metavar="NAME", help="Only this node.", shell_complete=complete_nodes
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
    console = open_console()

    wide = output == "wide"

    def frame(seen: Overview) -> Group:
        width = console.width
        return Group(*draw_parts(seen, width, wide=wide, verbose=verbose, wrap=True))

    with reached(kubeconfig, context) as access:

        def read() -> Overview:
            return _seen(access, namespace or "", node or "")

        seen = _watch(console, read, frame) if watch else read()
    if as_data:
        print_data(encode(seen), str(output))
    else:
        draw_overview(console, seen, wide=wide, verbose=verbose)


def _seen(access: Access, namespace: str, node: str) -> Overview:
    state = read_state(access, datetime.now(UTC), whole=True)
    require_node(state, node)
    not_held = find_not_held(access.objects, state, node)
    state = replace(state, troubles=(*state.troubles, *not_held))
    seen = build_overview(state, node, host_troubles(state.nodes, HostFiles()))
    return filter_namespace(seen, namespace) if namespace else seen


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
