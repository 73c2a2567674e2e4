"""``gpusharectl``: the group of all commands."""

import os
import signal
import sys
from threading import Event
from typing import NoReturn

import click
from rich.console import Console

from gpushare import __version__
from gpusharectl.completion import TwoNames
from gpusharectl.cordon import clear_card, cordon_card, uncordon_card
from gpusharectl.demo.run import hold, tell
from gpusharectl.inspect import inspect
from gpusharectl.install.command import host_clean, host_scheduler, install, uninstall
from gpusharectl.quota import migrate_quota
from gpusharectl.simulate.command import simulate
from gpusharectl.top.command import top
from gpusharectl.ui import ui
from gpusharectl.why.command import why


@click.group(
    cls=TwoNames,
    commands=[
        install,
        uninstall,
        inspect,
        why,
        top,
        simulate,
        ui,
        cordon_card,
        uncordon_card,
        clear_card,
        migrate_quota,
        host_scheduler,
        host_clean,
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="gpusharectl")
def main() -> None:
    """Share GPU cards between Kubernetes pods, by memory."""


@main.command()
@click.option(
    "--hold",
    "keep",
    is_flag=True,
    help="Leave a small cluster running for kubectl, until Ctrl-C.",
)
def demo(*, keep: bool) -> None:
    """Show what this software does, without a GPU, a cluster or root."""
    console = Console(highlight=False)
    if not keep:
        _leave(tell(console))
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    _leave(hold(console, stop))


def _leave(status: int) -> NoReturn:
    """End the process at once.

    At a normal exit, threads that still wait in gRPC would abort the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main.run()
