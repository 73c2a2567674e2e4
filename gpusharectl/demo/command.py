"""The command line of ``gpusharectl demo``."""

import os
import signal
import sys
from threading import Event
from typing import NoReturn

import click

from gpusharectl.demo.run import hold_cluster, tell_story
from gpusharectl.output import screen


@click.command()
@click.option(
    "--hold",
    "keep",
    is_flag=True,
    help="Leave a small cluster running for kubectl, until Ctrl-C.",
)
def demo(*, keep: bool) -> None:
    """Show what this software does, without a GPU, a cluster or root."""
    console = screen()
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
