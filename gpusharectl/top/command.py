"""``gpusharectl top``: what pods and cards use, and what is allotted to them.

On a terminal it is drawn again and again, until q or Ctrl-C.

As data its shape is a promise, as inspect's. There are always pods and cards, whatever
``--by`` says; ``-n`` leaves out pods, ``--node`` everything of other nodes. An amount
has ``cores``, ``units`` and ``memory_mib``. Memory is in MiB; ``sm_percent`` and
``busy_percent`` are of the whole card, of which a core is one hundredth. null: not
known, or it does not apply; 0 is idle::

    v         1
    at        when the cluster was read, RFC 3339
    books     {from: "extender" | "pods and nodes", because}
    totals    {cards, memory_mib, allotted_mib, used_mib, cards_told}
    nodes     [{name, told, because}]: whether its exporter answered, else why not
    cards     [{node, uuid, index, model, units, memory_mib, healthy, cordoned,
              allotted: amount, used_mib, busy_percent, celsius, watts, outside_mib,
              unattributed_mib, sm_source, flags}]
    pods      [{namespace, name, uid, node, card, index, stay, whole,
              allotted: amount, used_mib, sm_percent, idle_s, containers, flags,
              claims: [name]}]
      containers  [{name, allotted: amount, used_mib, sm_percent, last_busy, over}]
      flags   [{sign, words, do}]
    warnings  [{about, what, do}]

``used_mib`` of the totals is of the ``cards_told`` cards of which it is known.
``outside_mib`` is the memory of processes outside Kubernetes, ``unattributed_mib`` the
used memory that no known process uses. ``claims`` are the ResourceClaims by which a pod
has its share; pods that use the same claim share one amount. A claim whose pods are not
known has an entry of its own. ``stay`` is as in inspect; null, and
``allotted`` too, for a pod that uses a card without a share of it. ``last_busy`` is in
seconds since 1970 by that node's clock, and ``idle_s`` the time since then. Signs:
over, not-held, no-share, unplaced, gone, idle, leaving, not-started, claim, sick,
cordoned, outside, unattributed.
"""

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import click
from rich.console import Console, RenderableType

from gpusharectl.access import Access, access_options, reached
from gpusharectl.completion import complete_namespaces, complete_nodes
from gpusharectl.output import encode, open_console, print_data
from gpusharectl.state.read import read_state, require_node
from gpusharectl.state.scrape import scrape_exporters
from gpusharectl.state.view import build_overview
from gpusharectl.top.join import join_exporters
from gpusharectl.top.render import Layout, draw_top, fit_top
from gpusharectl.top.rows import Sort, TopView, order_rows
from gpusharectl.top.screen import Keyboard, View, open_keyboard, stop, watch

_EVERY_S = 5.0
_CODES = (
    "Exit codes: 0 it was shown, as far as the exporters answer; 1 the cluster could "
    "not be read; 2 wrong command line."
)


@click.command(epilog=_CODES)
@click.option(
    "--by",
    type=click.Choice(["pod", "card"]),
    default="pod",
    show_default=True,
    help="A row for each pod on each card, or a row for each card.",
)
@click.option(
    "--sort",
    type=click.Choice(["mem", "sm", "allotted", "name"]),
    help="Most memory used first, most SM, most allotted, or by name. Default: pods "
    "by memory, cards by name.",
)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Only pods of this namespace; default: all.",
    shell_complete=complete_namespaces,
)
@click.option(
    "-A", "--all-namespaces", is_flag=True, help="Pods of all namespaces; the default."
)
@click.option(
    "--node", metavar="NAME", help="Only this node.", shell_complete=complete_nodes
)
@click.option(
    "--once", is_flag=True, help="Show it once; without a terminal this is the default."
)
@click.option(
    "-w",
    "--every",
    "every_s",
    type=click.FloatRange(min=1),
    default=_EVERY_S,
    show_default=True,
    metavar="SECONDS",
    help="On a terminal: the time between two readings.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "yaml"]),
    help="Print the same as data.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Say where the placements are read from."
)
@access_options
def top(  # noqa: PLR0913
    *,
    by: str,
    sort: Sort | None,
    namespace: str | None,
    all_namespaces: bool,
    node: str | None,
    once: bool,
    every_s: float,
    output: str | None,
    verbose: bool,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Show what pods and cards use, and what is allotted to them.

    What is allotted is the same as in inspect; what is used comes from the exporter on
    each node. Memory is in GiB. SM is the part of a card's compute that a pod uses, in
    percent; cores are the part that is allotted to it. n/a: not known; 0: idle; -: not
    requested. On a terminal its last line names the keys that scroll, sort, filter and
    quit.
    """
    if namespace and all_namespaces:
        raise click.UsageError("-n names one namespace, -A means all of them")
    if namespace and by == "card":
        raise click.UsageError("-n is for pods; a card may serve several namespaces")
    layout = Layout(by == "card", namespace or "", node or "", verbose=verbose)
    with reached(kubeconfig, context) as access:

        def seen() -> TopView:
            return _seen(access, layout)

        if output:
            print_data(encode(order_rows(seen(), sort)), output)
            return
        console = open_console()
        # With FORCE_COLOR even a pipe looks like a terminal.
        if once or not (console.is_interactive and sys.stdout.isatty()):
            console.print(draw_top(console, order_rows(seen(), sort), layout))
        else:
            _live(console, seen, layout, every_s, sort)


def _seen(access: Access, layout: Layout) -> TopView:
    state = read_state(access, datetime.now(UTC))
    require_node(state, layout.only)
    seen = build_overview(state, layout.only)
    nodes = [view.name for view in seen.nodes if view.cards or view.labelled]
    results = scrape_exporters(access.objects, state.parts, nodes)
    return join_exporters(seen, results, layout.namespace)


def _live(
    console: Console,
    seen: Callable[[], TopView],
    layout: Layout,
    every_s: float,
    sort: Sort | None,
) -> None:
    # As Ctrl-C does; otherwise the terminal would stay on its alternate screen.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGTSTP, stop)
    keys = open_keyboard()
    answers = isinstance(keys, Keyboard)

    def frame(
        console: Console, top: TopView, lost: str, view: View
    ) -> tuple[RenderableType, int]:
        fitting = replace(
            layout,
            height=console.height,
            note=view.note(top, every_s, keys=answers),
            lost=lost,
            skip=view.skip,
            text=view.text,
        )
        return fit_top(console, order_rows(top, view.sort), fitting)

    watch(console, seen, frame, keys, every_s=every_s, view=View(sort))
