"""``gpusharectl demo``: play its scenes, or leave a cluster running."""

import os
import signal
import sys
from threading import Event
from typing import NoReturn

import click

from gpushare import interrupt
from gpusharectl.output import open_console


@click.command()
@click.option(
    "--hold",
    "keep",
    is_flag=True,
    help="Leave a small cluster running for kubectl, until Ctrl-C.",
)
def demo(*, keep: bool) -> None:
    """Show what this software does, without a GPU, a cluster or root."""
    # gRPC reads this when it is imported. Else it may write notes between the demo's
    # lines when a plugin ends.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with interrupt.ending_at_once():
        from gpusharectl.demo.story import hold_cluster, tell_story  # noqa: PLC0415

    console = open_console()
    if not keep:
        _leave(tell_story(console))
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    _leave(hold_cluster(console, stop))


def _leave(status: int) -> NoReturn:
    """End the process at once.

    At a normal exit, threads that still wait in gRPC would abort the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
