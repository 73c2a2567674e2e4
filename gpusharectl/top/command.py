"""``top``: what pods and cards use, beside what they were allotted.

Exit codes:

====  ==================================================================
0     it was told, as far as the exporters answer
1     it could not be told; a sentence says why
2     the command line is not understood
====  ==================================================================

The same picture again and again, until Ctrl-C.
"""

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import click
from rich.console import Console, RenderableType
from rich.live import Live

from gpushare.kube import words
from gpushare.kube.errors import ClusterError
from gpushare.kube.facts import name_of
from gpusharectl.access import Access, access_options, reached
from gpusharectl.completion import namespace_names, node_names
from gpusharectl.output import give
from gpusharectl.state.read import look
from gpusharectl.state.view import survey
from gpusharectl.top.render import Sheet, drawn
from gpusharectl.top.rows import Sort, Top, Wish, joined
from gpusharectl.top.scrape import ask
from gpusharectl.top.serialize import top_data

_RESIZE_S = 0.5
"""How soon another size of the window shows."""

Frame = Callable[[Console, Top, str], RenderableType]
"""Lays out what was seen for a console; the text says why it is not what is so now."""


def watch(
    console: Console, look: Callable[[], Top], frame: Frame, *, every_s: float
) -> None:
    """Look, rest for so long, look again, until Ctrl-C.

    ``ClusterError`` where the first look fails; a later one leaves the picture standing
    and says so. The last picture stays on the terminal.
    """
    seen, lost = look(), ""
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:

            def show() -> None:
                live.update(frame(console, seen, lost), refresh=True)  # noqa: B023

            _rest(console, show, every_s)
            try:
                seen, lost = look(), ""
            except ClusterError as error:
                when = f"{seen.at:%H:%M:%S}"
                lost = f"What was seen at {when}; since then no answer: {error}"
    console.print(frame(console, seen, lost))


def _rest(console: Console, show: Callable[[], None], every_s: float) -> None:
    """Show the picture, and again where the window has another size."""
    end = time.monotonic() + every_s
    size = None
    while True:
        if size != console.size:
            size = console.size
            show()
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, _RESIZE_S))


_EVERY_S = 5.0
_MOST_NODES = 10
_CODES = (
    "Exit codes: 0 it was told, as far as the exporters answer; 1 it could not be "
    "told; 2 the command line is not understood."
)


@click.command(epilog=_CODES)
@click.option(
    "--by",
    type=click.Choice(["pod", "card"]),
    default="pod",
    show_default=True,
    help="A row for each pod on each card, or for each card.",
)
@click.option(
    "--sort",
    type=click.Choice(["mem", "sm"]),
    help="The most memory first, or the busiest. Else: pods by memory, cards by node.",
)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Only pods of this namespace; else of all.",
    shell_complete=namespace_names,
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Of all: the default.")
@click.option(
    "--node", metavar="NAME", help="Only this node.", shell_complete=node_names
)
@click.option("--once", is_flag=True, help="Show it once; so it is without a terminal.")
@click.option(
    "-w",
    "--every",
    "every_s",
    type=click.FloatRange(min=1),
    default=_EVERY_S,
    show_default=True,
    metavar="SECONDS",
    help="On a terminal: how long to rest between two looks.",
)
@click.option(
    "-o", "--output", type=click.Choice(["json", "yaml"]), help="The same as data."
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
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Show what pods and cards use, beside what is allotted.

    What was allotted is by the books, as in inspect; what is used is read from the
    exporter on each node. Memory in GiB. SM is the share of a card's compute that a
    pod uses, in percent; cores are what it was allotted of the same. n/a is what
    nobody knows; 0 is idle; - is nothing asked.
    """
    if namespace and all_namespaces:
        raise click.UsageError("-n names one namespace, -A means all of them")
    if namespace and by == "card":
        raise click.UsageError("-n is for pods; a card is nobody's alone")
    wish = Wish(namespace or "", sort)
    sheet = Sheet(by == "card", wish.namespace, node or "")
    with reached(kubeconfig, context) as access:

        def seen() -> Top:
            return _seen(access, node or "", wish)

        if output:
            give(top_data(seen()), output)
            return
        console = Console(highlight=False)
        # FORCE_COLOR makes a terminal of a pipe, which nobody looks at.
        if once or not (console.is_interactive and sys.stdout.isatty()):
            console.print(drawn(console, seen(), sheet))
        else:
            _live(console, seen, sheet, every_s)


def _seen(access: Access, node: str, wish: Wish) -> Top:
    """Read the books, and then what their nodes' exporters tell."""
    picture = look(access, datetime.now(UTC))
    if node and picture.node(node) is None:
        known = words.listed(sorted(map(name_of, picture.nodes)), _MOST_NODES)
        raise click.ClickException(f'there is no node "{node}"; there are: {known}')
    books = survey(picture, node)
    nodes = [view.name for view in books.nodes if view.cards or view.labelled]
    return joined(books, ask(access.objects, picture, nodes), wish)


def _live(
    console: Console, seen: Callable[[], Top], sheet: Sheet, every_s: float
) -> None:
    # As Ctrl-C: else it would leave the terminal on its other screen.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def frame(console: Console, top: Top, lost: str) -> RenderableType:
        note = f"{top.at:%H:%M:%S} UTC, again {every_s:g} s after that; Ctrl-C ends it"
        fitting = replace(sheet, height=console.height, note=note, lost=lost)
        return drawn(console, top, fitting)

    watch(console, seen, frame, every_s=every_s)
