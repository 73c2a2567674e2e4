"""``python -m deviceplugin serve``: settings, cards and the API server, then serve."""

import logging
import os
import signal
import sys
from pathlib import Path
from threading import Event

import click

from deviceplugin.cards import CardSource
from deviceplugin.inventory import InventoryCards, read_inventory
from deviceplugin.joined import JoinedCards
from deviceplugin.nvmlcards import NvmlCards
from deviceplugin.serving import run
from deviceplugin.settings import DevicePluginSettings
from deviceplugin.simulated import SimulatedCards, parse_spec
from gpushare import logs
from gpushare.kube.apiserver import ApiServer
from gpushare.kube.cluster import Cluster
from gpushare.kube.errors import ClusterError
from gpushare.listening import why_not_listen


@click.group()
def main() -> None:
    """Offer a node's cards to kubelet."""


@main.command()
def serve() -> None:
    """Serve kubelet until SIGTERM.

    Settings are GPUSHARE_… in the environment: docs/deviceplugin.md.
    """
    settings, complaints = DevicePluginSettings.read(os.environ)
    source = _source(settings, complaints)
    cluster = _cluster(settings, complaints)
    if taken := why_not_listen(settings.listen):
        complaints.append(
            f"GPUSHARE_LISTEN: cannot listen on {settings.listen} ({taken}); give "
            "another host:port"
        )
    if not _can_be_made(settings.state_dir):
        complaints.append(
            f"GPUSHARE_STATE_DIR: {settings.state_dir} cannot be written or made; give "
            "another folder"
        )
    if complaints or cluster is None:
        for complaint in complaints:
            click.echo(complaint, err=True)
        sys.exit(1)
    logs.configure(settings.log_level, settings.log_format)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    status = run(settings, source, cluster, stop)
    logging.shutdown()
    # Not by Python's own way out: threads that wait for the API server would be torn
    # off in the middle of foreign code, and abort the process.
    os._exit(status)


def _can_be_made(folder: Path) -> bool:
    """Tell whether a folder can be written, or made, without making it."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _source(settings: DevicePluginSettings, complaints: list[str]) -> CardSource:
    sources: list[CardSource] = []
    if settings.simulated_cards is None:
        sources.append(NvmlCards(root=settings.host_root))
    else:
        made_up = parse_spec(settings.simulated_cards, settings.node)
        if isinstance(made_up, list):
            complaints += [f"GPUSHARE_SIMULATED_CARDS: {one}" for one in made_up]
        else:
            sources.append(SimulatedCards(made_up))
    if settings.inventory is not None:
        listed = read_inventory(settings.inventory)
        if isinstance(listed, list):
            complaints += [f"GPUSHARE_INVENTORY: {one}" for one in listed]
        else:
            sources.append(InventoryCards(listed))
    # Of one source too: joined, cards once found stay, and fail while it is gone.
    return JoinedCards(sources)


def _cluster(settings: DevicePluginSettings, complaints: list[str]) -> Cluster | None:
    try:
        return ApiServer.connect(settings.kubeconfig)
    except ClusterError as error:
        complaints.append(
            f"GPUSHARE_KUBECONFIG: {error}; give the path of a kubeconfig, or run in a "
            "pod with a service account"
        )
        return None


if __name__ == "__main__":
    main()
